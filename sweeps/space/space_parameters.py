"""`parameters:` section of a search space file: ranges, choices, fixed values and conditions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sweeps.space.definition import Choice, Fixed, Parameter, Value, is_number, same_value
from sweeps.space.space_ranges import number_range
from sweeps.space.yaml_cursor import Cursor, Problems, nearest, yaml_text
from sweeps.text.counted import counted

MAX_VALUES = 1000

_ID = r"[A-Za-z_][A-Za-z0-9_-]*"
_PATH = rf"{_ID}(?:\.(?:{_ID}|0|[1-9][0-9]*))*"
# `a.b.0.c`, and the groups `a/b` and `a@b.c`: https://hydra.cc/docs/advanced/override_grammar/basic/
_KEY = re.compile(rf"(?:{_PATH}|{_ID}(?:/{_ID})+)(?:@{_PATH})?", re.ASCII)

KEYS = ("min", "max", "distribution", "step", "mu", "sigma", "values", "ordered", "when", "value")
_HINTS = {
    "bounds": "unknown key; write min: and max:",
    "type": "unknown key; the type follows from the values: 1 is an integer, 1.0 a float, true a boolean",
    "log_scale": "unknown key; write distribution: log_uniform_values",
    "scaling": "unknown key; write distribution: log_uniform_values",
    "is_ordered": "unknown key; write ordered:",
    "dependents": "unknown key; write when: {value: [names]}",
    "dependent_parameters": "unknown key; write when: {value: [names]}",
    "parameters": "parameters are not nested; write the dotted Hydra key, such as optimizer.lr",
    "probabilities": "unknown key; all values are equally likely before the first results",
    "q": "unknown key; write step:, and a min: from which the steps count",
    "mean": "unknown key; write mu:",
    "std": "unknown key; write sigma:",
}
_WRAPPERS = ("parameters", "params")
"""Words between the names of nested parameters, as W&B has them."""


def read(section: Cursor, problems: Problems) -> tuple[tuple[Parameter, ...], frozenset[str]]:
    """Return all parameters, in the file's order, and the names of those that are wrong.

    A wrong one is in the place of its name as a fixed null, so that others can refer to it.

    Args:
        section: `parameters:`.
        problems: takes what is wrong, of parameters alone and together.

    Raises:
        SpaceError: it is no mapping of names.
    """
    pairs = [(key.text(), key, body) for key, body in section.pairs()]
    found: dict[str, Parameter] = {}
    wrong: set[str] = set()
    for name, key, body in pairs:
        before = len(problems.found)
        problems.attempt(lambda: _check_name(key), None)  # noqa: B023 - called at once
        missing = Fixed(name=name, value=None)
        found[name] = problems.attempt(lambda: _parameter(name, body), missing)  # noqa: B023 - likewise
        if len(problems.found) > before:
            wrong.add(name)
    if not wrong and all(isinstance(parameter, Fixed) for parameter in found.values()):
        raise section.refusal(
            "there is nothing to search: give at least one parameter min: and max:, or values:"
        )
    bodies = {name: body for name, _, body in pairs}
    right = [parameter for name, parameter in found.items() if name not in wrong]
    problems.attempt(lambda: _check_conditions(right, bodies), None)
    return tuple(found.values()), frozenset(wrong)


def _check_name(key: Cursor) -> None:
    name = key.text()
    if name == "run_dir":
        raise key.refusal("run_dir is set by the worker, a folder for each trial; take it out")
    if not _KEY.fullmatch(name):
        raise key.refusal("not a Hydra key; write letters, digits, `_` and dots, such as stage2.optimizer.lr")


def _parameter(name: str, body: Cursor) -> Parameter:
    is_table = _is_table(body)
    if is_table and (nested := _nested(name, body)):
        others = f", and the {counted(len(nested) - 1, 'other')} likewise" if len(nested) > 1 else ""
        first = next(key for key, inner in body.pairs() if inner.kind() == "a mapping")
        raise first.refusal(f"parameters are not nested; write the dotted Hydra key `{nested[0]}`{others}")
    problems = Problems()
    entries = body.table(KEYS, _HINTS, problems) if is_table else {}
    if problems.found:  # what else is wrong with the parameter may follow from it, but not these
        for key in ("min", "max", "step", "mu", "sigma"):
            if key in entries:
                problems.attempt(entries[key].number, 0)
        problems.check()
    keys = [key for key in ("value", "values", "min", "max") if key in entries]
    if keys not in (["value"], ["values"], ["min", "max"]):
        has = f"has {' and '.join(f'{key}:' for key in keys)}" if keys else "has neither bounds nor values"
        raise body.refusal(f"{has}; write either min: and max:, or values:, or value:")
    for key, needed in (("ordered", "values"), ("step", "min"), ("mu", "min"), ("sigma", "min")):
        if key in entries and needed not in entries:
            bounds = "values:" if needed == "values" else "min: and max:"
            raise entries[key].refusal(f"goes only with {bounds}")
    if "when" in entries and "value" in entries:
        raise entries["when"].refusal("goes only with values:, or with min: and max:")
    if "value" in entries:
        _check_undistributed(entries, "value", called="constant")
        return Fixed(name=name, value=entries["value"].value_or_list())
    if "values" in entries:
        return _choice(name, entries)
    return number_range(name, entries)


def _nested(name: str, body: Cursor) -> list[str]:
    """Return the dotted names of the parameters that are written inside of another; none in what is one."""
    found: list[str] = []
    for key, inner in body.pairs():
        word = key.text()
        if inner.kind() != "a mapping" or word == "when" or not re.fullmatch(_PATH, word, re.ASCII):
            continue
        path = name if word in _WRAPPERS else f"{name}.{word}"
        is_one = any(entry.text() in KEYS for entry, _ in inner.pairs())
        found += [path] if is_one else _nested(path, inner)
    return found


def _is_table(body: Cursor) -> bool:
    """Return whether it is a mapping. Raises SpaceError, with the mapping to write, for other values."""
    kind = body.kind()
    if kind == "a mapping":
        return True
    if kind == "a list":
        raise body.refusal("expected a mapping, found a list; write {values: [...]}")
    if kind == "nothing":
        return False
    raise body.refusal(f"write {{value: {kind.strip('`')}}} for a fixed value")


def _check_undistributed(entries: Mapping[str, Cursor], kind: str, *, called: str) -> None:
    """Refuse a distribution in addition to `kind`, other than W&B's redundant name for it."""
    if "distribution" in entries and entries["distribution"].text() != called:
        raise entries["distribution"].refusal(f"{kind}: has no distribution; take it out")


