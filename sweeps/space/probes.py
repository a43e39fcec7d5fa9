"""Probes: a few points of a space that together cover every parameter, choice and bound.

`sweep init` lets the program check them, so that a misspelt key or a refused value costs a second and not a
night.
"""

from __future__ import annotations

from sweeps.space import constraints
from sweeps.space.definition import Choice, Fixed, Parameter, Range, Space, Value, conditions, is_number
from sweeps.space.scale import example


def probes(space: Space) -> list[dict[str, Value]]:
    """Return the low and the high end of the space, each also with every value of every choice.

    Points outside the parameter constraints are left out: no trial has them.
    """
    low = {parameter.name: _end(parameter, 0) for parameter in space.parameters}
    high = {parameter.name: _end(parameter, -1) for parameter in space.parameters}
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
    points = [low, high, *({**base, **change} for base in (low, high) for change in changes)]
    if space.baseline is not None:
        points.append({**low, **space.baseline})
    bounds = [constraints.parse(text) for text in space.parameter_constraints]
    found: list[dict[str, Value]] = []
    for point in points:
        active = {name: point[name] for name in space.active(point)}
        numbers = {name: float(value) for name, value in active.items() if is_number(value)}
        if active not in found and all(each.holds(numbers) for each in bounds):
            found.append(active)
    return found


def _end(parameter: Parameter, which: int) -> Value:
    match parameter:
        case Fixed(value=value):
            return value
        case Choice(values=values):
            return values[which]
        case Range(kind="int"):
            return int((parameter.min, parameter.max)[which])
        case Range():
            return float((parameter.min, parameter.max)[which])
