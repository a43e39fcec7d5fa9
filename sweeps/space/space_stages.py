"""Sections of a search space file about the sharing of stages: `stages:` and `snapshots:`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from sweeps.space import space_trunks
from sweeps.space.constraints import Expression, parse_expression
from sweeps.space.definition import Choice, Fixed, Parameter, Range, Snapshots, Space, Stage
from sweeps.space.stages import Stages
from sweeps.space.yaml_cursor import Cursor, Problems, nearest

STAGE_KEYS = ("name", "parameters", "cost", "trunk")
SNAPSHOTS_KEYS = ("keep", "keep_gib")
_STAGE_HINTS = {
    "params": "unknown key; write parameters:",
    "costs": "unknown key; write cost:",
    "steps": "unknown key; write cost: and an expression such as 2*stage1.steps",
}
_PATTERN = re.compile(r"[A-Za-z0-9_.@/*-]+", re.ASCII)
"""Characters of a parameter's name, and `*`."""


def stages(section: Cursor, space: Space) -> tuple[Stage, ...]:
    """Return the program's stages, in order. Raises SpaceError.

    Args:
        section: the list.
        space: with all that the file says, but its stages.
    """
    if space.program.kind == "trainer":
        raise section.refusal(
            "the trainer knows its own stages; take it out (search: {reuse: none} shares none)"
        )
    items = section.items()
    if len(items) == 1:
        raise section.refusal("one stage has none after it to share its end; write two or more")
    problems = Problems()
    tables = [item.table(STAGE_KEYS, _STAGE_HINTS, problems) for item in items]
    for item, entries in zip(items, tables, strict=True):
        for key, example in (("name", "name: stage1"), ("parameters", 'parameters: ["stage1.*", seed]')):
            if key not in entries and not any(
                each.key.startswith(f"{item.path}.") for each in problems.found
            ):
                problems.found.append(item.refusal(f"`{key}:` is missing; write such as {example}"))
    problems.check()
    names = _names([entries["name"] for entries in tables])
    patterns = _patterns(section, dict(zip(names, (e["parameters"] for e in tables), strict=True)), space)
    found = tuple(Stage(name=name, parameters=patterns[name]) for name in names)
    found = space_trunks.with_trunks(
        [entries.get("trunk") for entries in tables], replace(space, stages=found)
    )
    if not any("cost" in entries for entries in tables):
        return found
    for item, entries in zip(items, tables, strict=True):
        if "cost" not in entries:
            raise item.refusal("has no cost:, though another stage has one; write it for all or for none")
    costs = [entries["cost"] for entries in tables]
    _check_costs(costs, replace(space, stages=found))
    return tuple(replace(stage, cost=cost.text()) for stage, cost in zip(found, costs, strict=True))


def snapshots(section: Cursor, space: Space) -> Snapshots:
    """Return the limits on stored snapshots of a space with stages. Raises SpaceError."""
    if space.program.kind != "trainer" and not space.stages:
        raise section.refusal("has no effect without stages:; take it out")
    entries, limits = section.table(SNAPSHOTS_KEYS), Snapshots()
    if "keep" in entries:
        limits = replace(limits, keep=entries["keep"].integer(least=1))
    if "keep_gib" in entries:
        limits = replace(limits, keep_gib=float(entries["keep_gib"].number()))
        if limits.keep_gib is not None and limits.keep_gib <= 0:
            raise entries["keep_gib"].refusal("must be more than 0 GiB; search: {reuse: none} stores none")
    return limits


def _names(cursors: list[Cursor]) -> list[str]:
    names: list[str] = []
    for cursor in cursors:
        name = cursor.folder_name()
        equal = [each for each in names if each.lower() == name.lower()]  # one folder on some systems
        if equal:
            raise cursor.refusal(f"an earlier stage is called {equal[0]}; names are of folders, and differ")
        names.append(name)
    return names


