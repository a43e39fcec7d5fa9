"""What cheap trials of smaller models save with two objectives, on surrogates with a known ladder.

    python -m benchmarks.transfer_front --seeds 20

As `benchmarks.transfer --search fidelity`, with the lengths of both stages searched as well, for the loss and
the compute: the target is searched plainly, and with rungs below as levels of the same sweep. The rung `d`
below has landscapes whose optimum has moved `d` times as far, and the worse losses; `misleading` is the one
whose loss is mirrored in every range, lengths included. Compared are hypervolumes of true results at the
target. One worker; a second run goes on where the first was ended.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.json_lines import end_last_line, read_lines
from benchmarks.pipelines import COMPUTE, LENGTHS, NUMBERS, LengthPipeline, compute
from benchmarks.problems import completed_trial
from benchmarks.transfer import AFTER, DRIFT, LADDERS, NOISE, OFFSET, RUNG, SCALE, mirrored_end
from benchmarks.trunks import hypervolume
from sweeps.space.definition import Choice, Fidelity, Space, number_of
from sweeps.trials.record import Trial

COSTS = (1.0, 0.1, 0.01)
"""Cost of a trial at the target, one rung below, and two, in trials at the target."""
CAP = 30
"""Run cap of the sweeps."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Sweep of the target (`below` 0) or with so many rungs below it, up to so many of 30 trials there."""

    ladder: str
    seed: int
    below: int
    until: int = CAP


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first-seed", type=int, default=500, help="0 to 9 were looked at while tuning")
    parser.add_argument("--below", type=int, default=1, choices=(1, 2), help="rungs below the target")
    parser.add_argument("--until", type=int, default=CAP, help=f"trials at the target of the {CAP} to run")
    parser.add_argument("--ladders", nargs="*", default=list(LADDERS), choices=LADDERS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--file", type=Path, default=Path(__file__).with_name("transfer_front.jsonl"))
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the workers import torch
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    end_last_line(arguments.file)
    jobs = [
        Job(ladder=ladder, seed=seed, below=arguments.below * bool(ladder), until=arguments.until)
        for seed in seeds
        for ladder in ("", *arguments.ladders)
    ]
    done = read_results(arguments.file)
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(partial(run, file=arguments.file), [job for job in jobs if job not in done]))
    print(table(read_results(arguments.file), seeds, arguments.ladders, arguments.below, arguments.until))


def read_results(file: Path) -> dict[Job, dict[str, Any]]:
    """Return the results in the file by their job."""
    return {Job(**result["job"]): result for result in read_lines(file)}


def run(job: Job, file: Path) -> None:
    """Run a sweep, and add what it has found to the file."""
    begun = time.process_time()
    line = {"job": asdict(job), **search(job), "cpu": round(time.process_time() - begun, 1)}
    with file.open("a") as lines:
        lines.write(json.dumps(line) + "\n")


def search(job: Job) -> dict[str, Any]:
    """Return the hypervolume and the compute paid by the whole sweep after each trial at the target."""
    from sweeps.search.optimizer import asker

    optimizer, rng = asker(space(job)), np.random.default_rng((job.seed, 1, job.below))
    rungs = [rung_below(job, away) for away in range(job.below + 1)]
    records: list[Trial] = []
    reached: list[tuple[float, float]] = []
    volumes: list[float] = []
    paid: list[float] = []
    spent = 0.0
    while len(volumes) < job.until:
        optimizer.observe(records)
        (candidate,) = optimizer.generate()
        parameters = dict(candidate.parameters)
        away = job.below - int(number_of(parameters.get(RUNG, 0)))
        shown = (
            mirrored_end(parameters, NUMBERS + LENGTHS) if away and job.ladder == "misleading" else parameters
        )
        loss, cost = rungs[away].loss(shown), COSTS[away] * compute(parameters)
        spent += cost
        if away == 0:
            reached.append((loss, cost))
            volumes.append(round(hypervolume(reached), 5))
            paid.append(round(spent, 1))
        measured = away * OFFSET + SCALE**away * (loss + NOISE * float(rng.standard_normal()))
        records.append(
            completed_trial(len(records), parameters, candidate.generator, measured, **{COMPUTE: cost})
        )
    return {"volumes": volumes, "paid": paid, "below": len(records) - job.until}


def space(job: Job) -> Space:
    """Return the sweep's space: both objectives without bounds, each level has its own scale."""
    found = LengthPipeline("first-dear", job.seed).lengths_space(reuse=False, trunks=False)
    found = replace(found, search=replace(found.search, seed=job.seed), outcome_constraints=(), run_cap=CAP)
    if not job.below:
        return found
    rung = Choice(name=RUNG, values=tuple(range(job.below + 1)), ordered=True)
    costs = COSTS[job.below :: -1]
    fidelity = (Fidelity(parameter=RUNG, cost=costs),)
    return replace(found, parameters=(*found.parameters, rung), fidelity=fidelity)


def rung_below(job: Job, away: int) -> LengthPipeline:
    """Return the landscape so many rungs below the target, but for the mirror."""
    pipeline = LengthPipeline("first-dear", job.seed)
    if job.ladder == "drift":
        signs = np.random.default_rng((job.seed, 2)).choice((-1.0, 1.0), len(DRIFT))
        pipeline.best = np.clip(pipeline.best + away * signs * DRIFT, 0.02, 0.98)
    return pipeline


def table(
    results: Mapping[Job, Any], seeds: Sequence[int], ladders: Sequence[str], below: int, until: int
) -> str:
    """Return a row for each ladder: mean hypervolumes, and the compute to plain's own after all its trials.

    Only seeds that are done count.
    """
    long = {(job.ladder, job.seed, job.below): each for job, each in results.items() if job.until >= until}
    after = [count for count in AFTER if count <= until]
    lines = [
        f"| ladder | seeds | trials below | hypervolume after {', '.join(map(str, after))}: plain "
        "| with fidelity | ahead at the end | compute to plain's last, of plain's: median | never |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for ladder in ladders:
        keys = [(("", seed, 0), (ladder, seed, below)) for seed in seeds]
        pairs = [tuple(long[key] for key in pair) for pair in keys if all(key in long for key in pair)]
        if not pairs:
            continue
        means = [
            ", ".join(f"{statistics.mean(pair[at]['volumes'][n - 1] for pair in pairs):.3f}" for n in after)
            for at in (0, 1)
        ]
        last = until - 1
        ratios = [arrival(found, plain["volumes"][last]) / plain["paid"][last] for plain, found in pairs]
        ahead = sum(found["volumes"][last] >= plain["volumes"][last] for plain, found in pairs)
        lines.append(
            f"| {ladder} | {len(pairs)} | {statistics.median(found['below'] for _, found in pairs):g} "
            f"| {means[0]} | {means[1]} | {ahead} | {statistics.median(ratios):.2f} "
            f"| {sum(ratio == float('inf') for ratio in ratios)} |"
        )
    return "\n".join(lines)


def arrival(result: Mapping[str, Any], goal: float) -> float:
    """Return the compute paid when a hypervolume is reached; infinity: never."""
    pairs = zip(result["paid"], result["volumes"], strict=True)
    return next((paid for paid, volume in pairs if volume >= goal), float("inf"))


if __name__ == "__main__":
    main()
