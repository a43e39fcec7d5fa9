"""Counts in messages: `1 worker`, `3 workers`."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return the number with its noun; `plural` is needed only where an s is not enough."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"
