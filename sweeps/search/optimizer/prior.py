"""Prior over the best configuration, as a factor of the acquisition function (πBO, arXiv 2204.11051)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from ax.adapter.transforms.one_hot import OH_PARAM_INFIX
from botorch.acquisition.acquisition import AcquisitionFunction
from torch import Tensor

from sweeps.search.encoding import Encoding, Interval
from sweeps.search.optimizer.rows import ModelRows
from sweeps.space.definition import RELATIONS, Choice, Condition, Range, Space, Value, is_number, same_value
from sweeps.space.scale import normal_share, to_unit

UNIFORM = 0.1
"""Share of a prior that is uniform, so that a wrong default excludes nothing: at the automatic width it costs
each parameter a factor of 30 at most, to the power of the exponent, which fades."""

OPTION = 0.5
"""Share of a prior that is on the default option of an unordered choice, the rest on all options alike."""

NARROWEST = 1e-9
"""Least width of a prior, as a share of the range: squares of distances in narrower ones overflow."""

OfRows = Callable[[Tensor], Tensor]
"""A number for each row of the surrogate's inputs: [..., d] to [...]."""


class LogPrior:
    """Logarithm of the prior's density at rows of the surrogate's inputs; 0 is that of a uniform one.

    A parameter counts only in rows where it is active.

    Args:
        adapter: Ax's, fitted.
    """

    def __init__(self, adapter: Any, encoding: Encoding, space: Space) -> None:
        self._columns, self._rows, self._encoding = adapter.parameters, ModelRows(adapter), encoding
        self._axes = {encoding.names[axis.name]: axis for axis in encoding.axes}
        self._conditions = space.parents()
        self._terms: list[tuple[OfRows, list[OfRows]]] = []
        for name, parameter in encoding.domain.searched.items():
            if parameter.prior is not None:
                self._terms.append((self._density(parameter), list(map(self._holds, self._path(name)))))

    def __call__(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x[..., 0])
        for density, conditions in self._terms:
            value = density(x)
            for holds in conditions:
                value = value * holds(x)
            total = total + value
        return total

    def _path(self, name: str) -> list[Condition]:
        """Return the conditions on which a parameter exists, those of its parents among them."""
        path = []
        while (condition := self._conditions.get(name)) is not None:
            path.append(condition)
            name = condition.parent
        return path

    def _density(self, parameter: Range | Choice) -> OfRows:
        prior, axis = parameter.prior, self._axes[parameter.name]
        if prior is None:
            raise ValueError(f"{parameter.name} has no prior")
        width = max(prior.width, NARROWEST)
        unit = self._encoding.unit_range(parameter.name)
        if unit is not None and is_number(prior.around):
            column, centre = self._columns.index(axis.name), to_unit(unit, prior.around)
            inside = normal_share(-centre / width, (1 - centre) / width)
            peak = (1 - UNIFORM) / (inside * width * math.sqrt(2 * math.pi))

            def density(x: Tensor) -> Tensor:
                bell = torch.exp(-(((x[..., column] - centre) / width) ** 2) / 2)
                return torch.log(UNIFORM + peak * bell)

            return density
        values = self._values(parameter)
        if isinstance(parameter, Choice) and not parameter.ordered:
            at = next(i for i, value in enumerate(values) if same_value(value, prior.around))
            shares = [(1 - OPTION) / len(values) + OPTION * (i == at) for i in range(len(values))]
        else:
            if isinstance(parameter, Range):
                units = [to_unit(parameter, float(value)) for value in values if is_number(value)]
                centre = to_unit(parameter, prior.around) if is_number(prior.around) else 0.5
            else:
                units = [i / (len(values) - 1) for i in range(len(values))]
                centre = next(u for u, v in zip(units, values, strict=True) if same_value(v, prior.around))
            bells = [math.exp(-(((at - centre) / width) ** 2) / 2) for at in units]
            shares = [UNIFORM / len(bells) + (1 - UNIFORM) * bell / math.fsum(bells) for bell in bells]
        return self._by_value(parameter, [math.log(share * len(shares)) for share in shares])

    def _holds(self, condition: Condition) -> OfRows:
        """Return whether a condition holds at rows, as 0 or 1."""
        parent = self._encoding.domain.searched[condition.parent]
        unit = self._encoding.unit_range(parent.name)
        if unit is not None and is_number(condition.value):
            column, limit = self._columns.index(self._axes[parent.name].name), to_unit(unit, condition.value)
            relation: Callable[[Any, float], Any] = RELATIONS[condition.relation]
            return lambda x: relation(x[..., column], limit).to(x)
        values = self._values(parent)
        return self._by_value(parent, [float(condition.holds({parent.name: value})) for value in values])

    def _values(self, parameter: Range | Choice) -> list[Value]:
        """Return all values of a parameter whose axis is discrete, in order."""
        axis = self._axes[parameter.name]
        return [self._encoding.value(axis.name, at) for at in _positions(axis)]

    def _by_value(self, parameter: Range | Choice, numbers: Sequence[float]) -> OfRows:
        """Return the number of each value at rows that have it, and linear interpolation between them.

        Ax's optimisers relax discrete axes for a while.
        """
        axis = self._axes[parameter.name]
        anywhere = self._encoding.at_shares({each.name: 0.5 for each in self._encoding.axes})
        rows = self._rows.rows([{**anywhere, axis.name: at} for at in _positions(axis)])
        y = torch.tensor(numbers, dtype=rows.dtype)
        if axis.name not in self._columns:  # a column for each option
            own = [
                c for c, name in enumerate(self._columns) if name.partition(OH_PARAM_INFIX)[0] == axis.name
            ]
            return lambda x: x[..., own] @ (rows[:, own].T @ y)
        column = self._columns.index(axis.name)
        at, order = rows[:, column].sort()
        y = y[order]

        def interpolated(x: Tensor) -> Tensor:
            position = x[..., column].clamp(at[0], at[-1])
            above = torch.searchsorted(at, position.detach().contiguous()).clamp(1, len(at) - 1)
            share = (position - at[above - 1]) / (at[above] - at[above - 1])
            return y[above - 1] + share * (y[above] - y[above - 1])

        return interpolated


class WithPrior(AcquisitionFunction):  # type: ignore[misc]  # BoTorch ships no types
    """Logarithmic acquisition function plus the weighted logarithm of a prior, for one candidate at a time.

    Args:
        acquisition: the function, which knows the pending points.
    """

    def __init__(self, acquisition: AcquisitionFunction, log_prior: OfRows, weight: float) -> None:
        super().__init__(model=acquisition.model)
        self.acquisition, self._log_prior, self._weight = acquisition, log_prior, weight

    def forward(self, X: Tensor) -> Tensor:
        """Return the value of [b, 1, d] points, [b]."""
        value: Tensor = self.acquisition(X) + self._weight * self._log_prior(X).mean(-1)
        return value


def _positions(axis: Any) -> Sequence[Value]:
    if isinstance(axis, Interval):
        low, high = axis.bounds
        return range(int(low), int(high) + 1)
    values: Sequence[Value] = axis.values
    return values
