"""Check of a search space from `sweep.json`, which a user may have edited.

`space_file` checks search space files, with lines and hints; this only checks that numbers are finite and
types are right, so that nothing fails later in a worker.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from sweeps.space.constraints import parse, parse_expression
from sweeps.space.definition import Choice, Fixed, Range, Space, Trunk, conditions
from sweeps.space.scale import share_within


def problem(space: Space) -> str | None:
    """Return what is wrong with the space, as one clause, or None."""
    return next(_problems(space), None)


def _problems(space: Space) -> Iterator[str]:
    name: object = space.name  # its type is not certain here
    if not isinstance(name, str):
        yield "name is not a text"
    if space.program.kind not in ("trainer", "command", "function"):
        yield f"program.kind {space.program.kind!r} is unknown"
    for objective in space.objectives:
        if objective.goal not in ("minimize", "maximize"):
            yield f"the goal {objective.goal!r} of {objective.metric} is unknown"
    for parameter in space.parameters:
        if (clause := _of_parameter(parameter)) is not None:
            yield f"parameter {parameter.name!r}: {clause}"
    for parameter_name, value in (space.baseline or {}).items():
        if not _is_value(value):
            yield f"baseline: {parameter_name} is neither a finite number, a text nor a boolean"
    for text in (*space.parameter_constraints, *space.outcome_constraints):
        try:
            parse(text)
        except (ValueError, TypeError, AttributeError) as error:
            yield f"constraint {text!r}: {error}"
    yield from _of_settings(space)
    yield from _of_stages(space)


def _of_parameter(parameter: Range | Choice | Fixed) -> str | None:
    match parameter:
        case Fixed(value=value):
            return None if _is_value(value) else "its value is neither a finite number, a text nor a boolean"
        case Choice(values=values):
            if values and all(map(_is_value, values)):
                return None
            return "its values are not finite numbers, texts or booleans"
        case Range(min=low, max=high):
            if not (_is_number(low) and _is_number(high)):
                return f"its bounds {low!r} and {high!r} are not finite numbers"
            if low >= high or (parameter.log and low <= 0):
                return f"there is nothing between {low!r} and {high!r}" + (
                    " on a logarithmic scale" if parameter.log else ""
                )
            if parameter.kind not in ("int", "float"):
                return f"its kind {parameter.kind!r} is unknown"
            return _of_range(parameter)


def _of_range(parameter: Range) -> str | None:
    if parameter.step is not None and not (_is_number(parameter.step) and parameter.step > 0):
        return f"its step {parameter.step!r} is not a number above 0"
    if parameter.normal is not None and not (
        all(map(_is_number, parameter.normal)) and parameter.normal[1] > 0 and share_within(parameter) > 0
    ):
        return f"no part of the normal distribution {parameter.normal!r} lies between its bounds"
    try:
        conditions(parameter)
    except (ValueError, TypeError, AttributeError) as error:
        return f"its conditions: {error}"
    return None


def _of_settings(space: Space) -> Iterator[str]:
    if space.search.method not in ("bayes", "random", "grid"):
        yield f"search.method {space.search.method!r} is unknown"
    counts: dict[str, object] = {"search.seed": space.search.seed}
    if space.search.sobol is not None:
        counts["search.sobol"] = space.search.sobol
    counts |= {"lease.max_attempts": space.lease.max_attempts, "program.processes": space.program.processes}
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            yield f"{name} is not a count"
    times: dict[str, Any] = {f"budget.{name}": limit for name, limit in asdict(space.budget).items()}
    times = {name: limit for name, limit in times.items() if limit is not None}
    times |= {"lease.heartbeat_s": space.lease.heartbeat_s, "lease.expire_s": space.lease.expire_s}
    for name, number in times.items():
        if not _is_number(number) or number <= 0:
            yield f"{name} is {number!r}, not a finite number above 0"
    if (early := space.early_terminate) is not None:
        if early.type not in ("percentile", "hyperband", "curve"):
            yield f"early_terminate.type {early.type!r} is unknown"
        for name, number in asdict(early).items():
            if name != "type" and not _is_number(number):
                yield f"early_terminate.{name} is {number!r}, not a finite number"


def _of_stages(space: Space) -> Iterator[str]:
    if space.search.reuse not in ("auto", "none"):
        yield f"search.reuse {space.search.reuse!r} is unknown"
    for stage in space.stages:
        texts: tuple[object, ...] = (stage.name, stage.cost, *stage.parameters)
        if not stage.name or not all(isinstance(text, str) for text in texts):
            yield f"stage {stage.name!r}: its name, its cost or a parameter is not a text"
            continue
        try:
            if stage.cost:
                parse_expression(stage.cost)
        except ValueError as error:
            yield f"stage {stage.name!r}: cost {stage.cost!r}: {error}"
        if stage.trunk is not None and not _is_trunk(stage.trunk, space):
            yield f"stage {stage.name!r}: its trunk is not a length, a decay of 0 to 1, a tail and a count"
    keep: object = space.snapshots.keep
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        yield "snapshots.keep is not a count from 1"
    gib = space.snapshots.keep_gib
    if gib is not None and (not _is_number(gib) or gib <= 0):
        yield f"snapshots.keep_gib is {gib!r}, not a finite number above 0"


def _is_value(value: object) -> bool:
    return isinstance(value, bool | str) or _is_number(value)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def _is_trunk(trunk: Trunk, space: Space) -> bool:
    """Return whether the fields of a trunk, which a user may have edited, have their types and names."""
    names = {parameter.name for parameter in space.parameters}
    every: object = trunk.every
    decay = trunk.decay
    return (
        trunk.length in names
        and (decay in names if isinstance(decay, str) else _is_number(decay) and 0 <= decay <= 1)
        and all(isinstance(name, str) for name in trunk.tail)
        and isinstance(every, int)
        and not isinstance(every, bool)
        and every >= 0
    )
