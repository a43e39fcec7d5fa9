"""Counts in messages for people: `1 worker`, `3 workers`. Whatever tells a number of things calls this.

Rooms may not import each other, so each has these lines;
`tests/contracts/test_counted.py` holds them together.
"""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """The number with its noun: `1 process`, `2 processes`. `plural` is given where an s is not enough."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"