def _choice(name: str, entries: Mapping[str, Cursor]) -> Choice:
    _check_undistributed(entries, "values", called="categorical")
    listed = entries["values"]
    values = _values(listed)
    ordered = entries["ordered"].boolean() if "ordered" in entries else False
    numbers = [value for value in values if is_number(value)]
    if ordered and numbers != sorted(numbers):
        raise listed.refusal("ordered: true needs ascending numbers; sort them")
    when = _when(entries["when"], values) if "when" in entries else ()
    return Choice(name=name, values=values, ordered=ordered, when=when)


def _values(listed: Cursor) -> tuple[Value, ...]:
    items, problems = listed.items(), Problems()
    values: list[Value] = [problems.attempt(item.value_or_list, None) for item in items]
    problems.check()
    if len(values) == 1:
        raise listed.refusal(f"one value is no choice; write value: {yaml_text(values[0])}")
    if len(values) > MAX_VALUES:
        raise listed.refusal(
            f"{len(values)} values; the optimizer takes {MAX_VALUES} at most, write min: and max:"
        )
    kinds = {_kind(value) for value in values if value is not None}
    if len(kinds) > 1:
        raise listed.refusal(
            f"mixes {' and '.join(sorted(kinds))}; give all values one type, quotes make text"
        )
    if None in values and "null" in values:
        raise listed.refusal("null and the text 'null' are the same in a table; give the text another name")
    if any(isinstance(value, float) for value in values):
        values = [float(value) if is_number(value) else value for value in values]
    for position, value in enumerate(values):
        if any(same_value(value, earlier) for earlier in values[:position]):
            raise items[position].refusal(f"`{yaml_text(value)}` is listed twice")
    return tuple(values)


def _kind(value: Value) -> str:
    if isinstance(value, bool):
        return "booleans"
    if isinstance(value, tuple):
        return "lists"
    return "text" if isinstance(value, str) else "numbers"


def _when(body: Cursor, values: Sequence[Value]) -> tuple[tuple[Value, tuple[str, ...]], ...]:
    conditions: list[tuple[Value, tuple[str, ...]]] = []
    for key, children in body.pairs():
        written = key.value_or_list()
        found = [value for value in values if same_value(value, written)]
        # JSON's keys are texts, and YAML's are no lists: "null", "true" and "[1, 2]" stand for the values.
        found = found or [value for value in values if yaml_text(value) == written]
        if not found:
            shown = ", ".join(yaml_text(value) for value in values)
            raise key.refusal(f"`{yaml_text(written)}` is not one of the values ({shown})")
        value = found[0]
        if any(same_value(value, earlier) for earlier, _ in conditions):
            raise key.refusal("written twice; put all names in one list")
        conditions.append((value, tuple(child.text() for child in children.items())))
    if not conditions:
        raise body.refusal("is empty; write {value: [names of parameters]}")
    return tuple(conditions)


def _check_conditions(parameters: Sequence[Parameter], bodies: Mapping[str, Cursor]) -> None:
    """Refuse children that do not exist, have two parents, or depend on themselves."""
    parent_of: dict[str, str] = {}
    for parameter in parameters:
        for child in _children(bodies[parameter.name]):
            name = child.text()
            if name not in bodies:
                raise child.refusal(f"`{name}` is not among the parameters; {nearest(name, bodies)}")
            if name in parent_of:
                raise child.refusal(f"`{name}` depends on `{parent_of[name]}` already; one condition each")
            parent_of[name] = parameter.name
            if cycle := _cycle(name, parent_of):
                raise child.refusal(f"`{name}` would depend on itself: {' -> '.join(cycle)}")


def _children(body: Cursor) -> list[Cursor]:
    """Return the names in `when:`, as cursors."""
    when = {key.text(): value for key, value in body.pairs()}.get("when")
    return [child for _, children in when.pairs() for child in children.items()] if when else []


def _cycle(name: str, parent_of: Mapping[str, str]) -> list[str]:
    path = [name]
    while path[-1] in parent_of:
        path.append(parent_of[path[-1]])
        if path[-1] == name:
            return path
    return []
