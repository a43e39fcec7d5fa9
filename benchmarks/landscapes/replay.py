"""Replays searchers on landscapes in simulated time, see README.md: `python -m benchmarks.landscapes replay`.

A trial takes as long as what it trains costs, in effective steps. A searcher that shares stages starts from
the furthest end or trunk that is stored when it asks, and trials store theirs as they come by them.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import json
import multiprocessing
import pickle
import statistics
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.json_lines import end_last_line, read_lines
from benchmarks.landscapes.emulator import Array, Emulator
from benchmarks.landscapes.searchers import Searcher, Task, find
from benchmarks.landscapes.tables import METRIC, RANDOM, Row, load_space, read
from sweeps.space.definition import Fixed, Space, Value
from sweeps.space.stages import Stages
from sweeps.trials.stage_run import StageRun

Result = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One replayed search.

    Args:
        landscape: its name.
        searcher: its name, or `package.module:Name`.
        seed: of the searcher and of the noise.
        workers: trials at a time.
        noise: whether losses have the noise of seeds.
        defaults: whether the known defaults are the first trial.
        trials: paid compute at its end, in trials that pay all stages of the defaults.
    """

    landscape: str
    searcher: str
    seed: int
    workers: int = 1
    noise: bool = False
    defaults: bool = False
    trials: int = 30


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """A landscape to search.

    Args:
        space: with its stages, as `sweep init` completes it.
        losses: true losses of configurations.
        residuals: noise of seeds: repeats of configurations minus their means, scaled to the variance of one.
        full: effective steps of the defaults, all stages trained.
    """

    space: Space
    losses: Callable[[Sequence[Row]], Array]
    residuals: Array
    full: float
    stages: Stages = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", Stages(self.space))

    def loss(self, parameters: Mapping[str, Value]) -> float:
        """Return the true loss of a configuration, which may leave out what is not searched."""
        fixed = {p.name: p.value for p in self.space.parameters if isinstance(p, Fixed)}
        return float(self.losses([fixed | dict(parameters)])[0])

    def noise(self, seed: int, trial: int) -> float:
        """Return the noise of a trial, which all searchers of a seed have in common."""
        return float(np.random.default_rng((seed, trial)).choice(self.residuals))

    def costs(self, parameters: Mapping[str, Value]) -> list[float]:
        """Return the effective steps of each stage; of all together where nothing can be shared."""
        stated = self.stages.costs(parameters)
        return list(stated.values()) if stated else [self.full]


_fitted: Path | None = None
"""Folder in which the processes of a replay find what one of them has fitted."""


def _find_fitted_in(folder: Path) -> None:
    global _fitted
    _fitted = folder


@functools.cache
def emulator(name: str) -> Emulator:
    """Return the emulator of a landscape, fitted to its whole table: half a minute."""
    if _fitted is not None and (file := _fitted / name).exists():
        kept: Emulator = pickle.loads(file.read_bytes())
        return kept
    return Emulator(name, [row for row in read(name) if row[METRIC] == row[METRIC]])


def _fit(name: str, folder: Path) -> None:
    (folder / name).write_bytes(pickle.dumps(emulator(name)))


@functools.cache
def load(name: str) -> Landscape:
    """Return a landscape of the repository."""
    import sweeps

    with tempfile.TemporaryDirectory() as folder:
        space = sweeps.create(load_space(name), storage=folder).experiment.space
    rows = [row for row in read(name) if row[METRIC] == row[METRIC]]
    repeated = [
        np.array([float(row[METRIC]) for row in rows if row["kind"] == kind])
        for kind in sorted({row["kind"] for row in rows} - {RANDOM})
    ]
    residuals = [(each - each.mean()) * np.sqrt(len(each) / (len(each) - 1)) for each in repeated]
    return Landscape(
        space=space,
        losses=emulator(name),
        residuals=np.concatenate(residuals),
        full=next(float(row["cost_nominal"]) for row in rows if row["kind"] == "defaults"),
    )


@dataclass(frozen=True, order=True)
class Event:
    """The time at which a trial reaches a step of a stage's trunk, or a stage's end; the last is its own."""

    at: float
    trial: int
    stage: int
    step: int | float = float("inf")
    """Step of the stage; infinity for its end."""


@dataclass
class _Running:
    """Parameters of a trial, and the stage and step at which it starts from what `source` has stored."""

    parameters: Mapping[str, Value]
    stage: int = 0
    step: int = 0
    source: int | None = None


