"""Compute to a loss with shared first stages, against plain search: `python -m benchmarks.reuse`.

Simulates asynchronous workers on the surrogates of `benchmarks.pipelines`: a trial takes as long as it costs,
publishes its first stage at that stage's end, and starts after it where it is published already. All searches
of a seed begin with the same Sobol sequence. Results are appended to `--file` as JSON lines, and runs that it
has are not run again; the table is of all lines that fit the options. `reuse.jsonl` has those of RESULTS.md.
Searches:

    plain   `search: {reuse: none}`: every trial pays both stages
    reuse   `search: {reuse: auto}`
    capped  plain, with the length scales of the surrogate bounded as under reuse

A number behind one is that of its first trials (`plain12`); without it, the default of `search.sobol` counts.
For ratios, a search that never arrives is taken to arrive at the limit: they are bounds ("<", ">") where that
is so of a median. Intervals are of 95 %, from 2,000 resamples of the seeds.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.json_lines import end_last_line, read_lines
from benchmarks.pipelines import METRIC, STRUCTURES, Pipeline
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

SEARCHES = ("plain", "reuse", "capped")
TARGETS = (0.02, 0.01, 0.005)
RESAMPLES = 2000

Result = dict[str, Any]
Arrival = tuple[float | None, float]
"""Compute at which a search arrived, None for never, and the compute at which it ends."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One simulated sweep."""

    structure: str
    search: str
    seed: int
    workers: int
    noise: float
    limit: int
    """Compute at which it ends, in trials that pay both stages."""

    def key(self) -> tuple[Any, ...]:
        return (self.structure, self.search, self.seed, self.workers, self.noise, self.limit)

    @property
    def kind(self) -> str:
        """Return the search without the number of its first trials."""
        return self.search.rstrip("0123456789")

    @property
    def sobol(self) -> int | None:
        """Return the number of its first trials; None for the default."""
        digits = self.search.removeprefix(self.kind)
        return int(digits) if digits else None

    def work(self) -> Job:
        """Return an equal job of another structure, where the two differ in what a plain search never sees.

        That is how a trial's cost is split between its stages.
        """
        if self.kind == "reuse":
            return self
        own = STRUCTURES[self.structure]
        unsplit = (own.first + own.second, own.matters, own.moves)
        equal = (
            name
            for name, other in STRUCTURES.items()
            if (other.first + other.second, other.matters, other.moves) == unsplit
        )
        return replace(self, structure=next(equal))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--structures", nargs="+", default=list(STRUCTURES), choices=list(STRUCTURES))
    parser.add_argument("--searches", nargs="+", default=["plain", "reuse"], type=search_name)
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument(
        "--first-seed", type=int, default=400, help="below 300 they were looked at while tuning"
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 0.02])
    parser.add_argument("--limit", type=int, default=40, help="compute of a sweep, in full trials")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--file", type=Path, default=Path(__file__).with_name("reuse.jsonl"))
    parser.add_argument("--plot", type=Path, help="PNG of one sweep's candidates over time, of the first job")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the workers import torch
    jobs = [
        Job(structure=structure, search=search, seed=seed, workers=w, noise=noise, limit=arguments.limit)
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds)
        for w, noise in itertools.product(arguments.workers, arguments.noise)
        for structure, search in itertools.product(arguments.structures, arguments.searches)
    ]
    results = run_all(jobs, arguments.file, arguments.jobs)
    print(table(results, jobs))
    if arguments.plot:
        draw(simulated(jobs[0]).asks, arguments.plot)


def search_name(word: str) -> str:
    """Return the name of a search. Raises argparse.ArgumentTypeError for any other word."""
    if word.rstrip("0123456789") not in SEARCHES:
        raise argparse.ArgumentTypeError(f"{word!r} is no search; write one of {', '.join(SEARCHES)}")
    return word


def run_all(jobs: Sequence[Job], file: Path, processes: int) -> dict[tuple[Any, ...], Result]:
    """Return the result of each job, from the file where that has it."""
    results = finished(file)
    left = [job for job in dict.fromkeys(job.work() for job in jobs) if job.key() not in results]
    end_last_line(file)
    with (
        ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool,
        file.open("a") as lines,
    ):
        for done in as_completed([pool.submit(simulate, job) for job in left]):
            result = done.result()
            key = Job(**result["job"]).key()
            results[key] = result
            print(json.dumps(result), file=lines, flush=True)
            arrivals = " ".join(amount(result["arrived"][str(target)]) for target in TARGETS)
            print(*key, "|", arrivals, f"| {result['cpu']:.0f} s of CPU", flush=True)
    return {job.key(): results[job.work().key()] for job in jobs}


