"""Domain of the search: membership, identity, enumeration and probes of configurations. No Ax, no chance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType

from sweeps.space.constraints import Linear, parse
from sweeps.space.definition import (
    Choice,
    Fixed,
    Parameter,
    Range,
    Space,
    Value,
    conditions,
    is_number,
    same_value,
    value_key,
)
from sweeps.space.scale import ends, example, is_level, level, levels, middle, position, to_unit
from sweeps.text.columns import is_seed

ENUMERABLE = 4096
"""Finite spaces of up to this many configurations are listed, so that each is tried at most once."""

RESOLUTION = 1e9
"""Floats closer than a billionth of the range are equal: transforms and their inverses round."""

REPEAT_KEYS = ("seed", "eval.test")
"""Parameters that tell repeats of one configuration apart, unless they are searched."""

SLACK = 1e-6
"""Largest distance of a number from its integer: optimizers violate constraints by as much."""

_MIN_RADIUS = 1e-6
"""Of a ball inside all constraints, with every range scaled to 0..1; the solver is exact to about 1e-7."""


class Domain:
    """Searched part of a space.

    Attributes:
        searched: the ranges and choices, by name, in the space's order.
        fixed: the value of every other parameter.
        constraints: the parameter constraints, each over ranges that always exist.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self.searched: Mapping[str, Range | Choice] = MappingProxyType(
            {p.name: p for p in space.parameters if not isinstance(p, Fixed)}
        )
        self.fixed: Mapping[str, Value] = MappingProxyType(
            {p.name: p.value for p in space.parameters if isinstance(p, Fixed)}
        )
        self.constraints = tuple(parse(text, space.names()) for text in space.parameter_constraints)

    def complete(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return the active parameters for these searched values, with fixed ones, in the space's order."""
        every = {**self.fixed, **values}
        return {name: every[name] for name in self._space.active(every)}

    def middle(self) -> dict[str, Value]:
        """Return the configuration in the middle of every parameter, as in an empty baseline."""
        return self.complete({name: middle(parameter) for name, parameter in self.searched.items()})

    def active(self, parameters: Mapping[str, Value]) -> tuple[str, ...]:
        """Return the names of the searched parameters that exist for these values."""
        return tuple(name for name in self._space.active(parameters) if name in self.searched)

    def member(self, name: str, value: Value) -> Value:
        """Return the nearest value of the parameter, with its type.

        An integer or a step under constraints is rounded to the side that satisfies them.

        Raises:
            ValueError: the value is not one of a choice.
        """
        parameter = self.searched[name]
        if isinstance(parameter, Choice):
            for member in parameter.values:
                if same_value(member, value):
                    return member
            raise ValueError(f"{value!r} is not among the values of {name}")
        if not is_number(value):
            raise ValueError(f"{name} is a number, not {value!r}")
        if (count := levels(parameter)) is not None:
            rounded = self.rounding(name)(position(parameter, float(value)))
            return level(parameter, min(max(rounded, 0), count - 1))
        return min(max(float(value), float(parameter.min)), float(parameter.max))

    def rounding(self, name: str) -> Callable[[float], int]:
        """Return the function that rounds to steps of this range and keeps satisfied constraints so."""
        signs = {c.coefficients[name] > 0 for c in self.constraints if name in c.coefficients}
        if signs == {True}:
            return lambda number: math.floor(number + SLACK)
        return (lambda number: math.ceil(number - SLACK)) if signs == {False} else round

    def allows(self, parameters: Mapping[str, Value]) -> bool:
        """Return whether the parameter constraints hold almost exactly: programs may check them, too."""
        numbers = {name: float(value) for name, value in parameters.items() if is_number(value)}
        return all(
            constraint.holds({name: numbers[name] for name in constraint.coefficients}, 1e-15)
            for constraint in self.constraints
        )

    def has(self, name: str, value: Value) -> bool:
        """Return whether a searched parameter can have the value, up to `RESOLUTION`."""
        parameter = self.searched[name]
        if isinstance(parameter, Choice):
            return any(same_value(value, member) for member in parameter.values)
        if not is_number(value):
            return False
        slack = (parameter.max / 2 - parameter.min / 2) / RESOLUTION
        if not parameter.min - slack <= value <= parameter.max + slack:
            return False
        return is_level(parameter, value) and (parameter.kind == "float" or value == int(value))

    def misfit(self, parameters: Mapping[str, Value]) -> str | None:
        """Return why these are no parameters of this space, as one clause, or None if they are."""
        active = self.active(parameters)
        for name in active:
            if name not in parameters:
                return f"{name} is missing"
        for name, value in parameters.items():
            if name in self.fixed:
                if not same_value(value, self.fixed[name]):
                    return f"{name} is {value!r}, not {self.fixed[name]!r}"
            elif name not in self.searched:
                return f"{name} is none of its parameters"
            elif name not in active:
                return f"{name} has a value, though it is switched off"
            elif not self.has(name, value):
                text = repr(value)
                shown = text if len(text) <= 40 else f"{text[:37]}..."
                return f"{name} is {shown}, outside of its range or values"
        return None

    def configuration(self, parameters: Mapping[str, Value], *, repeat: bool = False) -> dict[str, Value]:
        """Return the parameters without what only tells repeats of one configuration apart.

        That is a seed and an `eval.test` that are not searched; a fixed one gets the space's value again.

        Args:
            repeat: whether everything that is not searched may differ: a repeat of `sweep confirm`, whose
                seed may have any name.
        """
        differs = [n for n in parameters if n not in self.searched and (repeat or is_repeat_key(n))]
        kept = {name: value for name, value in parameters.items() if name not in differs}
        return kept | {name: self.fixed[name] for name in differs if name in self.fixed}

    def identity(self, parameters: Mapping[str, Value]) -> Hashable:
        """Return a key that is equal for equal candidates, up to `RESOLUTION`."""
        return frozenset((name, self._cell(name, value)) for name, value in parameters.items())

    def configurations(self) -> Mapping[Hashable, dict[str, Value]] | None:
        """Return all allowed configurations by identity, or None if there are more than `ENUMERABLE`."""
        axes: list[tuple[Value, ...]] = []
        for parameter in self.searched.values():
            if isinstance(parameter, Choice):
                axes.append(parameter.values)
            elif (count := levels(parameter)) is None or count > ENUMERABLE:
                return None
            else:
                axes.append(tuple(level(parameter, at) for at in range(count)))
        if math.prod(len(axis) for axis in axes) > ENUMERABLE:
            return None
        points = (dict(zip(self.searched, values, strict=True)) for values in itertools.product(*axes))
        allowed = filter(self.allows, map(self.complete, points))
        return {self.identity(parameters): parameters for parameters in allowed}

    def _cell(self, name: str, value: Value) -> Hashable:
        """Return a key that differs for True, 1 and "1", and is the same for 1 and 1.0."""
        parameter = self.searched.get(name)
        if not is_number(value) or not isinstance(parameter, Range) or parameter.kind == "int":
            return value_key(value)
        position = to_unit(parameter, value) * RESOLUTION
        return round(position) if math.isfinite(position) else value  # far outside: an edited record


def is_repeat_key(name: str) -> bool:
    """Return whether a parameter of this name, unless searched, tells repeats of a configuration apart."""
    return name in REPEAT_KEYS or is_seed(name)


def centre(parameters: Iterable[Parameter], constraints: Sequence[Linear]) -> dict[str, float] | None:
    """Return the values within their bounds that are farthest inside all constraints, without rounding.

    None: there is no room to search, as no ball around such a point fits inside the constraints.
    """
    if not constraints:
        return {}
    import numpy as np  # these two take 0.4 s, and reading commands need none of it
    from scipy.optimize import linprog

    ranges = [
        p for p in parameters if isinstance(p, Range) and any(p.name in c.coefficients for c in constraints)
    ]
    low = {p.name: p.min for p in ranges}
    rows = []
    for constraint in (constraint.scaled() for constraint in constraints):
        # In units of each range's width, so that the radius is comparable in every direction.
        row = np.array([constraint.coefficients.get(p.name, 0.0) * (p.max - p.min) for p in ranges])
        offset = constraint.sum(low)
        length = math.hypot(*row)
        rows.append([*(row / length), 1.0, (constraint.bound - offset) / length])
    table = np.array(rows).clip(-len(ranges) - 2, len(ranges) + 2)  # no sum in the unit box is larger
    solved = linprog(
        c=[0.0] * len(ranges) + [-1.0],
        A_ub=table[:, :-1],
        b_ub=table[:, -1],
        bounds=[(0.0, 1.0)] * len(ranges) + [(0.0, 1.0)],
    )
    if not solved.success or solved.x[-1] < _MIN_RADIUS:
        return None
    return {p.name: float(p.min + (p.max - p.min) * x) for p, x in zip(ranges, solved.x[:-1], strict=True)}


def probes(space: Space) -> list[dict[str, Value]]:
    """Return the low and the high end of the space, each also with every value of every choice.

    `sweep init` lets the program check them, so that a misspelt key or a refused value costs a second and
    not a night.

    Points outside the parameter constraints are left out: no trial has them. If both ends are, the centre of
    what the constraints leave stands for them.
    """
    low = {parameter.name: ends(parameter)[0] for parameter in space.parameters}
    high = {parameter.name: ends(parameter)[-1] for parameter in space.parameters}
    parents = space.parents()
    changes: list[dict[str, Value]] = []
    for parameter in space.parameters:
        values: tuple[Value, ...] = ()
        if isinstance(parameter, Choice):
            values = parameter.values
        elif isinstance(parameter, Range):  # one value that satisfies each of its conditions
            values = tuple(example(condition, parameter) for condition, _ in conditions(parameter))
        for value in values:
            change: dict[str, Value] = {parameter.name: value}
            name = parameter.name
            while name in parents:  # enable its parents
                condition = parents[name]
                name = condition.parent
                change[name] = example(condition, space.parameter(name))
            changes.append(change)
    domain = Domain(space)

    def is_allowed(point: Mapping[str, Value]) -> bool:
        numbers = {name: float(value) for name, value in point.items() if is_number(value)}
        return all(each.holds(numbers) for each in domain.constraints)

    bases = [low, high]
    if not any(map(is_allowed, bases)):
        inner = centre(space.parameters, domain.constraints) or {}
        bases.append({**low, **{name: domain.member(name, value) for name, value in inner.items()}})
    points = [*bases, *({**base, **change} for base in bases for change in changes)]
    if space.baseline is not None:
        points.append({**low, **space.baseline})
    found: list[dict[str, Value]] = []
    for point in points:
        active = {name: point[name] for name in space.active(point)}
        if active not in found and is_allowed(active):
            found.append(active)
    return found


# ---- spaces whose search may end by itself


def no_answer(space: Space) -> str:
    """Return why the surrogate cannot say how good the best trial is, as one clause, or "".

    Of several objectives or with outcome constraints the best is no minimum of one metric; the best value
    of a seed means nothing.
    """
    if len(space.objectives) > 1:
        return "goes with one objective: the gain in several is no number"
    if space.outcome_constraints:
        return "does not go with outcome_constraints: whether further trials obey them is not known"
    if space.search.method == "grid":
        return "has no effect on a grid, which has an end"
    searched = Domain(space).searched
    if not searched:
        return "has no effect where no parameter is searched"
    for name in searched:
        if is_seed(name):
            return f"does not go with `{name}` as a parameter: the best seed means nothing"
    return ""


def no_stop(space: Space) -> str:
    """Return why `search.stop` cannot end the search of a space, as one clause, or ""."""
    if space.search.method == "random":
        return "has no effect with method: random, whose trials are not chosen for their expected gain"
    return no_answer(space)
