"""A fitted adapter of Ax: points of the search as rows of its inputs, the model and scale of a metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from ax.adapter.transforms.one_hot import OH_PARAM_INFIX
from ax.core.observation import ObservationFeatures
from torch import Tensor

from sweeps.search.sequence import Point


def metric_model(adapter: Any, name: str) -> Any:
    """Return the model of one metric. Raises RuntimeError: the metrics are modelled together."""
    surrogate = adapter.generator.surrogate
    models = getattr(surrogate.model, "models", None)
    if models is None and surrogate.model.num_outputs > 1:
        raise RuntimeError("the metrics are modelled together")
    return surrogate.model if models is None else models[surrogate.outcomes.index(name)]


def metric_scale(adapter: Any, name: str) -> tuple[float, float]:
    """Return the mean and the standard deviation by which a metric's results were standardised."""
    scale = adapter.transforms["Standardize"]
    return float(scale.Ymean[name]), float(scale.Ystd[name])


def option_columns(names: Sequence[str]) -> list[list[int]]:
    """Return the columns of each unordered choice, by the names of all columns."""
    groups: dict[str, list[int]] = {}
    for column, name in enumerate(names):
        if OH_PARAM_INFIX in name:
            groups.setdefault(name.partition(OH_PARAM_INFIX)[0], []).append(column)
    return list(groups.values())


class ModelRows:
    """Points on the axes of the search as rows of the surrogate's inputs, and back.

    Args:
        adapter: Ax's, fitted.
    """

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def rows(self, points: Sequence[Point]) -> Tensor:
        """Return [N, d] for points that have all axes."""
        features = [ObservationFeatures(dict(point)) for point in points]
        for transform in self._adapter.transforms.values():
            features = transform.transform_observation_features(features)
        rows = [[float(f.parameters[name]) for name in self._adapter.parameters] for f in features]
        return torch.tensor(rows, dtype=torch.double)

    def point(self, row: Tensor) -> Point:
        """Return the active axes at a row."""
        features = [ObservationFeatures(dict(zip(self._adapter.parameters, row.tolist(), strict=True)))]
        for transform in reversed(list(self._adapter.transforms.values())):
            features = transform.untransform_observation_features(features)
        point: Point = features[0].parameters
        return point

    def columns(self, row: Tensor, axes: frozenset[str]) -> dict[int, float]:
        """Return the row's values in the columns of these axes; an unordered choice has one per option."""
        return {
            column: float(row[column])
            for column, name in enumerate(self._adapter.parameters)
            if name.partition(OH_PARAM_INFIX)[0] in axes
        }
