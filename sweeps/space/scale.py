"""Scale on which a range is searched: a value's position between 0 and 1, its inverse, steps, the middle."""

from __future__ import annotations

import math
from decimal import Decimal
from statistics import NormalDist

from sweeps.space.definition import Choice, Condition, Fixed, Parameter, Range, Value, is_number

_NORMAL = NormalDist()
_SLACK = 1e-6
"""Largest distance of a number from its step, in steps."""


def to_unit(parameter: Range, value: float) -> float:
    """Return the value's position in the range, from 0 at `min` to 1 at `max`, on the searched scale.

    On a normal scale that is the share of the distribution, cut off at the bounds, below the value.
    """
    if parameter.normal is not None:
        low, high, at = (_deviations(parameter, v) for v in (parameter.min, parameter.max, value))
        return normal_share(low, at) / normal_share(low, high)
    if parameter.log and value > 0:
        return math.log(value / parameter.min) / math.log(parameter.max / parameter.min)
    return (value / 2 - parameter.min / 2) / (parameter.max / 2 - parameter.min / 2)  # halves never overflow


def from_unit(parameter: Range, unit: float) -> float:
    """Return the value at this position: the inverse of `to_unit`, up to rounding."""
    if parameter.normal is None:
        if parameter.log:
            return parameter.min * math.exp(unit * math.log(parameter.max / parameter.min))
        return parameter.min * (1.0 - unit) + parameter.max * unit
    mean, sd = parameter.normal
    low, high = (_deviations(parameter, v) for v in (parameter.min, parameter.max))
    mirrored = low + high > 0  # the lower tail has the digits
    if mirrored:
        low, high, unit = -high, -low, 1.0 - unit
    below = math.erfc(-low / math.sqrt(2)) / 2 + unit * normal_share(low, high)
    at = _NORMAL.inv_cdf(below) if 0.0 < below < 1.0 else (low if below <= 0.0 else high)
    value = mean + sd * (-at if mirrored else at)
    return math.exp(value) if parameter.log else value


def share_within(parameter: Range) -> float:
    """Return the share of its normal distribution that lies between the bounds, 0 to 1."""
    return normal_share(_deviations(parameter, parameter.min), _deviations(parameter, parameter.max))


def levels(parameter: Range) -> int | None:
    """Return the number of values of an integer or stepped range; None if it is continuous."""
    size = _step(parameter)
    return None if size is None else math.floor((parameter.max - parameter.min) / size + _SLACK) + 1


def level(parameter: Range, position: int) -> int | float:
    """Return the value at a position from 0, as it would be written: 0.3, not 0.30000000000000004."""
    if parameter.kind == "int":
        return int(parameter.min) + position * int(_step(parameter) or 1)
    return float(Decimal(repr(parameter.min)) + position * Decimal(repr(_step(parameter) or 0.0)))


def position(parameter: Range, value: float) -> float:
    """Return the number of steps from `min` to the value."""
    return (value - parameter.min) / (_step(parameter) or 1)


def is_level(parameter: Range, value: float) -> bool:
    """Return whether a range without steps, or one of whose steps, can have the value, bounds aside."""
    if _step(parameter) is None:
        return True
    steps = position(parameter, value)
    return math.isfinite(steps) and abs(steps - round(steps)) <= _SLACK


def middle(parameter: Parameter) -> Value:
    """Return a baseline's default: the middle of a range on its scale, or the first choice."""
    if isinstance(parameter, Fixed):
        return parameter.value
    if isinstance(parameter, Choice):
        return parameter.values[(len(parameter.values) - 1) // 2 if parameter.ordered else 0]
    if parameter.normal is not None:
        centre = from_unit(parameter, 0.5)
    elif parameter.log:
        centre = math.exp((math.log(parameter.min) + math.log(parameter.max)) / 2)
    else:
        centre = parameter.min / 2 + parameter.max / 2
    centre = min(max(centre, parameter.min), parameter.max)
    if parameter.step is not None:
        return level(parameter, min(round(position(parameter, centre)), (levels(parameter) or 1) - 1))
    return round(centre) if parameter.kind == "int" else centre


def ends(parameter: Parameter) -> tuple[Value, ...]:
    """Return the ends of a range, with their type, or all values of another parameter."""
    if isinstance(parameter, Range):
        number = int if parameter.kind == "int" else float
        return number(parameter.min), number(parameter.max)
    return parameter.values if isinstance(parameter, Choice) else (parameter.value,)


def example(condition: Condition, parent: Parameter) -> Value:
    """Return a value of the parent under which the condition holds: an end of its range, if one will do."""
    if isinstance(parent, Range) and condition.relation != "==":
        ends = (parent.max, parent.min)
        found = next((v for v in ends if condition.holds({parent.name: v})), parent.max)
        return int(found) if parent.kind == "int" else float(found)
    value = condition.value
    return int(value) if is_number(value) and isinstance(parent, Range) and parent.kind == "int" else value


def _step(parameter: Range) -> float | None:
    return parameter.step if parameter.step is not None else 1 if parameter.kind == "int" else None


def _deviations(parameter: Range, value: float) -> float:
    """Return the distance from the mean in standard deviations; of the logarithm on a logarithmic scale."""
    mean, sd = parameter.normal or (0.0, 1.0)
    if parameter.log:
        value = math.log(value) if value > 0 else -math.inf
    return (value - mean) / sd


def normal_share(low: float, high: float) -> float:
    """Return the share of the standard normal distribution between two numbers, exact in both tails."""
    if low > 0:  # by symmetry
        low, high = -high, -low
    return (math.erfc(-high / math.sqrt(2)) - math.erfc(-low / math.sqrt(2))) / 2