class Simulation:
    """Workers that share one searcher; time is effective steps.

    Attributes:
        curve: for each trial that has ended: paid compute, true loss of the searcher's choice, and true loss
            of the trial with the lowest loss so far.
        reused: number of trials that started from what another had stored.
        ask_seconds: CPU seconds of each ask.
    """

    def __init__(self, landscape: Landscape, searcher: Searcher, run: Run) -> None:
        self._landscape, self._searcher, self._run = landscape, searcher, run
        # A sweep that shares nothing neither stores anything.
        self._stages = landscape.stages if searcher.shares and landscape.stages.shared else None
        self._events: list[Event] = []
        self._trials: list[_Running] = []
        self._true: list[float] = []
        self._told: dict[int, float] = {}
        self._ends: dict[Hashable, int] = {}
        self._points: dict[Hashable, dict[int, int]] = {}
        self.curve: list[tuple[float, float, float]] = []
        self.reused = 0
        self.ask_seconds: list[float] = []

    def run(self) -> None:
        """Simulate until the compute is paid; what runs then is left out."""
        limit = self._run.trials * self._landscape.full
        for _ in range(self._run.workers):
            self._ask(0.0)
        while True:
            event = heapq.heappop(self._events)
            if (now := event.at) * self._run.workers > limit:
                return
            if self._is_last(event):
                self._end(event)
                self._ask(now)
            else:
                self._store(event)

    def _is_last(self, event: Event) -> bool:
        """Return whether the event is the end of a trial."""
        costs = self._landscape.costs(self._trials[event.trial].parameters)
        return event.stage == len(costs) - 1 and event.step == float("inf")

    def _ask(self, now: float) -> None:
        index, begun = len(self._trials), time.process_time()
        parameters = self._searcher.ask(index)
        self.ask_seconds.append(time.process_time() - begun)
        trial = _Running(parameters) if self._stages is None else self._start(self._stages, parameters)
        self._trials.append(trial)
        self._true.append(self._landscape.loss(parameters))
        self.reused += trial.source is not None
        for stage, cost in enumerate(self._landscape.costs(parameters)):
            if stage < trial.stage:
                if self._stages is not None:
                    end = (stage, self._stages.end_identity(parameters, stage))
                    source = self._ends.get(end, index)
                    run = StageRun(
                        name=self._stages.names[stage], key=_key(source, stage), cost=cost, reused_from=source
                    )
                    self._searcher.record_stage(index, run)
                continue
            begun_at, steps = (trial.step if stage == trial.stage else 0), 0
            if self._stages is not None and (trunk := self._stages.trunk(stage)) is not None:
                steps = self._stages.length(parameters, stage) or 0
                last = self._stages.trunk_end(parameters, stage) or 0
                points = {*range(trunk.every, last + 1, trunk.every), last} if trunk.every else {last}
                for point in sorted(point for point in points if point > begun_at):
                    at = now + cost * (point - begun_at) / steps
                    heapq.heappush(self._events, Event(at, index, stage, point))
            now += cost * (1 - begun_at / steps) if begun_at else cost
            heapq.heappush(self._events, Event(now, index, stage))

    def _start(self, stages: Stages, parameters: Mapping[str, Value]) -> _Running:
        """Return where a trial starts now: at the furthest end or point that is stored."""
        for stage in reversed(range(len(stages.names))):
            end = stages.trunk_end(parameters, stage) if stage in stages.with_trunk else None
            if end is not None:
                points = self._points.get((stage, stages.trunk_identity(parameters, stage)), {})
                if usable := [step for step in points if step <= end]:
                    return _Running(parameters, stage, max(usable), points[max(usable)])
            if stage:
                source = self._ends.get((stage - 1, stages.end_identity(parameters, stage - 1)))
                if source is not None:
                    return _Running(parameters, stage, 0, source)
        return _Running(parameters)

    def _store(self, event: Event) -> None:
        if (stages := self._stages) is None:
            return
        trial, stage = self._trials[event.trial], event.stage
        cost = self._landscape.costs(trial.parameters)[stage]
        run = StageRun(name=stages.names[stage], key=_key(event.trial, stage), cost=cost, snapshot=True)
        steps = stages.length(trial.parameters, stage) or 1
        if isinstance(event.step, int):
            step = event.step
            run = replace(run, key=_key(event.trial, stage, step), cost=cost * step / steps, step=step)
            found = self._points.setdefault((stage, stages.trunk_identity(trial.parameters, stage)), {})
            found.setdefault(step, event.trial)
        else:
            self._ends.setdefault((stage, stages.end_identity(trial.parameters, stage)), event.trial)
        if stage == trial.stage and trial.step:
            run = replace(
                run, branched_from=trial.source, branched_at=trial.step, saved=cost * trial.step / steps
            )
        self._searcher.record_stage(event.trial, run)

    def _end(self, event: Event) -> None:
        index = event.trial
        noise = self._landscape.noise(self._run.seed, index) if self._run.noise else 0.0
        self._told[index] = self._true[index] + noise
        self._searcher.tell(index, self._told[index])
        lowest = min(self._told, key=self._told.__getitem__)
        paid = event.at * self._run.workers
        self.curve.append((paid, self._true[self._searcher.choose()], self._true[lowest]))