def finished(file: Path) -> dict[tuple[Any, ...], Result]:
    """Return the results in the file; the last line may be half of one, of a run that was killed."""
    return {Job(**result["job"]).key(): result for result in read_lines(file)}


def simulate(job: Job) -> Result:
    """Return when one sweep arrived at each target, how much it asked, and its CPU seconds."""
    begun = time.process_time()
    sweep = simulated(job)
    surrogate = [cpu for ask, cpu in zip(sweep.asks, sweep.ask_cpu, strict=True) if ask["by"] == "botorch"]
    return {
        "job": job.__dict__,
        "arrived": {str(target): sweep.arrived.get(target) for target in TARGETS},
        "best": round(sweep.best, 6),
        "trials": len(sweep.asks),
        "reused": sum(ask["from"] is not None for ask in sweep.asks),
        "cpu": round(time.process_time() - begun, 1),
        "ask_cpu": round(statistics.median(surrogate), 3) if surrogate else None,
    }


def simulated(job: Job) -> Sweep:
    """Return one sweep that has run until the last target or its limit."""
    from sweeps.search.optimizer import Optimizer, generation

    pipeline = Pipeline(job.structure, job.seed)
    space = pipeline.space(reuse=job.kind == "reuse")
    search = replace(space.search, seed=job.seed, sobol=job.sobol or space.search.sobol)
    with ExitStack() as stack:
        if job.kind == "capped":
            plain = generation.fitted
            stack.enter_context(mock.patch.object(generation, "fitted", partial(plain, capped=True)))
        sweep = Sweep(pipeline, Optimizer(replace(space, search=search)), job)
        sweep.run()
    return sweep


class Sweep:
    """Workers that share one optimizer, in simulated time; a worker's time is compute."""

    def __init__(self, pipeline: Pipeline, optimizer: Any, job: Job) -> None:
        self._pipeline, self._optimizer, self._job = pipeline, optimizer, job
        self._rng = np.random.default_rng((job.seed, 1))
        self._records: list[Trial] = []
        self._events: list[tuple[float, int, str]] = []
        self._published: dict[Any, int] = {}
        self.asks: list[dict[str, Any]] = []
        self.ask_cpu: list[float] = []
        self.best, self.arrived = math.inf, {}  # type: tuple[float, dict[float, float]]

    def run(self) -> None:
        """Simulate until the last target or the limit is reached."""
        structure = self._pipeline.structure
        limit = self._job.limit * (structure.first + structure.second)
        for _ in range(self._job.workers):
            self._ask(0.0)
        while self._events and TARGETS[-1] not in self.arrived:
            now, index, what = heapq.heappop(self._events)
            if now * self._job.workers > limit:
                return
            record = self._records[index]
            if what == "published":
                run = StageRun(name="stage1_9", key=f"{index:064x}", cost=structure.first, snapshot=True)
                self._records[index] = replace(record, stages=(run,))
                self._published.setdefault(self._prefix(record.parameters), index)
            else:
                self._complete(record, now)
                self._ask(now)

    def _ask(self, now: float) -> None:
        structure, begun = self._pipeline.structure, time.process_time()
        self._optimizer.observe(self._records)
        (candidate,) = self._optimizer.generate()
        self.ask_cpu.append(round(time.process_time() - begun, 3))
        index = len(self._records)
        source = None
        if self._job.kind == "reuse":
            source = self._published.get(self._prefix(candidate.parameters))
        first = 0.0 if source is not None else structure.first
        if source is None:
            heapq.heappush(self._events, (now + first, index, "published"))
        heapq.heappush(self._events, (now + first + structure.second, index, "completed"))
        self._records.append(
            Trial(
                trial=index,
                status="running",
                parameters=candidate.parameters,
                generator=candidate.generator,
            )
        )
        loss = self._pipeline.loss(candidate.parameters)
        self.asks.append(
            {"at": now * self._job.workers, "by": candidate.generator, "from": source, "loss": loss}
            | dict(candidate.parameters)
        )

    def _complete(self, record: Trial, now: float) -> None:
        loss = self._pipeline.loss(record.parameters)
        noise = self._job.noise * float(self._rng.standard_normal()) if self._job.noise else 0.0
        self._records[record.trial] = replace(record, status="completed", metrics={METRIC: loss + noise})
        self.best = min(self.best, loss)
        for target in TARGETS:
            if self.best <= target:
                self.arrived.setdefault(target, now * self._job.workers)

    def _prefix(self, parameters: Mapping[str, Any]) -> Any:
        return tuple((name, value) for name, value in parameters.items() if name.startswith("stage1_9."))


