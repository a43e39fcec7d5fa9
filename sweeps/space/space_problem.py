"""Check of a search space from `sweep.json`, which a user may have edited.

`space_file` checks search space files, with lines and hints; this only checks that numbers are finite and
types are right, so that nothing fails later in a worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from sweeps.space.constraints import parse, parse_expression
from sweeps.space.definition import Choice, Fixed, Range, Space, conditions
from sweeps.space.scale import share_within
from sweeps.text import typed


def problem(space: Space) -> str | None:
    """Return what is wrong with the space, as one clause, or None."""
    return next(_problems(space), None)


def _problems(space: Space) -> Iterator[str]:
    if wrong := typed.problem(space):
        yield wrong
    if not space.objectives:
        yield "it has no objectives"
    if space.run_cap is not None and space.run_cap < 1:
        yield "run_cap is not a count from 1"
    for parameter in space.parameters:
        if (clause := _of_parameter(parameter)) is not None:
            yield f"parameter {parameter.name!r}: {clause}"
    for text in (*space.parameter_constraints, *space.outcome_constraints):
        try:
            parse(text)
        except (ValueError, TypeError, AttributeError) as error:
            yield f"constraint {text!r}: {error}"
    yield from _of_settings(space)
    yield from _of_stages(space)


def _of_parameter(parameter: Range | Choice | Fixed) -> str | None:
    match parameter:
        case Fixed():
            return None
        case Choice(values=values):
            return None if values else "it has no values"
        case Range(min=low, max=high):
            if low >= high or (parameter.log and low <= 0):
                return f"there is nothing between {low!r} and {high!r}" + (
                    " on a logarithmic scale" if parameter.log else ""
                )
            return _of_range(parameter)


def _of_range(parameter: Range) -> str | None:
    if parameter.step is not None and parameter.step <= 0:
        return f"its step {parameter.step!r} is not above 0"
    if parameter.normal is not None and not (parameter.normal[1] > 0 and share_within(parameter) > 0):
        return f"no part of the normal distribution {parameter.normal!r} lies between its bounds"
    try:
        conditions(parameter)
    except (ValueError, TypeError, AttributeError) as error:
        return f"its conditions: {error}"
    return None


def _of_settings(space: Space) -> Iterator[str]:
    counts = {"search.seed": space.search.seed, "search.sobol": space.search.sobol or 0}
    counts |= {"lease.max_attempts": space.lease.max_attempts, "program.processes": space.program.processes}
    counts |= {"brake.first": space.brake.first, "brake.later": space.brake.later}
    for name, count in counts.items():
        if count < 0:
            yield f"{name} is not a count"
    times = {f"budget.{name}": limit for name, limit in asdict(space.budget).items() if limit is not None}
    times |= {"lease.heartbeat_s": space.lease.heartbeat_s, "lease.expire_s": space.lease.expire_s}
    for name, number in times.items():
        if number <= 0:
            yield f"{name} is {number!r}, not a finite number above 0"


def _of_stages(space: Space) -> Iterator[str]:
    names = {parameter.name for parameter in space.parameters}
    for stage in space.stages:
        if not stage.name:
            yield "a stage has no name"
        try:
            if stage.cost:
                parse_expression(stage.cost)
        except ValueError as error:
            yield f"stage {stage.name!r}: cost {stage.cost!r}: {error}"
        if (trunk := stage.trunk) is None:
            continue
        is_share = trunk.decay in names if isinstance(trunk.decay, str) else 0 <= trunk.decay <= 1
        if trunk.length not in names or not is_share or trunk.every < 0:
            yield f"stage {stage.name!r}: its trunk is not a length, a decay of 0 to 1, a tail and a count"
    if space.snapshots.keep < 1:
        yield "snapshots.keep is not a count from 1"
    if space.snapshots.keep_gib is not None and space.snapshots.keep_gib <= 0:
        yield f"snapshots.keep_gib is {space.snapshots.keep_gib!r}, not above 0"
