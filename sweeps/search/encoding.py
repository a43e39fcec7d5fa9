"""Encoding of a space's parameters for Ax: safe names, and floats between 0 and 1.

`optimizer` makes Ax parameters of the axes here, and passes every value through `encode` and `decode`. Ax
does not get the ranges themselves, because it refuses ranges narrower than 1.5e-5 (a learning rate from 1e-6
to 1e-5), lists every integer of a range (gigabytes for 1 to 10^8), optimises its acquisition function in the
original units, and its SymPy takes a parameter called `beta` for a function.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from sweeps.search.determinism import stable_seed
from sweeps.space.constraints import Linear
from sweeps.space.definition import Choice, Range, Value, cell_of, is_number, number_of, same_value
from sweeps.space.domain import Domain
from sweeps.space.scale import from_unit, level, levels, position, to_unit

MARGIN = 1e-7
"""By how much a constraint on a float is tighter for Ax, which may overstep it by 1e-8."""

WIDE = 100
"""Ranges of integers or steps that are at least this wide are searched as floats and rounded."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Numeric axis: floats from 0 to 1, or integers: those of the range, or the positions of its steps."""

    name: str
    bounds: tuple[float, float] = (0.0, 1.0)
    kind: Literal["int", "float"] = "float"
    log: bool = False


@dataclass(frozen=True, kw_only=True)
class Options:
    """Discrete axis; `dependents` are the axes that exist only under a value."""

    name: str
    values: tuple[Value, ...]
    kind: str
    ordered: bool
    dependents: Mapping[Value, list[str]]


Axis = Interval | Options


