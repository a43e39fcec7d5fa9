"""Values as people read them in tables and lines."""

from __future__ import annotations

from typing import Any

from sweeps.text.counted import counted


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


def shown_bytes(count: int | None) -> str:
    """Return a size in bytes for people; None is an unknown size."""
    if count is None:
        return "of unknown size"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return counted(count, "byte")
