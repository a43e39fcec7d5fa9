"""Values as people read them in tables and lines."""

from __future__ import annotations

from typing import Any


def shorten(value: Any) -> str:
    """Return a value for people, with five significant digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.5g}" if abs(value) < 1e5 or value != int(value) else f"{value:.3e}"
    if isinstance(value, int) and abs(value) >= 10**7:
        return f"{value:.3e}"
    return "".join(c if c.isprintable() else " " for c in str(value))  # no escape codes of a program
