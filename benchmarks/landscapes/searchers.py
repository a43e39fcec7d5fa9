"""Searchers that are replayed on landscapes: ours, Ax's client, Optuna's samplers, and random search.

One of your own is a class like these, or any callable from a `Task` to such an object: `replay` takes it as
`package.module:Name`.
"""

from __future__ import annotations

import importlib
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeGuard

import numpy as np

from benchmarks.problems import METRIC, Problem
from benchmarks.samplers import ax_client, draw, safe, suggest, unsafe
from sweeps.search.determinism import one_thread, silence
from sweeps.space.definition import Choice, Fixed, Parameter, Space, Value, number_of
from sweeps.space.domain import Domain
from sweeps.space.priors import with_priors
from sweeps.space.scale import from_unit, to_unit
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun


@dataclass(frozen=True, kw_only=True)
class Task:
    """The problem that a searcher solves.

    Args:
        space: parameters, stages with their costs, and `baseline`: known defaults to try first, or None.
        seed: of the searcher.
        workers: trials that run at a time.
    """

    space: Space
    seed: int
    workers: int = 1


class Searcher(ABC):
    """One search. Trials are numbered from 0 as they are asked for.

    Attributes:
        shares: whether a trial starts from the furthest stage or trunk that another trial has stored, and
            pays for the rest alone; else each trial pays for all of its stages.
        losses: those that were told, by trial.
    """

    shares = False

    def __init__(self, task: Task) -> None:
        self.task = task
        self.losses: dict[int, float] = {}
        self.parameters = tuple(p for p in task.space.parameters if not isinstance(p, Fixed))

    @abstractmethod
    def ask(self, trial: int) -> Mapping[str, Value]:
        """Return the parameters of a new trial."""

    def record_stage(self, trial: int, run: StageRun) -> None:  # noqa: B027 - most share nothing
        """Take in that a trial has the end of a stage, or, with `run.step`, a point of its trunk."""

    def tell(self, trial: int, loss: float) -> None:
        """Take in the loss of a trial that has ended."""
        self.losses[trial] = loss

    def choose(self) -> int:
        """Return the trial whose configuration would be used now; the default has the lowest loss."""
        return min(self.losses, key=self.losses.__getitem__)

    def known_first(self, trial: int) -> dict[str, Value] | None:
        """Return the known defaults where they are this trial, else None."""
        baseline = self.task.space.baseline
        if trial or baseline is None:
            return None
        return {p.name: baseline[p.name] for p in self.parameters}


class Ours(Searcher):
    """The optimizer of `sweeps`, over records as its workers write them; it chooses by posterior mean.

    Args:
        task: the problem.
        reuse: whether trials share stages.
        prior: whether there is a prior around the known defaults; without them there is none.
        wrong: by how much of each range the known defaults are wrong, as first trial and in the prior.
    """

    def __init__(self, task: Task, *, reuse: bool = True, prior: bool = False, wrong: float = 0.0) -> None:
        from sweeps.search.optimizer import Optimizer

        if wrong and task.space.baseline is not None:
            task = replace(task, space=replace(task.space, baseline=shift_defaults(task.space, wrong)))
        super().__init__(task)
        self.shares = reuse
        search = replace(task.space.search, seed=task.seed, reuse="auto" if reuse else "none")
        self._metric = task.space.objectives[0].metric
        space = replace(task.space, search=search)
        if prior and space.baseline is not None:
            space = with_priors(space, space.baseline)
        self._optimizer = Optimizer(space)
        self._records: list[Trial] = []

    def ask(self, trial: int) -> Mapping[str, Value]:
        if self.known_first(trial) is not None:
            record = Trial(
                trial=0,
                status="running",
                generator="baseline",
                parameters=dict(self.task.space.baseline or {}),
            )
        else:
            self._optimizer.observe(self._records)
            (found,) = self._optimizer.generate()
            record = Trial(
                trial=trial, status="running", generator=found.generator, parameters=found.parameters
            )
        self._records.append(record)
        return record.parameters

    def record_stage(self, trial: int, run: StageRun) -> None:
        record = self._records[trial]
        name = "stages" if run.step is None else "points"
        self._records[trial] = replace(record, **{name: (*getattr(record, name), run)})

    def tell(self, trial: int, loss: float) -> None:
        super().tell(trial, loss)
        self._records[trial] = replace(self._records[trial], status="completed", metrics={self._metric: loss})

    def choose(self) -> int:
        from sweeps.search.optimizer.surrogate import SURROGATE_FAILURES

        if len(self.losses) < self._optimizer.first_trials:
            return super().choose()
        self._optimizer.observe(self._records)
        points = self._optimizer.points()
        try:
            means = self._optimizer.view().predict(list(points.values()))[self._metric]
        except SURROGATE_FAILURES:
            return super().choose()
        return min(zip(points, means, strict=True), key=lambda pair: pair[1][0])[0]


def shift_defaults(space: Space, share: float) -> dict[str, Value]:
    """Return the known defaults, each moved by this share of its range away from the nearer bound."""
    values = dict(space.baseline or {})
    for parameter in space.parameters:
        if isinstance(parameter, Fixed) or parameter.name not in values:
            continue
        value = values[parameter.name]
        if isinstance(parameter, Choice):
            last, at = len(parameter.values) - 1, parameter.values.index(value)
            steps = max(1, round(share * last))
            values[parameter.name] = parameter.values[at + steps if at <= last / 2 else at - steps]
            continue
        unit = to_unit(parameter, number_of(value))
        moved = from_unit(parameter, unit + share if unit <= 0.5 else unit - share)
        values[parameter.name] = Domain(space).member(parameter.name, moved)
    return values


