"""Estimate of a server's clock from the `Date` headers of its responses, which have whole seconds.

Each response bounds the offset between the server's clock and the local one: the server stamped it between
request and response, within the second of `Date`. The bounds of many responses meet within a fraction of a
second. The estimate of a machine that was suspended lags behind until the next response and never runs ahead:
it sees leases as younger than they are, and never takes over a live one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from functools import lru_cache

_DRIFT = 2e-4  # of a quartz clock, seconds per second: the bounds widen by it between responses
_JITTER_S = 2.0  # smaller steps back are hidden; larger ones mean that the server's clock was set back


def steady_seconds() -> float:
    """Return monotonic seconds, including those of a suspended machine where the system counts them."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


@lru_cache(maxsize=4)  # hundreds of responses share a second
def _epoch_seconds(date: str) -> float:
    return parsedate_to_datetime(date).timestamp()


class ServerClock:
    """Thread-safe clock of a server, in seconds since the epoch.

    Args:
        local: monotonic clock of this machine, in seconds.
    """

    def __init__(self, local: Callable[[], float] = steady_seconds) -> None:
        self.local = local
        self._lock = threading.Lock()
        self._bounds: tuple[float, float] | None = None  # of server minus local
        self._observed = 0.0
        self._last = float("-inf")

    def observe(self, date: str | None, sent: float, received: float) -> None:
        """Learn from a response's `Date`; `sent` and `received` are local times around the request."""
        if date is None:
            return
        try:
            second = _epoch_seconds(date)
        except ValueError:
            return  # written by a proxy; the next response will do
        low, high = second - received, second + 1.0 - sent
        with self._lock:
            if self._bounds is not None:
                loose = max(0.0, received - self._observed) * _DRIFT
                met = max(low, self._bounds[0] - loose), min(high, self._bounds[1] + loose)
                if met[0] <= met[1]:  # else one of the clocks was set: only the newest response counts
                    low, high = met
            self._bounds, self._observed = (low, high), received

    def age(self) -> float:
        """Return the seconds since the last response, infinity before the first."""
        with self._lock:
            return float("inf") if self._bounds is None else self.local() - self._observed

    def now(self) -> float:
        """Return the server's time, which steps back only if the server's clock was set back.

        Raises:
            RuntimeError: no response was observed yet.
        """
        with self._lock:
            if self._bounds is None:
                raise RuntimeError("no response was observed yet")
            estimate = self.local() + sum(self._bounds) / 2
            if self._last - _JITTER_S < estimate < self._last:
                return self._last
            self._last = estimate
            return estimate
