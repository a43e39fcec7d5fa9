"""Values, times and errors as people read them in tables and lines."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sweeps.text.counted import counted


def shorten(value: Any) -> str:
    """Return a value for people, with five significant digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.5g}" if abs(value) < 1e5 or not value.is_integer() else f"{value:.3e}"
    if isinstance(value, int) and abs(value) >= 10**7:
        return f"{value:.3e}"
    return "".join(c if c.isprintable() else " " for c in str(value))  # no escape codes of a program


def one_line(error: BaseException) -> str:
    """Return an exception's message in one line; its type, if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, as libraries explain at length; its type, if none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def shown_bytes(count: int | None) -> str:
    """Return a size in bytes for people; None is an unknown size."""
    if count is None:
        return "of unknown size"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return counted(count, "byte")


def timestamp(seconds: float) -> str:
    """Return seconds since the epoch as date and time in UTC; "?" for what is no time."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "?"


def iso(seconds: float) -> str:
    """Return seconds since the epoch as in ISO 8601, `2026-11-25T08:00:00Z`; "" for what is no time."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return ""
