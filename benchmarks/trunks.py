"""Compute to a front of loss and compute, with trunks against plain search: `python -m benchmarks.trunks`.

Simulates asynchronous workers on the surrogates of `benchmarks.pipelines` with searched lengths: a trial
takes as long as it costs, publishes points of its trunks and the end of its first stage as it comes by them,
and starts from the furthest that is published when it is asked for. Every search runs until it has paid the
limit, or until its hypervolume is what plain search ended with; both are of losses without noise. Results
are appended to `--file` as JSON lines, and runs that it has are not run again. Searches:

    plain       `search: {reuse: none}`: every trial pays both stages
    reuse       ends of first stages alone
    trunk       trunks too
    modelled    as plain, but compute has a model, as the loss has: it is not known as the cost of the stages

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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.json_lines import end_last_line, read_lines
from benchmarks.pipelines import (
    COMPUTE,
    LENGTHS,
    METRIC,
    STEP_COSTS,
    STRUCTURES,
    WORST,
    LengthPipeline,
    compute,
)
from sweeps.space.definition import Space
from sweeps.space.stages import Stages
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

SEARCHES = ("plain", "reuse", "trunk", "modelled")
REFERENCE = tuple(WORST.values())
"""Worst loss and compute that count."""
FULL = 400.0
"""Compute of a trial in the geometric middle of both lengths, roughly: the unit of `--limit`."""

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
    """Compute at which it ends, in `FULL`."""

    def key(self) -> tuple[Any, ...]:
        return (self.structure, self.search, self.seed, self.workers, self.noise, self.limit)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--structures", nargs="+", default=["interaction"], choices=list(STRUCTURES))
    parser.add_argument("--searches", nargs="+", default=list(SEARCHES), choices=SEARCHES)
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first-seed", type=int, default=400, help="0 to 7 were looked at while tuning")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--noise", type=float, nargs="+", default=[0.02])
    parser.add_argument("--limit", type=int, default=25, help=f"compute of a sweep, in {FULL:g}")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--file", type=Path, default=Path(__file__).with_name("trunks.jsonl"))
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the workers import torch
    jobs = [
        Job(structure=structure, search=search, seed=seed, workers=w, noise=noise, limit=arguments.limit)
        for search in dict.fromkeys(["plain", *arguments.searches])
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds)
        for w, noise, structure in itertools.product(arguments.workers, arguments.noise, arguments.structures)
    ]
    results = run_all(jobs, arguments.file, arguments.jobs)
    print(table(results, jobs))


def run_all(jobs: Sequence[Job], file: Path, processes: int) -> dict[tuple[Any, ...], Result]:
    """Return the result of each job, from the file where that has it; plain ones set the goals."""
    results = {Job(**result["job"]).key(): result for result in read_lines(file)}
    end_last_line(file)
    with (
        ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool,
        file.open("a") as lines,
    ):
        for plain in (True, False):
            left = [j for j in jobs if (j.search == "plain") == plain and j.key() not in results]
            goals = [math.inf if plain else results[_plain(job)]["best"] for job in left]
            for done in as_completed(
                [pool.submit(simulate, *each) for each in zip(left, goals, strict=True)]
            ):
                result = done.result()
                key = Job(**result["job"]).key()
                results[key] = result
                print(json.dumps(result), file=lines, flush=True)
                print(*key, f"| {result['trials']} trials | {result['cpu']:.0f} s of CPU", flush=True)
    return results


def _plain(job: Job) -> tuple[Any, ...]:
    return replace(job, search="plain").key()


def simulate(job: Job, goal: float) -> Result:
    """Return hypervolumes over paid compute of one sweep that ends at `goal`, and its CPU seconds."""
    begun = time.process_time()
    sweep = simulated(job, goal)
    surrogate = [cpu for ask, cpu in zip(sweep.asks, sweep.ask_cpu, strict=True) if ask["by"] == "botorch"]
    return {
        "job": job.__dict__,
        "volumes": [(round(at, 1), round(volume, 5)) for at, volume in sweep.volumes],
        "best": round(sweep.volumes[-1][1], 5) if sweep.volumes else 0.0,
        "trials": len(sweep.asks),
        "cpu": round(time.process_time() - begun, 1),
        "ask_cpu": round(statistics.median(surrogate), 3) if surrogate else None,
    }


def simulated(job: Job, goal: float) -> Sweep:
    """Return one sweep that has run until its hypervolume is the goal, or until its limit."""
    from sweeps.search.optimizer import Optimizer

    pipeline = LengthPipeline(job.structure, job.seed)
    space = pipeline.lengths_space(reuse=job.search in ("reuse", "trunk"), trunks=job.search == "trunk")
    space = replace(space, search=replace(space.search, seed=job.seed))
    searched = replace(space, stages=()) if job.search == "modelled" else space
    sweep = Sweep(pipeline, space, Optimizer(searched), job)
    sweep.run(goal)
    return sweep


@dataclass(frozen=True, order=True)
class Event:
    """What a trial comes by: a point of a stage (`step`), a stage's end (`step` None), or its own end."""

    at: float
    trial: int
    stage: int
    step: int = -1
    """-1: the stage's end."""


