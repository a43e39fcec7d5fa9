"""The findings' lengths of Stage 1.9, with trunks and without: `python -m benchmarks.length_runs`.

Two sweeps of the tiny model over `search_spaces/ablation_length.yaml`, five lengths and five seeds, in the
findings' batches, by one worker with one thread each. They run side by side, so that their wall times
compare. A benchmark that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.findings.claims import Runs, length_finding
from benchmarks.findings.runs import Run, read_run
from benchmarks.findings.setting import TINY
from benchmarks.reuse_runs import SEARCHES, Row, row, run

SPACE = Path("search_spaces/ablation_length.yaml")
LENGTH = "stage1_9.max_steps"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--storage", type=Path, default=Path("length-runs"))
    arguments = parser.parse_args()
    found = run([space(reuse) for reuse in SEARCHES], arguments.storage)
    print(report([row(sweep, wall) for sweep, wall in found], [runs(sweep) for sweep, _ in found]))


def space(reuse: str) -> dict[str, Any]:
    """Return the search space of one sweep."""
    document: dict[str, Any] = yaml.safe_load(SPACE.read_text())
    overrides = document["program"]["trainer"]["overrides"]
    overrides += [*TINY.common, "device=cpu", "device.threads=1", "log_every=1"]
    return {**document, "name": f"length-{reuse}", "search": {**document["search"], "reuse": reuse}}


def runs(sweep: Any) -> list[Run]:
    """Return the runs of a finished sweep, as the findings read theirs."""
    found = []
    for trial in sweep.trials().to_dict("records"):
        folder = Path(sweep.url, "runs", f"{trial['trial']:06d}", f"attempt-{trial['attempt']}")
        condition = TINY.condition(trial[f"param.{LENGTH}"])
        found.append(read_run(folder, condition, trial["param.seed"], early_steps=TINY.early_steps))
    return found


def report(rows: Sequence[Row], found: Sequence[Sequence[Run]]) -> str:
    """Return what each sweep has paid, the largest difference of their losses, and the findings' verdicts."""
    lines = ["| sweep | trials | wall | effective steps paid | of |", "|---|---|---|---|---|"]
    for each in rows:
        cost = f"{sum(each['paid']):.0f} | {each['nominal']:.0f}"
        lines.append(f"| {each['sweep']} | {each['trials']} | {each['wall']:.0f} s | {cost} |")
    plain, shared = ({(each.condition, each.seed): each.final for each in sweep} for sweep in found)
    lines += [
        "",
        f"Largest difference of a loss: {max(abs(plain[key] - shared[key]) for key in plain):g}.",
        "",
    ]
    verdicts = [length_finding(TINY, Runs(sweep)).verdicts for sweep in found]
    lines += [f"The verdicts are {'the same' if verdicts[0] == verdicts[1] else 'not the same'}:", ""]
    lines += [
        f"- {each['sweep']}: {text}" for each, texts in zip(rows, verdicts, strict=True) for text in texts
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
