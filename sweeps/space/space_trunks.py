"""`trunk:` of a stage in a search space file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sweeps.space.definition import Choice, Fixed, Parameter, Range, Space, Stage, Trunk, Value, is_number
from sweeps.space.stages import Stages
from sweeps.space.yaml_cursor import Cursor, nearest, yaml_text

TRUNK_KEYS = ("length", "decay")
_HINTS = {
    "every": "unknown key; the program itself decides after which steps it leaves a point",
    "steps": "unknown key; write length: and the parameter that has the stage's steps",
}
_EXAMPLE = "{length: align.steps, decay: 0.15}"


def with_trunks(cursors: Sequence[Cursor | None], space: Space) -> tuple[Stage, ...]:
    """Return the stages with their trunks. Raises SpaceError.

    Args:
        cursors: `trunk:` of each stage; None where it has none.
        space: with its stages.
    """
    stages = Stages(space)
    return tuple(
        stage if cursor is None else replace(stage, trunk=_trunk(cursor, position, stages, space))
        for position, (stage, cursor) in enumerate(zip(space.stages, cursors, strict=True))
    )


def _trunk(cursor: Cursor, position: int, stages: Stages, space: Space) -> Trunk:
    entries = cursor.table(TRUNK_KEYS, _HINTS)
    for key in TRUNK_KEYS:
        if key not in entries:
            raise cursor.refusal(f"`{key}:` is missing; write such as trunk: {_EXAMPLE}")
    return Trunk(
        length=_length(entries["length"], position, stages, space),
        decay=_decay(entries["decay"], position, stages, space),
    )


def _length(cursor: Cursor, position: int, stages: Stages, space: Space) -> str:
    parameter = _parameter(cursor, cursor.text(), space)
    if isinstance(parameter, Fixed):
        raise cursor.refusal(f"`{parameter.name}` is fixed; a trunk is shared by trials of several lengths")
    counts = (
        parameter.kind == "int" and parameter.min >= 0
        if isinstance(parameter, Range)
        else all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in parameter.values)
    )
    if not counts:
        raise cursor.refusal(f"`{parameter.name}` is no number of steps: its values must be integers from 0")
    if stages.position(parameter.name) != position:
        raise cursor.refusal(
            f"`{parameter.name}` belongs to the stage {stages.names[stages.position(parameter.name)]}; "
            f"name the one that has the steps of {stages.names[position]}"
        )
    return parameter.name


def _decay(cursor: Cursor, position: int, stages: Stages, space: Space) -> float | str:
    value = cursor.value()
    if not isinstance(value, str):
        share = float(cursor.number())
        if not 0.0 <= share <= 1.0:
            raise cursor.refusal(f"{share:g} is no share of the steps; write 0 to 1, or a parameter's name")
        return share
    for each in _values(_parameter(cursor, value, space)):
        if not is_number(each) or not 0.0 <= each <= 1.0:
            raise cursor.refusal(
                f"`{value}` can be {yaml_text(each)}; a share of the steps is a number from 0 to 1"
            )
    if stages.position(value) > position:
        raise cursor.refusal(f"`{value}` belongs to a later stage, {stages.names[stages.position(value)]}")
    return value


def _values(parameter: Parameter) -> tuple[Value, ...]:
    """Return the ends of a range, or all values."""
    match parameter:
        case Range(min=low, max=high):
            return low, high
        case Choice(values=values):
            return values
        case Fixed(value=value):
            return (value,)


def _parameter(cursor: Cursor, name: str, space: Space) -> Parameter:
    names = [parameter.name for parameter in space.parameters]
    if name not in names:
        raise cursor.refusal(f"`{name}` is not among the parameters; {nearest(name, names)}")
    if name in space.parents():
        raise cursor.refusal(f"`{name}` depends on a condition, and is not always there to count")
    return space.parameter(name)