class Encoding:
    """Translation between the searched parameters of a domain and the axes of the search.

    Attributes:
        axes: one for every searched parameter, in the same order.
        names: the parameter of each axis.
        constraints: the parameter constraints in the axes' names and units, as text.
    """

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self._names = {name: f"p{position}" for position, name in enumerate(domain.searched)}
        self._units: dict[str, Range] = {}  # the float range that 0 to 1 stand for
        for name, parameter in domain.searched.items():
            if not isinstance(parameter, Range):
                continue
            count = levels(parameter)
            if count is not None and count <= WIDE and parameter.normal is None:
                continue  # an axis of integers
            if count is not None and domain.rounding(name) is round:
                # Half a step on either side gives the first and the last value the same share as the others.
                half = 0.4999 * (parameter.step or 1)
                parameter = replace(parameter, min=parameter.min - half, max=parameter.max + half)
            self._units[name] = parameter
        self.names: Mapping[str, str] = {axis: name for name, axis in self._names.items()}
        self.axes: tuple[Axis, ...] = tuple(self._axis(p) for p in domain.searched.values())
        self.constraints = tuple(self._scaled(constraint) for constraint in domain.constraints)

    def encode(self, parameters: Mapping[str, Value]) -> dict[str, Value] | None:
        """Return the searched parameters on their axes; None if they do not belong to this space."""
        if self.domain.misfit(parameters) is not None:
            return None
        active = self.domain.active(parameters)
        return {self._names[name]: self.encoded(name, parameters[name]) for name in active}

    def on_all_axes(self, point: Mapping[str, Value], seed: int) -> dict[str, Value]:
        """Return the point on all axes, with a value drawn from the seed on each inactive axis.

        The surrogate sees all axes. With inactive axes always in the middle, it would take the rest of each
        for unexplored (7.515 in place of 7.512 on a two-stage function whose optimum is 7.511); with them
        spread out, it learns that nothing depends on them.
        """
        return {
            axis.name: point[axis.name]
            if axis.name in point
            else _uniform(axis, stable_seed(seed, axis.name))
            for axis in self.axes
        }

    def active_for_ax(self, everywhere: Mapping[str, Value]) -> dict[str, Value]:
        """Return, of a point on all axes, those axes that Ax takes for active.

        For Ax, options switch parameters on and off, but numbers do not. A point without the child of a
        number would lie outside of Ax's space, and its result be left out of the model without a word.
        """
        parents: dict[str, list[tuple[str, Value]]] = {}
        for axis in self.axes:
            if isinstance(axis, Options):
                for value, children in axis.dependents.items():
                    for child in children:
                        parents.setdefault(child, []).append((axis.name, value))

        def is_active(name: str) -> bool:
            switches = parents.get(name)
            return switches is None or any(
                everywhere[parent] == value and is_active(parent) for parent, value in switches
            )

        return {name: value for name, value in everywhere.items() if is_active(name)}

    def at_shares(self, shares: Mapping[str, float]) -> dict[str, Value]:
        """Return the point at these shares, from 0 to below 1, of each axis."""
        return {axis.name: at_share(axis, shares[axis.name]) for axis in self.axes}

    def decode(self, point: Mapping[str, Value]) -> dict[str, Value]:
        """Return the active and fixed parameters at a point, rounded and within bounds."""
        return self.domain.complete(self.values(point))

    def values(self, point: Mapping[str, Value]) -> dict[str, Value]:
        """Return the value of every parameter that has an axis in the point, active or not."""
        values = {}
        for name, axis in self._names.items():
            if axis in point:
                values[name] = self.value(axis, point[axis])
        return values

    def distance(self, first: Mapping[str, Value], second: Mapping[str, Value]) -> float:
        """Return the largest difference on any axis as a share of its range, on its scale (the max-norm).

        Infinity between points that differ in the value of a choice, or in which axes are active.
        """
        if first.keys() != second.keys():
            return math.inf
        largest = 0.0
        for axis in self.axes:
            if axis.name not in first:
                continue
            if isinstance(axis, Options):
                if not same_value(first[axis.name], second[axis.name]):
                    return math.inf
            else:
                apart = unit_at(axis, first[axis.name]) - unit_at(axis, second[axis.name])
                largest = max(largest, abs(apart))
        return largest

    def value(self, axis: str, at: Value) -> Value:
        """Return the parameter value at a position on an axis, rounded and within bounds."""
        name = self.names[axis]
        parameter = self.domain.searched[name]
        if isinstance(parameter, Choice):
            members = (member for member in parameter.values if same_value(option_of(parameter, member), at))
            at = next(members, at)
        elif is_number(at):
            if name in self._units:
                at = from_unit(self._units[name], float(at))
            elif parameter.step is not None:
                at = level(parameter, round(float(at)))
        return self.domain.member(name, at)

    def unit_range(self, name: str) -> Range | None:
        """Return the range that 0 to 1 on its axis stand for; None if the axis has other bounds."""
        return self._units.get(name)

    def line(self, name: str) -> tuple[float, float]:
        """Return a linear range's value at position 0 of its axis, and how much a position more adds."""
        if name in self._units:
            low, high = self._units[name].min, self._units[name].max
            return low, high - low
        parameter = self.domain.searched[name]
        if isinstance(parameter, Range) and parameter.step is not None:
            return parameter.min, parameter.step
        return 0.0, 1.0

    def _axis(self, parameter: Range | Choice) -> Axis:
        name = self._names[parameter.name]
        if isinstance(parameter, Range):
            if parameter.name in self._units:
                return Interval(name=name)
            bounds = (parameter.min, parameter.max)
            if parameter.step is not None:
                bounds = (0, (levels(parameter) or 1) - 1)
            return Interval(name=name, bounds=bounds, kind="int", log=parameter.log)
        switched = {
            self.encoded(parameter.name, value): [self._names[c] for c in children if c in self._names]
            for value, children in parameter.when
        }
        return Options(
            name=name,
            values=tuple(self.encoded(parameter.name, value) for value in parameter.values),
            kind=kind_of(parameter),
            ordered=parameter.ordered or len(parameter.values) == 2,
            dependents={value: names for value, names in switched.items() if names},
        )

    def encoded(self, name: str, value: Value) -> Value:
        """Return a value on its axis, also of a number outside of its range.

        Raises:
            ValueError, TypeError: it is a value of another space.
        """
        parameter = self.domain.searched[name]
        if isinstance(parameter, Choice):
            if not any(same_value(value, member) for member in parameter.values):
                raise ValueError(f"{value!r} is not among the values of {name}")
            return option_of(parameter, value)
        if not is_number(value):
            raise TypeError(f"{name} is a number, not {value!r}")
        if name in self._units:
            return to_unit(self._units[name], value)
        return int(value) if parameter.step is None else round(position(parameter, value))

    def _scaled(self, constraint: Linear) -> str:
        """Return the constraint over axes, scaled to a largest coefficient of 1 for the samplers' tolerances.

        A constraint on a float is tighter than the user's by `MARGIN`.
        """
        searched = [self.domain.searched[name] for name in constraint.coefficients]
        margin = MARGIN if any(isinstance(p, Range) and levels(p) is None for p in searched) else 0.0
        factors, bound = {}, constraint.bound
        for name, factor in constraint.coefficients.items():
            start, slope = self.line(name)
            bound -= factor * start
            factor *= slope
            factors[self._names[name]] = factor
        size = max(abs(factor) for factor in factors.values())
        left = " + ".join(f"{factor / size!r}*{name}" for name, factor in factors.items())
        return f"{left} <= {bound / size - margin!r}"