class Sweep:
    """Workers that share one optimizer, in simulated time; a worker's time is compute."""

    def __init__(self, pipeline: LengthPipeline, space: Space, optimizer: Any, job: Job) -> None:
        self._pipeline, self._optimizer, self._job = pipeline, optimizer, job
        self._stages = Stages(space)
        self._rng = np.random.default_rng((job.seed, 1))
        self._records: list[Trial] = []
        self._events: list[Event] = []
        self._points: dict[Any, set[int]] = {}
        self._ends: set[Any] = set()
        self._results: list[tuple[float, float]] = []
        self.asks: list[dict[str, Any]] = []
        self.ask_cpu: list[float] = []
        self.volumes: list[tuple[float, float]] = []

    def run(self, goal: float) -> None:
        """Simulate until the hypervolume is the goal, or until the limit."""
        limit = self._job.limit * FULL
        for _ in range(self._job.workers):
            self._ask(0.0)
        while self._events:
            event = heapq.heappop(self._events)
            if event.at * self._job.workers > limit:
                return
            if event.step >= 0:
                self._publish_point(event)
            elif event.stage == 0:
                self._publish_end(event)
            else:
                self._complete(event)
                if self.volumes[-1][1] >= goal:
                    return
                self._ask(event.at)

    def _ask(self, now: float) -> None:
        begun = time.process_time()
        self._optimizer.observe(self._records)
        (candidate,) = self._optimizer.generate()
        self.ask_cpu.append(round(time.process_time() - begun, 3))
        parameters, index = candidate.parameters, len(self._records)
        stage, step = self._start(parameters)
        self._plan(parameters, index, now, stage, step)
        self._records.append(
            Trial(trial=index, status="running", parameters=parameters, generator=candidate.generator)
        )
        is_fresh = (stage, step) == (0, 0)
        start = None if is_fresh else [stage, step]
        self.asks.append({"at": now * self._job.workers, "by": candidate.generator, "from": start})

    def _start(self, parameters: Mapping[str, Any]) -> tuple[int, int]:
        """Return the stage and the step at which a trial starts now."""
        for stage in (1, 0):
            if stage == 0 and self._stages.end_identity(parameters) in self._ends:
                return 1, 0
            steps = self._points.get((stage, self._stages.trunk_identity(parameters, stage)), ())
            if usable := [step for step in steps if step <= (self._stages.trunk_end(parameters, stage) or 0)]:
                return stage, max(usable)
        return 0, 0

    def _plan(self, parameters: Mapping[str, Any], index: int, now: float, stage: int, step: int) -> None:
        """Queue what a trial comes by."""
        for each in range(stage, len(LENGTHS)):
            begun = step if each == stage else 0
            trunk, end = self._stages.trunk(each), self._stages.trunk_end(parameters, each) or 0
            points = {*range(trunk.every, end + 1, trunk.every), end} if trunk is not None else set()
            for point in sorted(point for point in points if point > begun):
                at = now + (point - begun) * STEP_COSTS[each]
                heapq.heappush(self._events, Event(at, index, each, point))
            now += (int(parameters[LENGTHS[each].name]) - begun) * STEP_COSTS[each]
            heapq.heappush(self._events, Event(now, index, each))

    def _publish_point(self, event: Event) -> None:
        record, name = self._records[event.trial], self._stages.names[event.stage]
        run = StageRun(
            name=name,
            key=f"{event.trial:060x}{event.step:04x}",
            cost=event.step * STEP_COSTS[event.stage],
            snapshot=True,
            step=event.step,
        )
        self._records[event.trial] = replace(record, points=(*record.points, run))
        key = (event.stage, self._stages.trunk_identity(record.parameters, event.stage))
        self._points.setdefault(key, set()).add(event.step)

    def _publish_end(self, event: Event) -> None:
        if not self._stages.shared:
            return
        record = self._records[event.trial]
        cost = float(record.parameters[LENGTHS[0].name]) * STEP_COSTS[0]
        run = StageRun(name="stage1_9", key=f"{event.trial:064x}", cost=cost, snapshot=True)
        self._records[event.trial] = replace(record, stages=(run,))
        self._ends.add(self._stages.end_identity(record.parameters))

    def _complete(self, event: Event) -> None:
        record = self._records[event.trial]
        loss, spent = self._pipeline.loss(record.parameters), compute(record.parameters)
        noise = self._job.noise * float(self._rng.standard_normal())
        metrics = {METRIC: loss + noise, COMPUTE: spent}
        self._records[event.trial] = replace(record, status="completed", metrics=metrics)
        self._results.append((loss, spent))
        self.volumes.append((event.at * self._job.workers, hypervolume(self._results)))


