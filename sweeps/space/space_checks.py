"""Sections of a search space file that refer to others: constraints and the baseline."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from sweeps.space.constraints import Linear, ambiguous_minus, parse
from sweeps.space.definition import (
    Fixed,
    Objective,
    Parameter,
    Range,
    Space,
    Value,
    conditions,
    is_number,
    number_of,
    same_value,
)
from sweeps.space.domain import centre
from sweeps.space.scale import is_level, level, levels, middle, position
from sweeps.space.yaml_cursor import Cursor, Problems, nearest, yaml_text


def parameter_constraints(
    section: Cursor, parameters: tuple[Parameter, ...], wrong: Collection[str], problems: Problems
) -> tuple[tuple[Parameter, ...], tuple[str, ...]]:
    """Return the parameters, narrowed by constraints on one of them, and the constraints on several.

    A constraint on one parameter becomes a bound, so that it may be on a logarithmic or conditional range,
    which Ax does not allow in constraints.

    Args:
        wrong: names of parameters that are wrong themselves; a constraint on one is only read.
        problems: takes each constraint that cannot be read, used or satisfied.

    Raises:
        SpaceError: it is no list, or the constraints cannot be satisfied together.
    """
    by_name = {parameter.name: parameter for parameter in parameters}
    searched = [parameter for parameter in parameters if not isinstance(parameter, Fixed)]
    conditional = {child for parameter in searched for _, names in parameter.when for child in names}
    several: dict[str, Linear] = {}
    earlier: list[Linear] = []

    def add(item: Cursor) -> None:
        linear = _parse_inequality(item, earlier, by_name)
        ranges: list[Range] = []
        for name in (each for each in linear.coefficients if each not in wrong):
            if name not in by_name:
                raise item.refusal(f"`{name}` is not among the parameters; {nearest(name, by_name)}")
            if not isinstance(parameter := by_name[name], Range):
                kind = "has a fixed value" if isinstance(parameter, Fixed) else "is a choice"
                raise item.refusal(f"`{name}` {kind}; a constraint is about parameters with min: and max:")
            ranges.append(parameter)
        if len(ranges) < len(linear.coefficients):
            return
        if len(ranges) == 1:
            by_name[ranges[0].name] = _narrow(item, ranges[0], linear)
            return
        for parameter in ranges:
            if parameter.log or parameter.normal is not None:
                scale = "logarithmic" if parameter.log else "on a normal scale"
                raise item.refusal(
                    f"`{parameter.name}` is {scale}, and the optimizer takes only linear ranges in a "
                    "constraint on several parameters; give it distribution: "
                    + ("int_uniform" if parameter.kind == "int" else "uniform")
                )
            if parameter.name in conditional:
                raise item.refusal(
                    f"`{parameter.name}` depends on a condition, and is not always there to constrain"
                )
        several[item.text()] = linear

    before = len(problems.found)
    for item in section.items():
        problems.attempt(partial(add, item), None)
    narrowed = tuple(by_name[parameter.name] for parameter in parameters)
    is_read = len(problems.found) == before and not wrong
    if is_read and centre(narrowed, list(several.values())) is None:
        raise section.refusal("no values within min: and max: obey all of these at once with room to search")
    return narrowed, tuple(several)


def outcome_constraints(
    section: Cursor, objectives: Sequence[Objective], problems: Problems
) -> tuple[str, ...]:
    """Return the constraints on metrics as they are written. Raises SpaceError if it is no list.

    Args:
        objectives: all of them; none where they are wrong themselves.
        problems: takes each constraint that is wrong.
    """
    earlier: list[Linear] = []
    bounded: set[str] = set()

    def check(item: Cursor) -> str:
        if part := ambiguous_minus(item.text()):
            raise item.refusal(
                f"`{part}` may be a difference or a name; write a difference with spaces, and report a "
                "metric to constrain by a name without `-`"
            )
        linear = _parse_inequality(item, earlier)
        if "baseline" in linear.coefficients:  # as Ax writes them
            raise item.refusal("bounds relative to the baseline are not supported; write the number")
        for objective in objectives:
            metric, goal = objective.metric, objective.goal
            if metric not in linear.coefficients:
                continue
            if len(objectives) == 1 or len(linear.coefficients) > 1:
                raise item.refusal(
                    f"`{metric}` is an objective, it is optimised anyway; constrain other metrics"
                )
            # Ax takes a constraint on one of several objectives as its threshold.
            if (goal == "minimize") != (linear.coefficients[metric] > 0):
                raise item.refusal(
                    f"`{metric}` has the goal {goal}; a threshold for it must point the same way"
                )
            if metric in bounded:
                raise item.refusal(f"`{metric}` has a threshold already; keep the tighter one")
            bounded.add(metric)
        return item.text()

    return tuple(problems.attempt(partial(check, item), "") for item in section.items())


def baseline(
    section: Cursor,
    space: Space,
    others: Mapping[str, Value] = MappingProxyType({}),
    wrong: Collection[str] = (),
) -> Mapping[str, Value]:
    """Return the first trial, or one that a user has written. Raises SpaceError.

    Args:
        section: values by name of the parameter.
        others: values of parameters that are not written; without one here, it is the middle.
        wrong: names of parameters that are wrong themselves; whatever is written for them is taken.
    """
    problems = Problems()
    written = {key.text(): value for key, value in section.pairs()}
    names = [parameter.name for parameter in space.parameters]
    problems.found += [
        key.refusal(f"not among the parameters; {nearest(key.text(), names)}")
        for key, _ in section.pairs()
        if key.text() not in names
    ]
    values: dict[str, Value] = {}
    for p in space.parameters:
        if p.name in written and p.name not in wrong:
            cursor = written[p.name]
            values[p.name] = problems.attempt(partial(inside, cursor, p), middle(p))
        else:
            values[p.name] = others.get(p.name, middle(p))
    problems.check()
    active = space.active(values)
    parents = space.parents()
    problems.found += [
        cursor.refusal(f"it is switched off unless {parents[name]}; write that too, or take it out")
        for name, cursor in written.items()
        if name not in active and name not in wrong
    ]
    problems.check()
    for text in space.parameter_constraints:
        linear = parse(text, space.names()).scaled()
        numbers = {name: float(value) for name, value in values.items() if is_number(value)}
        if not linear.holds(numbers):
            shown = ", ".join(f"{name} = {values[name]}" for name in linear.coefficients)
            raise section.refusal(f"breaks `{text}` ({shown}); write values that obey it")
    return MappingProxyType({name: values[name] for name in active})


def _parse_inequality(item: Cursor, earlier: list[Linear], known: Collection[str] = ()) -> Linear:
    """Return the inequality and append it to the `earlier` ones, which it must not repeat."""
    try:
        linear = parse(item.text(), known)
    except ValueError as error:
        raise item.refusal(f"{error}") from None
    if any(linear.scaled() == other.scaled() for other in earlier):
        raise item.refusal("says the same as one before it; keep one")
    earlier.append(linear)
    return linear


def _narrow(item: Cursor, parameter: Range, linear: Linear) -> Range:
    """Return the range inside a constraint on it alone."""
    (factor,) = linear.coefficients.values()
    limit = min(max(linear.bound / factor, parameter.min - 1), parameter.max + 1)  # finite, for the rounding
    low, high = (
        (parameter.min, min(parameter.max, limit))
        if factor > 0
        else (max(parameter.min, limit), parameter.max)
    )
    if levels(parameter) is not None:
        first, last = math.ceil(position(parameter, low) - 1e-9), math.floor(position(parameter, high) + 1e-9)
        low, high = level(parameter, first), level(parameter, last)
    if low >= high:
        left = "nothing" if low > high else f"only {low}"
        raise item.refusal(f"leaves {left} of `{parameter.name}` ({parameter.min} to {parameter.max})")
    for condition, names in conditions(parameter):
        inside = (low, high, min(max(number_of(condition.value), low), high))
        if not any(condition.holds({parameter.name: value}) for value in inside):
            raise item.refusal(
                f"leaves {low} to {high} of `{parameter.name}`, where {condition.relation} "
                f"{condition.value} never holds; loosen it, or take {', '.join(names)} out of when:"
            )
    return replace(parameter, min=low, max=high)


def inside(cursor: Cursor, parameter: Parameter) -> Value:
    """Return the written value of a parameter, with its type. Raises SpaceError if it cannot have it."""
    if isinstance(parameter, Range):
        number = cursor.integer(least=-(2**53)) if parameter.kind == "int" else float(cursor.number())
        if not parameter.min <= number <= parameter.max:
            raise cursor.refusal(f"{cursor.kind()} is outside of {parameter.min} to {parameter.max}")
        if not is_level(parameter, number):
            nearby = level(parameter, round(position(parameter, number)))
            raise cursor.refusal(
                f"{cursor.kind()} is no step of {parameter.step:g} from {parameter.min}; write {nearby}"
            )
        return number
    value = cursor.value_or_list()
    allowed = (parameter.value,) if isinstance(parameter, Fixed) else parameter.values
    for candidate in allowed:
        if same_value(candidate, value):
            return candidate
    raise cursor.refusal(
        f"`{yaml_text(value)}` is not among its values ({', '.join(map(yaml_text, allowed))})"
    )
