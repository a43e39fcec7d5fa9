"""Conversion of texts, names and numbers of any origin to what a record can hold.

JSON in UTF-8 has no lone surrogates, no NaN and no unlimited integers, and records of megabytes would slow
every listing. `Records.apply` passes each event through `event`; `result` and `progress_log` in
`sweeps.programs` use the parts and log what they leave out.
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
"""Characters of an error: the last fifty lines of a program's output are about eight thousand."""

_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_LATEST = 1e15  # seconds; larger numbers are no times
_LARGEST_INT = 2**53
"""Larger integers become floats: tables and databases hold none beyond 2**63."""


def text(message: str) -> str:
    """Return the text with U+FFFD for each lone surrogate, without the middle if it is very long.

    It is cut between words: half of a secret would not be recognised as one.
    """
    if len(message) > MAX_TEXT:
        half = MAX_TEXT // 2
        begin, end = message[:half], message[-half:]
        if not begin[-1].isspace():
            begin = begin[: max(begin.rfind(" "), begin.rfind("\n")) + 1]
        if not message[-half - 1].isspace():
            end = re.sub(r"^\S*", "", end)
        message = f"{begin}… {len(message) - len(begin) - len(end)} characters left out …{end}"
    return message.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def line(message: str, limit: int = MAX_LINE) -> str:
    """Return the text in one line of at most `limit` characters, without control characters."""
    return _UNFIT.sub(" ", text(message[:limit])).strip()


def is_name(name: object) -> bool:
    """Return whether it can name a metric: a text of at most `MAX_NAME` characters, none of control."""
    return isinstance(name, str) and len(name) <= MAX_NAME and _UNFIT.search(name) is None


def number(value: Any) -> float | None:
    """Return a number of Python, NumPy or torch as JSON's, or None if it is not finite."""
    try:
        if isinstance(value, int) and abs(value) <= _LARGEST_INT:
            return int(value)
        converted = float(value)
        return converted if math.isfinite(converted) else None
    except Exception:  # noqa: BLE001 - a user's object may raise anything in `__float__`
        return None


def seconds(value: object) -> float:
    """Return a time since the epoch that a person may have edited; 0, not known, for what is none."""
    return float(value) if isinstance(value, int | float) and abs(value) < _LATEST else 0.0


def error_text(error: BaseException) -> str:
    """Return the exception's type and message, also where `str` fails."""
    try:
        message = str(error)
    except Exception as other:  # noqa: BLE001 - a user's class may raise anything in `__str__`
        message = f"(its text could not be made: {type(other).__name__})"
    return text(f"{type(error).__name__}: {message}")


def event(original: Event) -> Event:
    """Return the event with texts, names and numbers that a record can hold, without the others."""
    changed: dict[str, Any] = {}
    for each in fields(original):
        value = getattr(original, each.name)
        if isinstance(value, str):
            changed[each.name] = text(value)
        elif isinstance(value, Mapping):
            held = {name: _value(inner) for name, inner in value.items() if is_name(name)}
            if isinstance(original, Heartbeat):  # progress cannot say "not finite"
                held = {name: inner for name, inner in held.items() if inner is not None}
            changed[each.name] = held
    return replace(original, **changed)


def _value(value: object) -> bool | float | str | None:
    if isinstance(value, str):
        return line(value)
    return value if isinstance(value, bool) else number(value)
