"""Searchers of packages that this project does not depend on, see README.md for how to install them.

They are imported where one is made.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping
from typing import Any

from benchmarks.landscapes.searchers import Searcher, Task, is_ordered
from sweeps.search.determinism import one_thread
from sweeps.space.definition import Choice, Range, Value

TRIALS = 30
"""Length of a search that SMAC is told: a quarter of it is the first design at most."""


class Smac(Searcher):
    """SMAC: its facade for black boxes, a Gaussian process, or that for hyperparameters, a random forest."""

    def __init__(self, task: Task, *, facade: str) -> None:
        import ConfigSpace
        import smac

        super().__init__(task)
        space = ConfigSpace.ConfigurationSpace(seed=task.seed)
        for parameter in self.parameters:
            space.add(_config_space(ConfigSpace, parameter))
        self._folder = tempfile.TemporaryDirectory()
        scenario = smac.Scenario(
            space,
            n_trials=TRIALS,
            deterministic=True,
            seed=task.seed,
            n_workers=1,
            output_directory=self._folder.name,
        )
        self._space = space
        self._smac = getattr(smac, facade)(
            scenario, target_function=lambda config, seed=0: 0.0, logging_level=False, overwrite=True
        )
        self._trials: dict[int, Any] = {}

    def ask(self, trial: int) -> Mapping[str, Value]:
        if (first := self.known_first(trial)) is not None:
            import ConfigSpace
            from smac.runhistory.dataclasses import TrialInfo

            config = ConfigSpace.Configuration(self._space, values=first)
            self._trials[trial] = TrialInfo(config, seed=0)
            return first
        with one_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._trials[trial] = asked = self._smac.ask()
        return {p.name: _plain(asked.config[p.name]) for p in self.parameters}

    def tell(self, trial: int, loss: float) -> None:
        from smac.runhistory.dataclasses import TrialValue

        super().tell(trial, loss)
        with one_thread():
            self._smac.tell(self._trials[trial], TrialValue(cost=loss), save=False)


def _config_space(package: Any, parameter: Range | Choice) -> Any:
    if isinstance(parameter, Range):
        kind = package.UniformIntegerHyperparameter if parameter.kind == "int" else None
        made = kind or package.UniformFloatHyperparameter
        return made(parameter.name, parameter.min, parameter.max, log=parameter.log)
    made = package.OrdinalHyperparameter if parameter.ordered else package.CategoricalHyperparameter
    return made(parameter.name, list(parameter.values))


class Neps(Searcher):
    """NePS's Bayesian optimisation; with known defaults, with a prior around them (πBO)."""

    def __init__(self, task: Task) -> None:
        import botorch.models.gp_regression as gp_regression
        from botorch.models.transforms.outcome import Log

        gp_regression.Log = Log  # type: ignore[attr-defined]  # BoTorch 0.12, which NePS wants, had it there
        import neps

        super().__init__(task)
        first = self.known_first(0)
        space = neps.SearchSpace(
            {p.name: _neps(neps, p, None if first is None else first[p.name]) for p in self.parameters}
        )
        if first is None:
            optimizer = neps.algorithms.bayesian_optimization(space)
        else:
            optimizer = neps.algorithms.pibo(space, sample_prior_first=True)
        self._neps = neps.AskAndTell(optimizer)
        self._trials: dict[int, Any] = {}

    def ask(self, trial: int) -> Mapping[str, Value]:
        from sweeps.search.determinism import seeded, stable_seed

        with one_thread(), seeded(stable_seed(self.task.seed, trial, "neps")), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._trials[trial] = asked = self._neps.ask()
        found = {p.name: _plain(asked.config[p.name]) for p in self.parameters}
        return {
            p.name: p.values[int(found[p.name])] if is_ordered(p) else found[p.name] for p in self.parameters
        }

    def tell(self, trial: int, loss: float) -> None:
        super().tell(trial, loss)
        with one_thread():
            self._neps.tell(self._trials[trial], loss)


def _neps(package: Any, parameter: Range | Choice, default: Value | None) -> Any:
    prior: dict[str, Any] = {} if default is None else {"prior": default, "prior_confidence": "medium"}
    if isinstance(parameter, Range):
        made = package.HPOInteger if parameter.kind == "int" else package.HPOFloat
        return made(parameter.min, parameter.max, log=parameter.log, **prior)
    if parameter.ordered:
        prior |= {} if default is None else {"prior": parameter.values.index(default)}
        return package.HPOInteger(0, len(parameter.values) - 1, **prior)
    return package.HPOCategorical(list(parameter.values), **prior)


def _plain(value: Any) -> Any:
    """Return numpy's numbers as Python's."""
    return value.item() if hasattr(value, "item") else value