def _key(trial: int, stage: int, step: int = 0) -> str:
    return f"{trial:052x}{stage:04x}{step:08x}"


def simulate(run: Run, landscape: Landscape | None = None) -> Result:
    """Return one search as a line of the results; without a landscape, on the repository's of that name."""
    landscape = landscape or load(run.landscape)
    begun = time.process_time()
    space = landscape.space if run.defaults else replace(landscape.space, baseline=None)
    searcher = find(run.searcher)(Task(space=space, seed=run.seed, workers=run.workers))
    simulation = Simulation(landscape, searcher, run)
    simulation.run()
    return {
        "run": asdict(run),
        "full": landscape.full,
        "curve": changes(simulation.curve),
        "trials": len(simulation.curve),
        "reused": simulation.reused,
        "cpu": round(time.process_time() - begun, 1),
        "ask_cpu": round(statistics.median(simulation.ask_seconds), 3),
    }


def changes(curve: Iterable[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    """Return the points of a curve at which a loss changes, rounded: between them it stays as it was."""
    kept: list[tuple[float, float, float]] = []
    for paid, own, low in curve:
        point = (round(paid, 3), round(own, 6), round(low, 6))
        if not kept or point[1:] != kept[-1][1:]:
            kept.append(point)
    return kept


def read_results(path: Path) -> dict[Run, Result]:
    """Return the results in a file; its last line may be half of one, of a replay that was killed."""
    return {Run(**result["run"]): result for result in read_lines(path)}


def replay(runs: Iterable[Run], path: Path, processes: int) -> dict[Run, Result]:
    """Return the result of each run, from the file where that has it; new ones are appended to it."""
    wanted = list(dict.fromkeys(runs))
    results = read_results(path)
    missing = [run for run in wanted if run not in results]
    end_last_line(path)
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(
            processes, multiprocessing.get_context("spawn"), _find_fitted_in, (Path(folder),)
        ) as pool,
        path.open("a", encoding="utf-8") as lines,
    ):
        fit = functools.partial(_fit, folder=Path(folder))
        list(pool.map(fit, sorted({run.landscape for run in missing})))
        waiting = [pool.submit(simulate, run) for run in missing]
        for done in as_completed(waiting):
            result = done.result()
            run = Run(**result["run"])
            results[run] = result
            print(json.dumps(result), file=lines, flush=True)
            print(
                *asdict(run).values(),
                f"| {result['trials']} trials, {result['cpu']:.0f} s of CPU",
                flush=True,
            )
    return {run: results[run] for run in wanted}


def group_results(results: Mapping[Run, Result]) -> dict[Run, dict[str, list[Result]]]:
    """Return results by what searchers are compared on (a run without searcher and seed), and by searcher."""
    groups: dict[Run, dict[str, list[Result]]] = {}
    for run, result in sorted(results.items(), key=lambda item: item[0].seed):
        group = groups.setdefault(replace(run, searcher="", seed=0), {})
        group.setdefault(run.searcher, []).append(result)
    return groups


def runs(
    landscapes: Sequence[str],
    searchers: Sequence[str],
    seeds: Sequence[int],
    workers: Sequence[int],
    **options: Any,
) -> list[Run]:
    """Return the runs of all combinations, seed by seed, so that a replay that is stopped compares some."""
    return [
        Run(landscape=landscape, searcher=searcher, seed=seed, workers=number, **options)
        for seed, number, landscape, searcher in itertools.product(seeds, workers, landscapes, searchers)
    ]
