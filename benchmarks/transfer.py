"""What smaller models save, in an earlier sweep or as a fidelity, on surrogates with a known ladder.

    python -m benchmarks.transfer --seeds 20

Each seed is an instance of `benchmarks.pipelines` of its own, with noise. The target is searched plainly, and
with `transfer:` from a plain search of a rung below: the same landscape (`none`: no drift), one whose optimum
lies elsewhere by a sixth of the range of each learning rate and a tenth of each other range (`drift`), and
one whose optimum is at the other end of every range (`misleading`). Losses of the rung have another scale.
With `--search two` the source of `drift` stands beside that of the ladder.
With `--search fidelity` the rung below is a level of the same sweep (`fidelity:`), and all is paid for; with
`--search ax` Ax's own transfer learning begins from the same sources. `--search again` is a second plain
search: how much two equal searches differ. One worker. Results are lines of a file, so that a second run goes
on where the first was ended.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.json_lines import end_last_line, read_lines
from benchmarks.pipelines import FIRST, NUMBERS, Pipeline
from benchmarks.problems import completed_trial
from sweeps.space.definition import Choice, Fidelity, Range, Result, Source, Value, number_of
from sweeps.space.scale import from_unit, to_unit
from sweeps.trials.record import Trial

LADDERS = ("none", "drift", "misleading")
DRIFT = (1 / 6, 0.1, 1 / 6, 0.1, 0.1)
NOISE = 0.02
SCALE, OFFSET = 1.2, 0.3
"""Losses of the rung below, beside those of the target."""
AFTER = (3, 5, 10, 20, 30)
SOURCE_COST = 0.1
"""Cost of a trial of the rung below, in trials of the target."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Sweep of the rung below (`source`), of both (`fidelity`), or of the target (all others)."""

    search: str
    ladder: str
    seed: int
    trials: int = 30

    def key(self) -> tuple[Any, ...]:
        return (self.search, self.ladder, self.seed, self.trials)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first-seed", type=int, default=400)
    parser.add_argument(
        "--search", default="transfer", choices=("transfer", "two", "ax", "fidelity", "again")
    )
    parser.add_argument("--trials", type=int, default=30, help="at the target, of a search that begins lower")
    parser.add_argument("--ladders", nargs="*", default=list(LADDERS), choices=LADDERS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--file", type=Path, default=Path(__file__).with_name("transfer.jsonl"))
    arguments = parser.parse_args()
    if arguments.search == "again":
        arguments.ladders = [""]  # it has no source
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the workers import torch
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    end_last_line(arguments.file)
    work = partial(
        of_seed,
        searched=arguments.search,
        ladders=tuple(arguments.ladders),
        trials=arguments.trials,
        file=arguments.file,
    )
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(work, seeds))
    print(table(read_results(arguments.file), seeds, arguments.ladders, arguments.search, arguments.trials))