def hypervolume(points: Iterable[tuple[float, float]]) -> float:
    """Return the share of the rectangle from 0 to `REFERENCE` that points of (loss, compute) dominate."""
    volume, worst = 0.0, REFERENCE[0]
    for loss, spent in sorted(points, key=lambda point: point[::-1]):
        if loss < worst and spent < REFERENCE[1]:
            volume += (worst - max(loss, 0.0)) * (REFERENCE[1] - spent)
            worst = loss
    return min(1.0, volume / math.prod(REFERENCE))  # rounding may carry a sum of strips past the whole


def arrival(result: Result, goal: float) -> float | None:
    """Return the paid compute at which a sweep had a hypervolume; None: never."""
    return next((at for at, volume in result["volumes"] if volume >= goal), None)


def table(results: Mapping[tuple[Any, ...], Result], jobs: Sequence[Job]) -> str:
    """Return a row for each structure, number of workers, noise and search."""
    lines = [
        "| structure | workers | noise | search | median compute | ratio to plain (95 %) | never | seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[Any, ...], list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.structure, job.workers, job.noise, job.search), []).append(job)
    for (structure, workers, noise, search), members in groups.items():
        plain = [results[_plain(job)] for job in members]
        pairs = [(results[job.key()], goal) for job, goal in zip(members, plain, strict=True)]
        end = members[0].limit * FULL
        found = [(arrival(result, goal["best"]), end) for result, goal in pairs]
        base = [(arrival(goal, goal["best"]), end) for goal in plain]
        never = sum(at is None for at, _ in found)
        lines.append(
            f"| {structure} | {workers} | {noise:g} | {search} | {_amount(median(at for at, _ in found))} "
            f"| {'' if search == 'plain' else ratio(found, base)} | {never} | {len(members)} |"
        )
    return "\n".join(lines)


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


def _amount(compute: float) -> str:
    return "never" if math.isinf(compute) else f"{compute:.0f}"


def median(found: Iterable[float | None]) -> float:
    """Return the median compute; None and infinity: never."""
    return statistics.median(math.inf if one is None else one for one in found)


if __name__ == "__main__":
    main()
