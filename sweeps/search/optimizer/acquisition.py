"""Acquisition function that can be evaluated and optimised again after Ax has optimised it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from ax.core.observation import ObservationFeatures
from ax.generators.torch.botorch_modular.acquisition import Acquisition
from torch import Tensor

from sweeps.space.definition import Value

Point = Mapping[str, Value]

QUICK = {"num_restarts": 4, "raw_samples": 128}
"""Options for the optimisation on a published first stage, which has fewer axes than the first one."""

ROWS = 1024
"""Points of one evaluation: memory grows with them."""


class OpenAcquisition(Acquisition):  # type: ignore[misc]  # Ax ships no types
    """Ax's acquisition function, which remembers how it was optimised.

    With `fixed_features`, Ax's `gen` would build another one, whose incumbent is the best of the few trials
    with these features, with other Monte Carlo draws: the values of two such functions cannot be compared.

    Attributes:
        found: [n, d], the maximiser.
    """

    found: Tensor

    def optimize(self, n: int, search_space_digest: Any, **arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        self._digest, self._arguments = search_space_digest, arguments
        result: tuple[Tensor, Tensor, Tensor] = super().optimize(
            n=n, search_space_digest=search_space_digest, **arguments
        )
        self.found = result[0]
        return result

    def optimize_at(self, fixed: Mapping[int, float]) -> Tensor:
        """Return the maximiser, [1, d], of the same function where some columns have fixed values."""
        always = self._arguments.get("fixed_features") or {}
        arguments = {
            **self._arguments,
            "fixed_features": {**always, **fixed},
            "optimizer_options": dict(QUICK),
        }
        found: Tensor = super().optimize(n=1, search_space_digest=self._digest, **arguments)[0]
        return found

    def values(self, x_ND: Tensor) -> Tensor:
        """Return the acquisition value of each row, [N]: a logarithm, as all of Ax's choices are."""
        with torch.no_grad():
            return torch.cat([self.evaluate(X=chunk.unsqueeze(1)) for chunk in torch.split(x_ND, ROWS)])


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
            if name.partition("_OH_PARAM_")[0] in axes
        }
