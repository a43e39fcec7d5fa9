"""Sections of a search space file about the sharing of stages: `stages:`, their trunks, and `snapshots:`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

from sweeps.space.constraints import parse_expression
from sweeps.space.definition import (
    Fixed,
    Parameter,
    Snapshots,
    Space,
    Stage,
    Trunk,
    is_number,
)
from sweeps.space.scale import ends
from sweeps.space.sections import SnapshotsSection, StageSection, TrunkSection, build, read
from sweeps.space.stages import Stages
from sweeps.space.yaml_cursor import Cursor, Problems, nearest, yaml_text


def stages(section: Cursor, space: Space) -> tuple[Stage, ...]:
    """Return the program's stages, in order. Raises SpaceError.

    Args:
        space: with all that the file says, but its stages.
    """
    if space.program.kind == "trainer":
        raise section.refusal(
            "the trainer knows its own stages; take it out (search: {reuse: none} shares none)"
        )
    items, problems = section.items(), Problems()
    listed = [each for item in items if (each := problems.attempt(partial(read, item, StageSection), None))]
    problems.check()
    if len(listed) == 1 and listed[0].trunk is None:
        raise section.refusal(
            "one stage has none after it to share its end; write two or more, or give it a trunk"
        )
    names: dict[str, str] = {}
    for item, each in zip(items, listed, strict=True):
        equal = names.setdefault(each.name.lower(), each.name)  # one folder on some systems
        if equal is not each.name:
            raise item.at("name").refusal(
                f"an earlier stage is called {equal}; names are of folders, and differ"
            )
    _check_patterns(section, items, listed, space)
    found = tuple(Stage(name=each.name, parameters=each.parameters) for each in listed)
    known = Stages(replace(space, stages=found))
    found = tuple(
        stage
        if each.trunk is None
        else replace(stage, trunk=_trunk(item.at("trunk"), each.trunk, at, known, space))
        for at, (stage, item, each) in enumerate(zip(found, items, listed, strict=True))
    )
    if all(each.cost is None for each in listed):
        return found
    for item, each in zip(items, listed, strict=True):
        if each.cost is None:
            raise item.refusal("has no cost:, though another stage has one; write it for all or for none")
    known = Stages(replace(space, stages=found))
    for at, item in enumerate(items):
        _check_cost(item.at("cost"), at, known, space)
    return tuple(replace(stage, cost=str(each.cost)) for stage, each in zip(found, listed, strict=True))


def snapshots(section: Cursor, space: Space) -> Snapshots:
    """Return the limits on stored snapshots of a space with stages. Raises SpaceError."""
    if space.program.kind != "trainer" and not space.stages:
        raise section.refusal("has no effect without stages:; take it out")
    return build(Snapshots, read(section, SnapshotsSection))


def _check_patterns(
    section: Cursor, items: Sequence[Cursor], stages: Sequence[StageSection], space: Space
) -> None:
    """Refuse patterns that take no parameter, and stages that leave one out."""
    names = [parameter.name for parameter in space.parameters]
    stage_of: dict[str, str] = {}
    for item, stage in zip(items, stages, strict=True):
        cursors = item.at("parameters").items(may_be_empty=True)
        for cursor, pattern in zip(cursors, stage.parameters, strict=True):
            matches = [name for name in names if fnmatchcase(name, pattern)]
            if not matches:
                prefixed = any(name.startswith(f"{pattern}.") for name in names)
                raise cursor.refusal(
                    "matches no parameter; "
                    + (f"write `{pattern}.*`" if prefixed else nearest(pattern, names))
                )
            if stage.name not in [stage_of.setdefault(name, stage.name) for name in matches]:
                what = f"`{pattern}` belongs" if matches == [pattern] else "all that it matches belongs"
                raise cursor.refusal(
                    f"{what} to the earlier stage {stage_of[matches[0]]}; a parameter has one stage, keep one"
                )
    for name in names:
        if name not in stage_of:
            raise section.refusal(
                f"`{name}` belongs to none of them; list it under the first stage that it affects"
            )


def _check_cost(cursor: Cursor, position: int, stages: Stages, space: Space) -> None:
    """Refuse a cost that is no number from 0, or that differs among trials that share the stage."""
    try:
        expression = parse_expression(cursor.text(), space.names())
    except ValueError as error:
        raise cursor.refusal(f"{error}") from None
    bounds: dict[str, tuple[float, float]] = {}
    for name in expression.coefficients:
        values = [v for v in ends(_unconditional(cursor, name, space)) if is_number(v)]
        if len(values) < len(ends(space.parameter(name))):
            raise cursor.refusal(f"`{name}` is not a number; a cost is an expression in numeric parameters")
        bounds[name] = float(min(values)), float(max(values))
        if stages.position(name) > position:
            raise cursor.refusal(
                f"`{name}` belongs to a later stage, {stages.names[stages.position(name)]}; trials that "
                "share this one would differ in its cost"
            )
    cheapest = {name: bounds[name][factor < 0] for name, factor in expression.coefficients.items()}
    sizes = (abs(factor) * max(map(abs, bounds[name])) for name, factor in expression.coefficients.items())
    if not math.isfinite(sum(sizes, abs(expression.constant))):
        raise cursor.refusal("its numbers are too large")
    if (least := expression.value(cheapest)) < 0:
        where = " and ".join(f"{name} = {value:g}" for name, value in cheapest.items())
        raise cursor.refusal(f"is {least:g}{where and f' at {where}'}; a cost is 0 or more everywhere")


def _trunk(cursor: Cursor, trunk: TrunkSection, position: int, stages: Stages, space: Space) -> Trunk:
    """Return what trials of several lengths share of the stage at a position. Raises SpaceError."""
    at = cursor.at("length")
    length = _unconditional(at, trunk.length, space)
    if isinstance(length, Fixed):
        raise at.refusal(f"`{length.name}` is fixed; a trunk is shared by trials of several lengths")
    if not all(type(value) is int and value >= 0 for value in ends(length)):
        raise at.refusal(f"`{length.name}` is no number of steps: its values must be integers from 0")
    if stages.position(length.name) != position:
        raise at.refusal(
            f"`{length.name}` belongs to the stage {stages.names[stages.position(length.name)]}; "
            f"name the one that has the steps of {stages.names[position]}"
        )
    at, decay = cursor.at("decay"), trunk.decay
    if not isinstance(decay, str):
        if not 0.0 <= decay <= 1.0:
            raise at.refusal(f"{decay:g} is no share of the steps; write 0 to 1, or a parameter's name")
        return Trunk(length=length.name, decay=float(decay))
    for each in ends(_unconditional(at, decay, space)):
        if not is_number(each) or not 0.0 <= each <= 1.0:
            raise at.refusal(
                f"`{decay}` can be {yaml_text(each)}; a share of the steps is a number from 0 to 1"
            )
    if stages.position(decay) > position:
        raise at.refusal(f"`{decay}` belongs to a later stage, {stages.names[stages.position(decay)]}")
    return Trunk(length=length.name, decay=decay)


def _unconditional(cursor: Cursor, name: str, space: Space) -> Parameter:
    """Return the parameter of that name, which every trial has. Raises SpaceError."""
    names = [parameter.name for parameter in space.parameters]
    if name not in names:
        raise cursor.refusal(f"`{name}` is not among the parameters; {nearest(name, names)}")
    if name in space.parents():
        raise cursor.refusal(f"`{name}` depends on a condition, and is not always there to count")
    return space.parameter(name)