class Random(Searcher):
    """Uniform on the scale of each parameter."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._rng = np.random.default_rng(task.seed)

    def ask(self, trial: int) -> Mapping[str, Value]:
        return self.known_first(trial) or {p.name: draw(p, self._rng) for p in self.parameters}


class Ax(Searcher):
    """Ax used directly, as its tutorials do: one client, its defaults, and the best that it says."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        problem = Problem(
            name=task.space.name, parameters=self.parameters, function=lambda _: math.nan, optimum=math.nan
        )
        self._client = ax_client(problem, task.seed, workers=task.workers)
        self._indices: dict[int, int] = {}

    def ask(self, trial: int) -> Mapping[str, Value]:
        with one_thread(), silence("ax"):
            if (first := self.known_first(trial)) is not None:
                self._indices[trial] = self._client.attach_trial({safe(n): v for n, v in first.items()})
                return first
            ((index, parameters),) = self._client.get_next_trials(max_trials=1).items()
        self._indices[trial] = index
        return unsafe(parameters)

    def tell(self, trial: int, loss: float) -> None:
        super().tell(trial, loss)
        with one_thread(), silence("ax"):
            self._client.complete_trial(self._indices[trial], {METRIC: loss})

    def choose(self) -> int:
        with one_thread(), silence("ax"):
            _, _, index, _ = self._client.get_best_parameterization()
        return next(trial for trial, each in self._indices.items() if each == index)


class Optuna(Searcher):
    """A sampler of Optuna's, through ask and tell."""

    def __init__(self, task: Task, *, sampler: str, **options: Any) -> None:
        import optuna

        super().__init__(task)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        if sampler == "TPESampler":  # without it, workers that run side by side try the same
            options = {"constant_liar": task.workers > 1, **options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some options are experimental
            made = getattr(optuna.samplers, sampler)(seed=task.seed, **options)
        self._study = optuna.create_study(sampler=made)
        self._trials: dict[int, Any] = {}
        if (first := self.known_first(0)) is not None:
            self._study.enqueue_trial(
                {
                    p.name: p.values.index(first[p.name]) if is_ordered(p) else first[p.name]
                    for p in self.parameters
                }
            )

    def ask(self, trial: int) -> Mapping[str, Value]:
        with one_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._trials[trial] = asked = self._study.ask()
            values: dict[str, Value] = {}
            for parameter in self.parameters:
                if parameter.name in self.task.space.active(values):
                    values[parameter.name] = self._suggest(asked, parameter)
            return values

    def _suggest(self, asked: Any, parameter: Parameter) -> Value:
        if is_ordered(parameter):  # Optuna's categories have no order, but whole numbers do
            return parameter.values[asked.suggest_int(parameter.name, 0, len(parameter.values) - 1)]
        return suggest(asked, parameter)

    def tell(self, trial: int, loss: float) -> None:
        super().tell(trial, loss)
        with one_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._study.tell(self._trials[trial], loss)


def is_ordered(parameter: Parameter) -> TypeGuard[Choice]:
    """Return whether the parameter is a choice whose values have an order."""
    return isinstance(parameter, Choice) and parameter.ordered


def _peer(task: Task, *, name: str, **options: Any) -> Searcher:
    peers = importlib.import_module("benchmarks.landscapes.peers")
    made: Searcher = getattr(peers, name)(task, **options)
    return made


Factory = Callable[[Task], Searcher]

SEARCHERS: dict[str, Factory] = {
    "ours": Ours,
    "ours-plain": partial(Ours, reuse=False),
    "ours-prior": partial(Ours, prior=True),
    "ours-plain-prior": partial(Ours, prior=True, reuse=False),
    "ours-prior-wrong": partial(Ours, prior=True, wrong=0.4),
    "random": Random,
    "ax": Ax,
    "optuna-tpe": partial(Optuna, sampler="TPESampler", multivariate=True),
    "optuna-gp": partial(Optuna, sampler="GPSampler"),
    "optuna-cmaes": partial(Optuna, sampler="CmaEsSampler", warn_independent_sampling=False),
    "smac": partial(_peer, name="Smac", facade="HyperparameterOptimizationFacade"),
    "smac-gp": partial(_peer, name="Smac", facade="BlackBoxFacade"),
    "neps": partial(_peer, name="Neps"),
}
"""CMA-ES needs the package `cmaes`; it draws unordered choices at random, as Optuna does."""

EXTRA = ("optuna-cmaes", "smac", "smac-gp", "neps")
"""Those that need packages which this project does not bring."""


def find(name: str) -> Factory:
    """Return the searcher of a name, or of `package.module:Name`.

    Raises:
        ValueError: there is none.
    """
    if name in SEARCHERS:
        return SEARCHERS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(f"{name!r} is no searcher: {', '.join(SEARCHERS)}, or package.module:Name")
    try:
        found: Factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name!r} cannot be imported: {error}") from None
    return found