def _patterns(section: Cursor, listed: Mapping[str, Cursor], space: Space) -> dict[str, tuple[str, ...]]:
    """Return the patterns of each stage: each takes a parameter, and together they take all of them."""
    taken: dict[str, str] = {}
    patterns: dict[str, tuple[str, ...]] = {}
    for stage, cursor in listed.items():
        items = cursor.items(may_be_empty=True)  # of a stage that is the same in all trials
        for item in items:
            for name in _matches(item, stage, taken, space):
                taken.setdefault(name, stage)
        patterns[stage] = tuple(item.text() for item in items)
    for parameter in space.parameters:
        if parameter.name not in taken:
            raise section.refusal(
                f"`{parameter.name}` belongs to none of them; list it under the first stage that it affects"
            )
    return patterns


def _matches(item: Cursor, stage: str, taken: Mapping[str, str], space: Space) -> list[str]:
    """Return the parameters that a pattern takes or its own stage has already. Raises SpaceError if none."""
    pattern, names = item.text(), [parameter.name for parameter in space.parameters]
    if not _PATTERN.fullmatch(pattern):
        raise item.refusal("write the name of a parameter, or a pattern in which `*` stands for any text")
    matches = [name for name in names if fnmatchcase(name, pattern)]
    if not matches:
        prefixed = any(name.startswith(f"{pattern}.") for name in names)
        raise item.refusal(
            "matches no parameter; " + (f"write `{pattern}.*`" if prefixed else nearest(pattern, names))
        )
    kept = [name for name in matches if taken.get(name, stage) == stage]
    if not kept:
        earlier = taken[matches[0]]
        what = f"`{pattern}` belongs" if matches == [pattern] else "all that it matches belongs"
        raise item.refusal(f"{what} to the earlier stage {earlier}; a parameter has one stage, keep one")
    return kept


def _check_costs(cursors: list[Cursor], space: Space) -> None:
    """Refuse costs that are no numbers from 0, or that differ among trials that share the stage."""
    stages = Stages(space)
    for position, cursor in enumerate(cursors):
        try:
            expression = parse_expression(cursor.text())
        except ValueError as error:
            raise cursor.refusal(f"{error}") from None
        for name in expression.coefficients:
            _check_operand(cursor, name, space)
            if stages.position(name) > position:
                raise cursor.refusal(
                    f"`{name}` belongs to a later stage, {stages.names[stages.position(name)]}; trials that "
                    "share this one would differ in its cost"
                )
        _check_bounds(cursor, expression, space)


def _check_operand(cursor: Cursor, name: str, space: Space) -> None:
    """Refuse what does not always have a number."""
    names = [parameter.name for parameter in space.parameters]
    if name not in names:
        raise cursor.refusal(f"`{name}` is not among the parameters; {nearest(name, names)}")
    if _ends(space.parameter(name)) is None:
        raise cursor.refusal(f"`{name}` is not a number; a cost is an expression in numeric parameters")
    if name in space.parents():
        raise cursor.refusal(f"`{name}` depends on a condition, and is not always there to count")


def _check_bounds(cursor: Cursor, expression: Expression, space: Space) -> None:
    """Refuse a cost that is negative or infinite anywhere within min: and max:."""
    ends = {name: _ends(space.parameter(name)) or (0.0, 0.0) for name in expression.coefficients}
    cheapest = {name: ends[name][factor < 0] for name, factor in expression.coefficients.items()}
    sizes = (abs(factor) * max(map(abs, ends[name])) for name, factor in expression.coefficients.items())
    if not math.isfinite(sum(sizes, abs(expression.constant))):
        raise cursor.refusal("its numbers are too large")
    if (least := expression.value(cheapest)) < 0:
        where = " and ".join(f"{name} = {value:g}" for name, value in cheapest.items())
        raise cursor.refusal(f"is {least:g}{where and f' at {where}'}; a cost is 0 or more everywhere")


def _ends(parameter: Parameter) -> tuple[float, float] | None:
    """Return the least and the largest value of a numeric parameter; None: it is not numeric."""
    match parameter:
        case Range(min=low, max=high):
            return float(low), float(high)
        case Choice(values=values):
            listed = values
        case Fixed(value=value):
            listed = (value,)
    numbers = [float(each) for each in listed if isinstance(each, int | float) and not isinstance(each, bool)]
    return (min(numbers), max(numbers)) if len(numbers) == len(listed) else None
