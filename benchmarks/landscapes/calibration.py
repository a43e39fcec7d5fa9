"""Calibration of what `sweep best` states, see README.md: `python -m benchmarks.landscapes calibrate`.

Searches of `ours-plain` with the noise of seeds. After some trials the surrogate says which one it chooses,
with what chance that is within one run's noise of the best, and what more trials would gain; the emulator
knows the truth.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.json_lines import end_last_line, read_lines
from benchmarks.landscapes.replay import Landscape, load
from benchmarks.landscapes.searchers import Ours, Task
from sweeps.export import optimum
from sweeps.search.encoding import Encoding
from sweeps.search.optimizer import SURROGATE_FAILURES, Optimizer
from sweeps.search.optimizer.optimum import SpacePoints
from sweeps.space.definition import Space
from sweeps.space.domain import Domain
from sweeps.trials.record import Trial

SPREAD, ROUNDS, KEPT, NEAR = 8192, 6, 24, 1024
"""Points of the search for an emulator's optimum: Sobol's, then rounds of neighbours of the best."""

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Ends of the groups of stated chances."""

Search = dict[str, Any]


def best_loss(landscape: Landscape) -> float:
    """Return the least true loss of a landscape that is found."""
    encoding = Encoding(Domain(landscape.space))
    space = SpacePoints(encoding, np.random.default_rng(0), seed=0)
    fixed = encoding.domain.fixed
    points = space.allowed(space.sobol(SPREAD))
    losses = landscape.losses([{**fixed, **encoding.decode(point)} for point in points])
    for _ in range(ROUNDS):
        order = np.argsort(losses)[:KEPT]
        kept = [points[at] for at in order]
        near = space.near(kept, NEAR)
        found = landscape.losses([{**fixed, **encoding.decode(point)} for point in near])
        points, losses = [*kept, *near], np.concatenate([losses[order], found])
    return float(losses.min())


def search(name: str, seed: int, trials: int) -> Search:
    """Return a search as a line of the results: its trials with parameters, told and true losses."""
    landscape = load(name)
    searcher = Ours(Task(space=replace(landscape.space, baseline=None), seed=seed), reuse=False)
    found = []
    for trial in range(trials):
        parameters = searcher.ask(trial)
        true = landscape.loss(parameters)
        told = true + landscape.noise(seed, trial)
        searcher.tell(trial, told)
        found.append({"parameters": dict(parameters), "told": told, "true": true})
    return {"landscape": name, "seed": seed, "best": best_loss(landscape), "trials": found}


def searches(
    names: Sequence[str],
    seeds: Iterable[int],
    trials: int,
    path: Path,
    jobs: int,
    run: Callable[[str, int, int], Search] = search,
) -> list[Search]:
    """Return the searches, from the file where that has them; new ones are run, and appended to it."""
    wanted = [(name, seed) for seed in seeds for name in names]
    known = {
        (line["landscape"], line["seed"]): line for line in read_lines(path) if len(line["trials"]) >= trials
    }
    end_last_line(path)
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool, path.open("a", encoding="utf-8") as lines:
        waiting = [pool.submit(run, *key, trials) for key in wanted if key not in known]
        for done in as_completed(waiting):
            line = done.result()
            known[line["landscape"], line["seed"]] = line
            print(json.dumps(line), file=lines, flush=True)
    return [known[key] for key in wanted]


def sweep_of(line: Search) -> tuple[Space, list[Trial]]:
    """Return the space and the records of a search."""
    space = replace(load(line["landscape"]).space, baseline=None)
    space = replace(space, search=replace(space.search, seed=line["seed"], reuse="none"))
    metric = space.objectives[0].metric
    records = [
        Trial(
            trial=at,
            status="completed",
            generator="botorch",
            parameters=row["parameters"],
            metrics={metric: row["told"]},
        )
        for at, row in enumerate(line["trials"])
    ]
    return space, records


def answers(line: Search, after: Sequence[int], more: int) -> list[Mapping[str, float]]:
    """Return what the surrogate said after some trials of a search, and what was true.

    Args:
        line: of `searches`.
        after: numbers of trials.
        more: number of trials whose gain is stated.
    """
    space, records = sweep_of(line)
    true = [row["true"] for row in line["trials"]]
    said = {}
    for number in {*after, *(number + more for number in after)}:
        optimizer = Optimizer(space)
        optimizer.observe(records[:number])
        try:
            said[number] = optimizer.view().optimum(optimizer.points(), more=more, seed=0, curves=False)
        except SURROGATE_FAILURES:
            continue
    rows = []
    for number in after:
        if number not in said or number + more not in said:
            continue
        now, later = said[number], said[number + more]
        rows.append(
            {
                "after": number,
                "chance": now.chance,
                "within": float(true[now.trial] - line["best"] <= now.noise),
                "noise": now.noise,
                "gain": now.gains[-1],
                "gained": true[now.trial] - true[later.trial],
                "chosen": true[now.trial] - line["best"],
                "lowest": true[min(range(number), key=lambda at: line["trials"][at]["told"])] - line["best"],
            }
        )
    return rows


def table(rows: Sequence[Mapping[str, float]]) -> str:
    """Return stated and true figures by number of trials, and by stated chance."""
    lines = [
        "| after | searches | stated chance | were within | stated gain | gained | chosen above the best "
        "| lowest measured above it |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for number in sorted({row["after"] for row in rows}):
        group = [row for row in rows if row["after"] == number]
        mean = {key: statistics.fmean(row[key] for row in group) for key in group[0]}
        lines.append(
            f"| {number:.0f} | {len(group)} | {100 * mean['chance']:.0f} % | {100 * mean['within']:.0f} % "
            f"| {mean['gain']:.4f} | {mean['gained']:.4f} | {mean['chosen']:.4f} | {mean['lowest']:.4f} |"
        )
    lines += ["", "| stated chance | answers | mean | were within |", "|---|---|---|---|"]
    for low, high in itertools.pairwise(SHARES):
        group = [row for row in rows if low <= row["chance"] < high or row["chance"] == high == 1.0]
        if group:
            stated, within = (statistics.fmean(row[key] for row in group) for key in ("chance", "within"))
            lines.append(
                f"| {100 * low:.0f} to {100 * high:.0f} % | {len(group)} | {100 * stated:.0f} % "
                f"| {100 * within:.0f} % |"
            )
    return "\n".join(lines)


def calibrate(names: Sequence[str], seeds: Sequence[int], after: Sequence[int], path: Path, jobs: int) -> str:
    """Return the table of all searches of these landscapes and seeds."""
    lines = searches(names, seeds, max(after) + optimum.MORE, path, jobs)
    return table([row for line in lines for row in answers(line, after, optimum.MORE)])
