"""Delays between tries while the store does not answer."""

from __future__ import annotations

from collections.abc import Iterator

RETRY_FOR_S = 1800.0
"""How long a finished result is kept for a store that does not answer."""


def delays() -> Iterator[float]:
    """Yield the seconds to wait between tries: doubling from 1 to 60, `RETRY_FOR_S` in all."""
    delay, total = 1.0, 0.0
    while total < RETRY_FOR_S:
        yield delay
        total += delay
        delay = min(60.0, 2 * delay)
