"""Search spaces and configurations from Python values or words of a command line, checked like a file's.

They are written as JSON, which is YAML, so that every message is that of the same mistake in a search space
file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sweeps.errors import SpaceError
from sweeps.space import space_checks, space_file, yaml_cursor
from sweeps.space.definition import Choice, Fixed, Program, Space, Value
from sweeps.space.fidelity import target_values
from sweeps.space.overrides import split
from sweeps.space.yaml_cursor import Cursor

CALLER = Program(kind="function")
"""Program of a sweep whose trials are run by whoever asks for them."""

_EXAMPLE = 'write a dict of parameters and values, such as {"lr": 0.01}'

_TRIALS = "write a list of trials, such as `- {lr: 0.001}`"

_ANY_FUNCTION = {"function": "any:function"}


def space_of(document: Mapping[str, Any], where: str) -> Space:
    """Return the search space of a document with the keys of a search space file; `program` may be left out.

    Args:
        document: the sections, as `yaml` would read them.
        where: what the document is, for messages.

    Raises:
        SpaceError: something in it cannot be searched.
    """
    given = document if "program" in document else {**document, "program": _ANY_FUNCTION}
    with _without_lines(where):
        space = space_file.loads(_as_json(given, where), where)
    return space if "program" in document else replace(space, program=CALLER)


def configuration(space: Space, values: Mapping[str, Any], where: str) -> Mapping[str, Value]:
    """Return a trial's parameters for these values; others have those of the baseline, or their middle.

    Raises:
        SpaceError: there is no such parameter, it cannot have this value, or a constraint is broken.
    """
    if not isinstance(values, Mapping):
        raise SpaceError(f"{_EXAMPLE}, not {values!r:.80}", file=where)
    with _without_lines(where):
        return _configuration(yaml_cursor.parse(_as_json(values, where), where), space)


def configuration_of_words(space: Space, words: Sequence[str], where: str) -> Mapping[str, Value]:
    """Return a trial's parameters for words such as `lr=1e-3`. Raises SpaceError, as `configuration`."""
    values: dict[str, Value] = {}
    for word in words:
        try:
            name, text = split(word)
        except ValueError as error:
            raise SpaceError(str(error), file=where) from None
        if name in values:
            raise SpaceError("given twice; keep one", file=where, key=name)
        values[name] = _parse(space, name, text)
    return configuration(space, values, where)


def configurations_of_file(space: Space, path: Path) -> list[Mapping[str, Value]]:
    """Return the parameters of trials in a YAML or JSON file: a mapping, or a list of them.

    Raises:
        SpaceError: the file cannot be read, or see `configuration`; with file and line.
    """
    root = yaml_cursor.parse(space_file.text_of(path, _TRIALS), str(path))
    if root.kind() == "a list":
        return [_configuration(item, space) for item in root.items()]
    if root.kind() != "a mapping":
        raise root.refusal(_TRIALS)
    return [_configuration(root, space)]


def _configuration(section: Cursor, space: Space) -> Mapping[str, Value]:
    return space_checks.baseline(section, space, {**(space.baseline or {}), **target_values(space)})


def _parse(space: Space, name: str, text: str) -> Value:
    """Return a word of a command line as the parameter's value, or as a number or a boolean; else text."""
    parameter = next((each for each in space.parameters if each.name == name), None)
    members: tuple[Value, ...] = ()
    if isinstance(parameter, Choice | Fixed):
        members = parameter.values if isinstance(parameter, Choice) else (parameter.value,)
    if text in ("", "~") and text in members:
        return text
    bare = text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
    if bare in members:
        return bare
    try:
        value = yaml_cursor.parse(f"value: {text}", name).at("value").value_or_list()
    except SpaceError:
        return text
    return value


@contextmanager
def _without_lines(where: str) -> Iterator[None]:
    """Leave the line out of errors about a document that has only one."""
    try:
        yield
    except SpaceError as error:
        found = [SpaceError(each.problem, file=where, key=each.key) for each in error.problems]
        raise SpaceError.together(found) from None


def _as_json(document: Mapping[str, Any], where: str) -> str:
    try:
        return json.dumps(dict(document), ensure_ascii=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise SpaceError(f"{error}; write numbers, texts, booleans, lists and dicts", file=where) from None


def _plain(value: Any) -> Any:
    """Return a scalar of NumPy or torch, a path or another mapping as JSON has it. Raises TypeError."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be written down")
