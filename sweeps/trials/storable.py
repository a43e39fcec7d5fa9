"""What a record can hold, made of what a program, a library or a person said.

JSON in UTF-8 has no halves of surrogate pairs, no NaN and no integers without end, and a record that grows by
megabytes slows every listing. `records` passes each event through `event` before it is applied; `result` and
`runlog` use the parts, to say what they leave out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from sweeps.trials.lifecycle import Event, Heartbeat

MAX_NAME = 200
"""Characters of a metric's name."""

MAX_LINE = 500
"""Characters of a stage's or a worker's name."""

MAX_TEXT = 32_768
"""Characters of an error: fifty last words of a program are eight thousand."""

_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_LARGEST_INT = 2**53
"""Beyond it a float is as good, and tables and databases hold no larger integer than 2**63."""


def text(said: str) -> str:
    """Return the text with U+FFFD for each half of a surrogate pair, without the middle if it is very long.

    It is cut between words: half of a secret would not be recognised as one.
    """
    if len(said) > MAX_TEXT:
        half = MAX_TEXT // 2
        begin, end = said[:half], said[-half:]
        if not begin[-1].isspace():
            begin = begin[: max(begin.rfind(" "), begin.rfind("\n")) + 1]
        if not said[-half - 1].isspace():
            end = re.sub(r"^\S*", "", end)
        said = f"{begin}… {len(said) - len(begin) - len(end)} characters left out …{end}"
    return said.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def line(said: str, limit: int = MAX_LINE) -> str:
    """Return the text in one line of at most `limit` characters, without control characters."""
    return _UNFIT.sub(" ", text(said[:limit])).strip()


def is_name(name: object) -> bool:
    """Return whether a metric can be called so: a text of at most `MAX_NAME` characters, none of control."""
    return isinstance(name, str) and len(name) <= MAX_NAME and _UNFIT.search(name) is None


def number(value: Any) -> float | None:
    """Return the number as JSON has it, from Python's, NumPy's or torch's; None if it is not finite."""
    try:
        if isinstance(value, int) and abs(value) <= _LARGEST_INT:
            return int(value)
        converted = float(value)
        return converted if math.isfinite(converted) else None
    except Exception:  # noqa: BLE001 - a user's object may raise anything when it is asked for its number
        return None


def raised(error: BaseException) -> str:
    """Return the exception's type and text, also where it has no text that could be had."""
    try:
        said = str(error)
    except Exception as other:  # noqa: BLE001 - its class is the user's
        said = f"(its text could not be made: {type(other).__name__})"
    return text(f"{type(error).__name__}: {said}")


def event(given: Event) -> Event:
    """Return the event with texts, names and numbers that a record can hold; what it cannot is left out."""
    changed: dict[str, Any] = {}
    for each in fields(given):
        value = getattr(given, each.name)
        if isinstance(value, str):
            changed[each.name] = text(value)
        elif isinstance(value, Mapping):
            held = {name: _value(inner) for name, inner in value.items() if is_name(name)}
            if isinstance(given, Heartbeat):  # progress has no word for "not finite"
                held = {name: inner for name, inner in held.items() if inner is not None}
            changed[each.name] = held
    return replace(given, **changed)


def _value(value: object) -> bool | float | str | None:
    if isinstance(value, str):
        return line(value)
    return value if isinstance(value, bool) else number(value)
