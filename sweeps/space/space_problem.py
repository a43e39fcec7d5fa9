"""Check of a search space from `sweep.json`, which a user may have edited.

`space_file` checks search space files, with lines and hints; this only checks that numbers are finite and
types are right, so that nothing fails later in a worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from sweeps.space.constraints import parse, parse_expression
from sweeps.space.definition import (
    Choice,
    Fixed,
    Parameter,
    Range,
    Space,
    Stop,
    conditions,
    is_number,
    same_value,
)
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
        if clause := _parameter_problem(parameter):
            yield f"parameter {parameter.name!r}: {clause}"
    for text in (*space.parameter_constraints, *space.outcome_constraints):
        try:
            parse(text)
        except (ValueError, TypeError, AttributeError) as error:
            yield f"constraint {text!r}: {error}"
    counts = {
        "search.seed": space.search.seed,
        "search.sobol": space.search.sobol or 0,
        "lease.max_attempts": space.lease.max_attempts,
        "program.processes": space.program.processes,
        "brake.first": space.brake.first,
        "brake.later": space.brake.later,
        "snapshots.keep": space.snapshots.keep - 1,
    }
    yield from (f"{name} is not a count" for name, count in counts.items() if count < 0)
    limits = {f"budget.{name}": limit for name, limit in asdict(space.budget).items()}
    limits |= {"lease.heartbeat_s": space.lease.heartbeat_s, "lease.expire_s": space.lease.expire_s}
    limits["snapshots.keep_gib"] = space.snapshots.keep_gib
    stop = space.search.stop or Stop(expected_gain=1.0)
    limits |= {f"search.stop.{name}": limit for name, limit in asdict(stop).items()}
    for name, limit in limits.items():
        if limit is not None and limit <= 0:
            yield f"{name} is {limit!r}, not a finite number above 0"
    names = {parameter.name for parameter in space.parameters}
    for stage in space.stages:
        if not stage.name:
            yield "a stage has no name"
        try:
            parse_expression(stage.cost or "0")
        except ValueError as error:
            yield f"stage {stage.name!r}: cost {stage.cost!r}: {error}"
        if (trunk := stage.trunk) is not None:
            is_share = trunk.decay in names if isinstance(trunk.decay, str) else 0 <= trunk.decay <= 1
            if trunk.length not in names or not is_share or trunk.every < 0:
                yield (
                    f"stage {stage.name!r}: its trunk is not a length, a decay of 0 to 1, a tail and a count"
                )


def _parameter_problem(parameter: Parameter) -> str:
    if not isinstance(parameter, Fixed) and (prior := parameter.prior) is not None:
        if prior.width <= 0:
            return f"the width of its prior, {prior.width!r}, is not above 0"
        if isinstance(parameter, Choice):
            if not any(same_value(prior.around, value) for value in parameter.values):
                return f"its prior is around {prior.around!r}, none of its values"
        elif not is_number(prior.around) or not parameter.min <= prior.around <= parameter.max:
            return f"its prior is around {prior.around!r}, outside of its range"
    match parameter:
        case Choice(values=()):
            return "it has no values"
        case Range(min=low, max=high) if low >= high or (parameter.log and low <= 0):
            scale = " on a logarithmic scale" if parameter.log else ""
            return f"there is nothing between {low!r} and {high!r}{scale}"
        case Range(step=float() | int() as step) if step <= 0:
            return f"its step {step!r} is not above 0"
        case Range(normal=(_, sd)) if not (sd > 0 and share_within(parameter) > 0):
            return f"no part of the normal distribution {parameter.normal!r} lies between its bounds"
        case Range():
            try:
                conditions(parameter)
            except (ValueError, TypeError, AttributeError) as error:
                return f"its conditions: {error}"
    return ""