def table(results: Mapping[tuple[Any, ...], Result], jobs: Sequence[Job]) -> str:
    """Return a row for each structure, number of workers, noise, target and search.

    Ratios are to the first search.
    """
    first = jobs[0].search
    lines = [
        f"| structure | workers | noise | target | search | median compute | ratio to {first} (95 %) "
        "| never | seeds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    groups = dict.fromkeys((job.structure, job.workers, job.noise) for job in jobs)
    searches = list(dict.fromkeys(job.search for job in jobs))
    for group, target in itertools.product(groups, TARGETS):
        rows = {
            search: [
                (results[job.key()]["arrived"][str(target)], limit(job))
                for job in jobs
                if (job.structure, job.workers, job.noise) == group and job.search == search
            ]
            for search in searches
        }
        for search, found in rows.items():
            never = sum(at is None for at, _ in found)
            structure, workers, noise = group
            lines.append(
                f"| {structure} | {workers} | {noise:g} | {target:g} | {search} "
                f"| {amount(median(at for at, _ in found))} "
                f"| {'' if search == first else ratio(found, rows[first])} | {never} | {len(found)} |"
            )
    return "\n".join(lines)


def limit(job: Job) -> float:
    """Return the compute at which a sweep ends."""
    structure = STRUCTURES[job.structure]
    return job.limit * (structure.first + structure.second)


def ratio(found: Sequence[Arrival], base: Sequence[Arrival]) -> str:
    """Return the ratio of the medians of paired seeds, with its interval."""
    pairs = np.array(
        [[end if at is None else at for at, end in pair] for pair in zip(found, base, strict=True)]
    )
    drawn = np.random.default_rng(0).integers(len(pairs), size=(RESAMPLES, len(pairs)))
    medians = np.median(pairs[drawn], axis=1)
    low, high = np.quantile(medians[:, 0] / medians[:, 1], (0.025, 0.975))
    bounds = [math.isinf(median(at for at, _ in arrivals)) for arrivals in (found, base)]
    sign = {(True, False): "> ", (False, True): "< "}.get((bounds[0], bounds[1]), "")
    middle = np.median(pairs[:, 0]) / np.median(pairs[:, 1])
    return "-" if all(bounds) else f"{sign}{middle:.2f} ({low:.2f} to {high:.2f})"


def median(found: Iterable[float | None]) -> float:
    """Return the median compute; None and infinity: never."""
    return statistics.median(math.inf if one is None else one for one in found)


def amount(compute: float | None) -> str:
    """Return it as a table has it."""
    return "never" if compute is None or math.isinf(compute) else f"{compute:.0f}"


def draw(asks: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw what was asked over compute: first stages, later stages and losses; cached ones are filled."""
    from analysis.report.figure import combine
    from analysis.report.style import BLUE, GREY, name_scale, scale
    from analysis.report.vega_lite import Axis, Drawing, Series

    panels = []
    for name in [*(name for name in asks[0] if "." in name), "loss"]:
        values = [ask[name] for ask in asks]
        options = sorted({value for value in values if isinstance(value, str)})
        linear = not name.endswith(".lr") and name != "loss"
        drawing = Drawing(
            x=Axis(title="paid compute", scale=scale([ask["at"] for ask in asks], linear=True)),
            y=Axis(
                title=name, scale=name_scale(options, "point") if options else scale(values, linear=linear)
            ),
            height=120,
            legend=not panels,
        )
        for by, colour, words in (("sobol", GREY, "Sobol"), ("botorch", BLUE, "surrogate")):
            for is_reused in (False, True):
                style = Series(
                    name=f"{words}, from a published first stage" if is_reused else words,
                    colour=colour, shape="circle", size=6, filled=is_reused,
                )  # fmt: skip
                group = [ask for ask in asks if ask["by"] == by and (ask["from"] is not None) == is_reused]
                y = [options.index(ask[name]) if options else ask[name] for ask in group]
                if group:
                    drawing.points(
                        style, [{"x": ask["at"], "y": at} for ask, at in zip(group, y, strict=True)]
                    )
        panels.append(drawing.figure())
    path.write_bytes(combine(panels, columns=1, width=700).to_png(scale=1))


if __name__ == "__main__":
    main()
