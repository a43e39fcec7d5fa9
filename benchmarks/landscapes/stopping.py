"""What `search: {stop: …}` saves and gives up, see README.md: `python -m benchmarks.landscapes stop`.

Searches of `ours-plain` with the noise of seeds run to their cap. After each result from the 30th on the
surrogate says what more trials would gain, so one search tells where any `expected_gain` had ended it, and
the emulator what the choice there lacks of the choice at the cap.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.landscapes import calibration
from benchmarks.landscapes.calibration import Search
from sweeps.export.optimum import FEWEST, MORE
from sweeps.search.determinism import stable_seed
from sweeps.search.optimizer import SURROGATE_FAILURES, Optimizer

GAINS = (0.001, 0.002, 0.004, 0.008)
"""In nats per token; one run's noise is 0.006 to 0.021."""


def expectations(line: Search) -> list[Mapping[str, float]]:
    """Return what the surrogate says after each result from the 30th on, with the true loss of its choice."""
    space, records = calibration.sweep_of(line)
    optimizer, rows = Optimizer(space), []
    seed = stable_seed(space.search.seed, "optimum") % 2**31
    for results in range(FEWEST, len(records) + 1):
        optimizer.observe(records[:results])
        try:
            said = optimizer.view().optimum(optimizer.points(), more=MORE, seed=seed, curves=False)
        except SURROGATE_FAILURES:
            continue  # a sweep goes on then, too
        true = line["trials"][said.trial]["true"]
        rows.append(
            {"results": results, "gain": said.gains[-1], "chance": said.chance, "noise": said.noise}
            | {"trial": said.trial, "true": true}
        )
    return rows


def search(name: str, seed: int, trials: int) -> Search:
    """Return a search as a line of the results, with what the surrogate said on the way."""
    line = calibration.search(name, seed, trials)
    return line | {"stated": expectations(line)}


def runs(names: Sequence[str], seeds: Iterable[int], trials: int, path: Path, jobs: int) -> list[Search]:
    """Return the searches, each up to its cap, from the file where that has them."""
    lines = calibration.searches(names, seeds, trials, path, jobs, search)
    return [
        # A search with a later cap has the same trials up to this one.
        line
        | {"trials": line["trials"][:trials]}
        | {"stated": [row for row in line["stated"] if row["results"] <= trials]}
        for line in lines
    ]


def end(line: Search, expected_gain: float) -> Mapping[str, Any] | None:
    """Return what was stated when a search would have ended; None if it had run to its cap."""
    return next((row for row in line["stated"][:-1] if row["gain"] <= expected_gain), None)


def table(lines: Sequence[Search]) -> str:
    """Return what each `expected_gain` would have saved and given up."""
    rows = [
        "| `expected_gain` | searches ended before the cap | trials at the end, median | saved "
        "| given up, mean | worst | chosen above the best, at the end and at the cap |",
        "|---|---|---|---|---|---|---|",
    ]
    cap = len(lines[0]["trials"])
    for expected_gain in GAINS:
        ends = [end(line, expected_gain) or line["stated"][-1] for line in lines]
        given_up = [at["true"] - line["stated"][-1]["true"] for at, line in zip(ends, lines, strict=True)]
        above = [at["true"] - line["best"] for at, line in zip(ends, lines, strict=True)]
        at_cap = [line["stated"][-1]["true"] - line["best"] for line in lines]
        saved = 1 - statistics.fmean(at["results"] for at in ends) / cap
        rows.append(
            f"| {expected_gain:g} | {sum(at['results'] < cap for at in ends)} of {len(lines)} "
            f"| {statistics.median(at['results'] for at in ends):g} of {cap} | {100 * saved:.0f} % "
            f"| {statistics.fmean(given_up):.4f} | {max(given_up):.4f} "
            f"| {statistics.fmean(above):.4f}, {statistics.fmean(at_cap):.4f} |"
        )
    rows += ["", "| after | searches | stated gain | gained |", "|---|---|---|---|"]
    for after in range(FEWEST, cap - MORE + 1, MORE // 2):
        both = [
            (row, later)
            for line in lines
            if (row := expectation(line, after)) and (later := expectation(line, after + MORE))
        ]
        if both:
            stated_gain = statistics.fmean(row["gain"] for row, _ in both)
            gained = statistics.fmean(row["true"] - later["true"] for row, later in both)
            rows.append(f"| {after} | {len(both)} | {stated_gain:.4f} | {gained:.4f} |")
    return "\n".join(rows)


def expectation(line: Search, results: int) -> Mapping[str, Any] | None:
    """Return what was stated after so many results."""
    return next((row for row in line["stated"] if row["results"] == results), None)