def even_positions(axis: Axis, most: int) -> list[Value]:
    """Return the positions on an axis at which a curve along it is drawn: every option, or even steps."""
    if isinstance(axis, Options):
        return list(axis.values)
    low, high = axis.bounds
    steps = [low + (high - low) * at / (most - 1) for at in range(most)]
    return [*dict.fromkeys(round(step) for step in steps)] if axis.kind == "int" else [*steps]


def at_share(axis: Axis, share: float) -> Value:
    """Return the position at a share, from 0 to below 1, of the axis, evenly over its scale."""
    if not (isinstance(axis, Interval) and axis.log):
        return _uniform(axis, int(share * 2**32))
    low, high = axis.bounds  # integers; half a unit more gives the first and the last their share
    at: float = round((low - 0.5) * ((high + 0.5) / (low - 0.5)) ** share)
    return min(max(at, int(low)), int(high))


def share_at(axis: Axis, position: Value) -> float:
    """Return the share of the axis in the middle of those that `at_share` puts at this position."""
    if isinstance(axis, Options):
        return (axis.values.index(position) + 0.5) / len(axis.values)
    low, high = axis.bounds
    at = number_of(position)
    if axis.log:
        return math.log(at / (low - 0.5)) / math.log((high + 0.5) / (low - 0.5))
    above = 1 if axis.kind == "int" else 0
    return (at - low + 0.5 * above) / (high - low + above)


def unit_at(axis: Interval, position: Value) -> float:
    """Return the position between 0 and 1 on the axis's scale."""
    if axis.log:
        return share_at(axis, position)  # as the axis of a range too wide for one of integers has it
    low, high = axis.bounds
    return (number_of(position) - low) / (high - low)


def _uniform(axis: Axis, seed: int) -> Value:
    """Return a position on the axis, uniform over seeds from 0 to 2^32 - 1."""
    if isinstance(axis, Options):
        return axis.values[seed * len(axis.values) >> 32]
    low, high = axis.bounds
    return int(low) + (seed * int(high - low + 1) >> 32) if axis.kind == "int" else seed / 2**32


def kind_of(parameter: Choice) -> str:
    """Return Ax's name for the type of the options; integers among floats are floats."""
    if any(value is None or isinstance(value, tuple) for value in parameter.values):
        return "str"
    for kind in (bool, int, str):
        if all(type(value) is kind for value in parameter.values):
            return kind.__name__
    return "float"


def option_of(parameter: Choice, value: Value) -> bool | int | float | str:
    """Return what stands for a value of the choice in Ax, whose options have one type and are no lists."""
    if any(member is None or isinstance(member, tuple) for member in parameter.values):
        return "None" if value is None else json.dumps(value)  # Ax's own JSON loses the text "null"
    return float(number_of(value)) if kind_of(parameter) == "float" else cell_of(value)
