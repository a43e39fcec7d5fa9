"""Meanings of configuration keys, read from the docstrings of the dataclasses that hold them."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args, get_type_hints

from trainer.config.run import Config

_ENTRY = re.compile(r" {4}(\w+(?:, \w+)*): (.+)")


def meanings(key: str) -> list[tuple[type, str]]:
    """Return the dataclasses that have the key, each with what its docstring says of it; [] if none has it.

    Args:
        key: dotted, such as `stage2.optimizer.lr`.
    """
    classes: list[type] = [Config]
    *parents, name = key.split(".")
    for part in parents:
        classes = list(dict.fromkeys(inner for each in classes for inner in _inside(each, part)))
    return [(each, _arguments(each)[name]) for each in classes if name in _arguments(each)]


def annotation(owner: type, name: str) -> Any:
    """Return the type of a field, with its bounds."""
    return _hints(owner)[name]


def _inside(owner: type, name: str) -> Iterator[type]:
    """Yield the dataclasses that a field may hold."""
    waiting = [_hints(owner).get(name)]
    while waiting:
        each = waiting.pop(0)
        if dataclasses.is_dataclass(each) and isinstance(each, type):
            yield each
        waiting = [*get_args(each), *waiting]


@cache
def _hints(owner: type) -> dict[str, Any]:
    return get_type_hints(owner, include_extras=True)


@cache
def _arguments(owner: type) -> dict[str, str]:
    """Return what the docstrings of a dataclass and of its bases say of its fields."""
    found: dict[str, str] = {}
    for each in reversed(owner.__mro__):
        _, _, section = inspect.cleandoc(each.__dict__.get("__doc__") or "").partition("\nArgs:\n")
        names: list[str] = []
        for line in section.splitlines():
            if (entry := _ENTRY.fullmatch(line)) is not None:
                names = entry[1].split(", ")
                found |= dict.fromkeys(names, entry[2])
            elif line.startswith("     "):
                found |= {name: f"{found[name]} {line.strip()}" for name in names}
            else:
                names = []
    return found