def read_results(file: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the results in the file by their job's key."""
    return {Job(**result["job"]).key(): result for result in read_lines(file)}


def of_seed(seed: int, searched: str, ladders: Sequence[str], trials: int, file: Path) -> None:
    """Run what is missing of one seed; sources come before the searches that they serve."""
    jobs = [Job(search="plain", ladder="", seed=seed)]
    if searched in ("transfer", "two", "ax"):  # the misleading source is that of `none`, mirrored
        jobs += [Job(search="source", ladder=each, seed=seed) for each in LADDERS[:2]]
    jobs += [Job(search=searched, ladder=each, seed=seed, trials=trials) for each in ladders]
    for job in jobs:
        done = read_results(file)
        if job.key() in done:
            continue
        rungs = (job.ladder, "drift") if job.search == "two" else (job.ladder,)
        sources = [source for each in rungs if (source := source_of(each, seed, done))]
        begun = time.process_time()
        if job.search in ("plain", "source"):
            tried = search(job, ())
        else:
            plain = done[Job(search="plain", ladder="", seed=seed).key()]["trials"]
            until = min(true for _, _, true in plain)
            if job.search == "fidelity":
                tried = search_with_fidelity(job, until)
            elif job.search == "ax":
                tried = search_by_ax(job, sources[0], until)
            else:
                tried = search(job, sources, until)
        line = {"job": job.__dict__, "trials": tried, "cpu": round(time.process_time() - begun, 1)}
        with file.open("a") as lines:
            lines.write(json.dumps(line) + "\n")


def source_of(ladder: str, seed: int, done: Mapping[tuple[Any, ...], Any]) -> Source | None:
    """Return what a new sweep keeps of the rung below; None where nothing was searched there."""
    misleading = ladder == "misleading"
    found = done.get(Job(search="source", ladder="none" if misleading else ladder, seed=seed).key())
    return found and of_results(found["trials"], mirrored=misleading, url=ladder)


def search(job: Job, sources: Sequence[Source], until: float = -1.0) -> list[Any]:
    """Return (parameters, measured, true loss) of each trial of one sweep, up to this true loss."""
    from sweeps.search.optimizer import Optimizer

    below = job.search == "source"
    stream = 2 if job.search == "again" else int(below)
    pipeline = rung_below(job) if below else Pipeline("first-dear", job.seed)
    space = pipeline.space(reuse=False)
    space = replace(space, search=replace(space.search, seed=job.seed + 1000 * stream))
    space = replace(space, transfer=tuple(sources))
    optimizer, rng = Optimizer(space), np.random.default_rng((job.seed, 1, stream))
    records: list[Trial] = []
    found: list[Any] = []
    for index in range(job.trials):
        if found and found[-1][2] <= until:
            break
        optimizer.observe(records)
        (candidate,) = optimizer.generate()
        true = pipeline.loss(candidate.parameters)
        measured = true + NOISE * float(rng.standard_normal())
        if below:
            measured = OFFSET + SCALE * measured
        found.append((dict(candidate.parameters), measured, true))
        records.append(completed_trial(index, candidate.parameters, candidate.generator, measured))
    return found


def search_by_ax(job: Job, source: Source, until: float) -> list[Any]:
    """Return (parameters, measured, true loss) of each trial of a sweep by Ax's transfer learning."""
    from benchmarks import transfer_ax

    pipeline, rng = Pipeline("first-dear", job.seed), np.random.default_rng((job.seed, 1, 0))
    found: list[Any] = []

    def run(parameters: dict[str, Value]) -> float | None:
        if found and found[-1][2] <= until:
            return None
        true = pipeline.loss(parameters)
        found.append((parameters, true + NOISE * float(rng.standard_normal()), true))
        return float(found[-1][1])

    transfer_ax.search(source, job.seed, job.trials, run)
    return found


RUNG = "rung"
"""Parameter of the fidelity: 0 below, 1 at the target."""


def search_with_fidelity(job: Job, until: float) -> list[Any]:
    """Return (parameters, measured, true loss) of each trial of a sweep of both, up to this true loss.

    The true loss is that at the target; infinity for trials of the rung below.
    """
    from sweeps.search.optimizer import asker

    pipeline, below = Pipeline("first-dear", job.seed), rung_below(job)
    space = pipeline.space(reuse=False)
    space = replace(
        space,
        search=replace(space.search, seed=job.seed),
        parameters=(*space.parameters, Choice(name=RUNG, values=(0, 1), ordered=True)),
        fidelity=(Fidelity(parameter=RUNG, cost=(SOURCE_COST, 1.0)),),
        run_cap=job.trials,
    )
    optimizer, rng = asker(space), np.random.default_rng((job.seed, 1, 2))
    records: list[Trial] = []
    found: list[Any] = []
    while sum(each[0][RUNG] for each in found) < job.trials:
        if found and found[-1][2] <= until:
            break
        optimizer.observe(records)
        (candidate,) = optimizer.generate()
        parameters = dict(candidate.parameters)
        noise = NOISE * float(rng.standard_normal())
        if parameters[RUNG] == 1:
            true = pipeline.loss(parameters)
            measured = true + noise
        else:
            shown = mirrored_end(parameters) if job.ladder == "misleading" else parameters
            true, measured = math.inf, OFFSET + SCALE * (below.loss(shown) + noise)
        found.append((parameters, measured, true))
        records.append(completed_trial(len(records), parameters, candidate.generator, measured))
    return found


def rung_below(job: Job) -> Pipeline:
    """Return the landscape of the rung below, but for the mirror."""
    pipeline = Pipeline("first-dear", job.seed)
    if job.ladder == "drift":
        signs = np.random.default_rng((job.seed, 2)).choice((-1.0, 1.0), len(DRIFT))
        pipeline.best = np.clip(pipeline.best + signs * DRIFT, 0.02, 0.98)
    return pipeline


def mirrored_end(parameters: Mapping[str, Value], ranges: Sequence[Range] = NUMBERS) -> dict[str, Value]:
    """Return the parameters at the other end of every range, and of the options."""
    found: dict[str, Value] = {
        p.name: from_unit(p, 1.0 - to_unit(p, number_of(parameters[p.name]))) for p in ranges
    }
    options = FIRST[2].values
    return {**parameters, **found, FIRST[2].name: options[-1 - options.index(parameters[FIRST[2].name])]}


def of_results(
    trials: Sequence[tuple[dict[str, Value], float, float]], *, mirrored: bool, url: str
) -> Source:
    """Return what a new sweep keeps of these trials; mirrored, with the optimum at the other end."""
    return Source(
        url=url,
        results=tuple(
            Result(parameters=mirrored_end(parameters) if mirrored else parameters, value=measured)
            for parameters, measured, _ in trials
        ),
    )


def table(
    results: Mapping[tuple[Any, ...], Any],
    seeds: Sequence[int],
    ladders: Sequence[str],
    searched: str,
    trials: int,
) -> str:
    """Return a row for each ladder: trials to the loss that plain search has after 30, and losses on the way.

    Only seeds that are done with a ladder count for it.
    """
    lines = [
        "| ladder | seeds | plain | with the source | ratio | and what it cost | never "
        f"| loss after {', '.join(map(str, AFTER))}: plain | with the source |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for ladder in ladders:
        jobs = [
            (
                Job(search="plain", ladder="", seed=s),
                Job(search=searched, ladder=ladder, seed=s, trials=trials),
            )
            for s in seeds
        ]
        pairs = [[curve(results[j.key()]) for j in pair] for pair in jobs if pair[1].key() in results]
        if not pairs:
            continue
        arrivals = [[arrival(each, plain[-1]) for each in (plain, found)] for plain, found in pairs]
        plain, found = (statistics.median(each) for each in zip(*arrivals, strict=True))
        losses = [
            ", ".join(f"{statistics.mean(p[at][min(n, len(p[at])) - 1] for p in pairs):.3f}" for n in AFTER)
            for at in (0, 1)
        ]
        below = [trials_below(results[pair[1].key()]) for pair in jobs if pair[1].key() in results]
        paid = found + SOURCE_COST * statistics.median(below)
        never = sum(math.isinf(each[1]) for each in arrivals)
        lines.append(
            f"| {ladder} | {len(pairs)} | {plain:g} | {found:g} | {found / plain:.2f} | {paid / plain:.2f} "
            f"| {never} | {losses[0]} | {losses[1]} |"
        )
    return "\n".join(lines)


def trials_below(result: Mapping[str, Any]) -> int:
    """Return how many trials of the rung below a search needed."""
    if result["job"]["search"] == "again":
        return 0
    if result["job"]["search"] == "fidelity":
        return sum(math.isinf(true) for _, _, true in result["trials"])
    # A source is searched as far as a plain search.
    return Job.trials * (2 if result["job"]["search"] == "two" else 1)


def curve(result: Mapping[str, Any]) -> list[float]:
    """Return the least true loss after each trial at the target."""
    at_target = (true for _, _, true in result["trials"] if math.isfinite(true))
    return list(itertools.accumulate(at_target, min))


def arrival(losses: Sequence[float], target: float) -> float:
    """Return after how many trials the target is reached; infinity: never."""
    return next((at for at, loss in enumerate(losses, 1) if loss <= target), math.inf)


if __name__ == "__main__":
    main()
