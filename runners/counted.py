"""Counts in messages for people: `1 worker`, `3 workers`.

The packages may not import each other, so each has its own; `tests/contracts/test_counted.py` compares them.
"""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return the number with its noun: `1 process`; give `plural` where it is not the noun and an s."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"
