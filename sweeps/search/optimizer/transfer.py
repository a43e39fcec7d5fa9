"""Surrogates of an earlier sweep's results: where it is best, and what it says of a new one's."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from ax.api.utils.instantiation.from_string import optimization_config_from_string
from ax.core.data import Data, DataRow
from ax.core.search_space import SearchSpace

from sweeps.search.determinism import one_thread, seeded, silence, stable_seed
from sweeps.search.encoding import Encoding, Interval, Options
from sweeps.search.front import best_by_front, most_added
from sweeps.search.optimizer import ax_experiment
from sweeps.search.optimizer.drift import Belief
from sweeps.search.optimizer.optimum import Marginals, SpacePoints
from sweeps.search.optimizer.surrogate import fitted
from sweeps.search.outcomes import Outcomes
from sweeps.space.definition import Source, Value
from sweeps.space.scale import middle

log = logging.getLogger(__name__)

BEST_TRIALS = 8
"""Results of a source whose neighbourhood is searched for its optimum."""

NEAR_POINTS = 1024


class SourceModel:
    """Surrogate of a source's results, on the axes of this sweep, one for each objective.

    Attributes:
        belief: what that of the first objective says.

    Raises:
        one of SURROGATE_FAILURES: the fit failed.
    """

    def __init__(self, source: Source, encoding: Encoding, outcomes: Outcomes, seed: int) -> None:
        self._source, self._encoding, self._seed = source, encoding, seed
        self._bests = list[dict[str, Value] | None]()
        self._signs = [1.0 if low else -1.0 for low in outcomes.lower_is_better.values()]
        fits = []
        for at, name in enumerate(outcomes.lower_is_better):
            with one_thread(), silence("ax"), seeded(seed):
                fits.append((*self._fit(outcomes, name, at), name))
        self._models = [
            Marginals(adapter, name, sign) for (adapter, _, name), sign in zip(fits, self._signs, strict=True)
        ]
        numbers = [axis.name for axis in encoding.axes if isinstance(axis, Interval) or axis.ordered]
        adapter, space, _ = fits[0]
        self.belief = Belief(adapter, numbers, space)

    def _fit(self, outcomes: Outcomes, name: str, at: int) -> tuple[Any, SearchSpace]:
        """Return Ax's adapter, fitted to one objective's results, and this sweep's axes as Ax has them."""
        encoding = self._encoding
        axes = {parameter: axis for axis, parameter in encoding.names.items()}
        goals = {name: outcomes.lower_is_better[name]}
        # With its hierarchy, Ax would drop every point that has a value on an axis that is switched off.
        flat = [replace(axis, dependents={}) if isinstance(axis, Options) else axis for axis in encoding.axes]
        experiment = ax_experiment.new_experiment("source", flat, (), goals)
        rows = []
        for index, result in enumerate(self._source.results):
            known = {axes[key]: encoding.encoded(key, value) for key, value in result.parameters.items()}
            # Spread over what the source has not searched, the surrogate learns that nothing depends on it.
            point = encoding.on_all_axes(known, stable_seed(self._seed, index, "inactive"))
            trial = ax_experiment.attach(experiment, point, {})
            ax_experiment.settle(trial, "completed")
            rows.append(DataRow(trial.index, trial.arm.name, name, name, result.values[at], math.nan))
        goal = optimization_config_from_string(f"-{name}" if goals[name] else name)
        return fitted(experiment, Data(data_rows=rows), goal), experiment.search_space

    def best(self, others: Mapping[str, Value]) -> dict[str, Value] | None:
        """Return the parameters where the surrogate is best; None if its best lie outside of this space.

        With several objectives they are those of the front that add most hypervolume. None, too, where
        results are so large that their squares are no numbers.

        Args:
            others: values of what the source does not have.
        """
        if not self._bests:
            with one_thread(), silence("ax"):
                try:
                    self._bests.append(self._find_best(others))
                except ArithmeticError as error:
                    log.warning("%s proposes no trial: %s", self._source.url, error)
                    self._bests.append(None)
        return self._bests[0]

    def _find_best(self, others: Mapping[str, Value]) -> dict[str, Value] | None:
        source, encoding, domain = self._source, self._encoding, self._encoding.domain
        matched = {key for result in source.results for key in result.parameters}
        # Of all parameters: a best option may switch on one that the source does not have.
        middles = {name: middle(parameter) for name, parameter in domain.searched.items()}

        def points(many: Iterable[Mapping[str, Value]]) -> list[dict[str, Value]]:
            found = []
            for values in many:
                kept = {key: domain.member(key, value) for key, value in values.items() if key in matched}
                parameters = domain.complete({**middles, **others, **source.filled, **kept})
                point = encoding.encode(parameters)
                if point is not None and domain.allows(parameters):
                    found.append(encoding.on_all_axes(point, self._seed))
            return found

        measured = np.array([result.values for result in source.results]) * self._signs
        ranked = best_by_front(measured, BEST_TRIALS)
        tried = points(source.results[at].parameters for at in ranked)
        if not tried:
            return None
        space = SpacePoints(encoding, np.random.default_rng(self._seed), self._seed)
        tried += points(map(encoding.values, space.near(tried, NEAR_POINTS)))
        costs = np.stack([model.at(tried)[0] for model in self._models], axis=1)
        chosen = most_added(costs, np.empty((0, len(self._models))))
        return encoding.decode(tried[chosen or 0])
