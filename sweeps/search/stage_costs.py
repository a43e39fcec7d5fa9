"""Cost of each stage of a trial: what the space states, else a model of the seconds that trials reported."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from sweeps.search.arrays import Floats
from sweeps.search.encoding import Encoding, Options, unit_at
from sweeps.space.definition import Value
from sweeps.space.stages import Stages
from sweeps.trials.record import Trial

Costs = Callable[[Mapping[str, Value]], tuple[float, ...]]
"""Function from a trial's parameters to the cost of each of its stages, in order."""

SHRINKAGE = 0.1
"""Ridge penalty on the slopes: a tenth of one observation at the end of a range."""

SMALLEST = 1e-3
"""Smallest cost of a stage as a share of all stages: logarithms and ratios of costs stay finite."""


class StageCosts:
    """Costs of the stages of a sweep."""

    def __init__(self, stages: Stages, encoding: Encoding) -> None:
        self._stages, self._encoding = stages, encoding
        self._stated = stages.costs(encoding.domain.middle()) is not None

    def known(self, records: Iterable[Trial]) -> Costs:
        """Return the costs that follow from the space, or else from the records.

        Stages that no trial has reported are taken to cost the same as the mean of the others.
        """
        modelled = None if self._stated else self._modelled(records)

        def positive(parameters: Mapping[str, Value]) -> tuple[float, ...]:
            if modelled is None:
                stated = self._stages.costs(parameters) or {}
                found = tuple(stated[name] for name in self._stages.names)
            else:
                found = modelled(parameters)
            least = SMALLEST * math.fsum(found) or 1.0
            return tuple(max(cost, least) for cost in found)

        return positive

    def first_share(self, records: Iterable[Trial]) -> float:
        """Return the first stage's share of the cost of a trial in the middle of the space."""
        costs = self.known(records)(self._encoding.domain.middle())
        return costs[0] / math.fsum(costs)

    def _modelled(self, records: Iterable[Trial]) -> Costs:
        """Return exponentials of linear regressions of log seconds, one for each stage."""
        points: list[list[Mapping[str, Value]]] = [[] for _ in self._stages.names]
        logs: list[list[float]] = [[] for _ in self._stages.names]
        for record in records:
            for run in record.stages:
                if run.seconds and run.reused_from is None and run.name in self._stages.names:
                    stage = self._stages.names.index(run.name)
                    points[stage].append(record.parameters)
                    logs[stage].append(math.log(run.seconds))
        models = [self._model(stage, *data) for stage, data in enumerate(zip(points, logs, strict=True))]
        reported = [model for model in models if model is not None]

        def costs(parameters: Mapping[str, Value]) -> tuple[float, ...]:
            mean = math.fsum(model(parameters) for model in reported) / len(reported) if reported else 1.0
            return tuple(mean if model is None else model(parameters) for model in models)

        return costs

    def _model(
        self, stage: int, points: Sequence[Mapping[str, Value]], logs: Sequence[float]
    ) -> Callable[[Mapping[str, Value]], float] | None:
        if not logs:
            return None
        center = float(np.mean(logs))
        x_NF = np.array([self._features(stage, parameters) for parameters in points])
        middle_F = x_NF.mean(axis=0)
        x_NF -= middle_F
        slopes_F = np.linalg.solve(
            x_NF.T @ x_NF + SHRINKAGE * np.eye(x_NF.shape[1]), x_NF.T @ (np.array(logs) - center)
        )
        low, high = min(logs) - 1.0, max(logs) + 1.0  # a line far from its data says little

        def seconds(parameters: Mapping[str, Value]) -> float:
            guess = center + float((self._features(stage, parameters) - middle_F) @ slopes_F)
            return math.exp(min(max(guess, low), high))

        return seconds

    def _features(self, stage: int, parameters: Mapping[str, Value]) -> Floats:
        """Return the position on each axis of this stage and those before it; 0.5 where it is inactive."""
        point = self._encoding.encode(self._encoding.domain.configuration(parameters, repeat=True)) or {}
        features = []
        for axis in self._encoding.axes:
            if self._stages.position(self._encoding.names[axis.name]) > stage:
                continue
            value = point.get(axis.name)
            if isinstance(axis, Options):
                features += [float(value == option) for option in axis.values]
            else:
                features.append(0.5 if value is None else unit_at(axis, value))
        return np.array(features)
