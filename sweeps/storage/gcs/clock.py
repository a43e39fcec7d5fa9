"""The clock of a server that tells the time in whole seconds: estimated from the `Date` of its responses.

`gcs` feeds it every response and asks it for the time. Each response bounds the offset between the server's
clock and this machine's (the server stamped it somewhere between the request and the answer, somewhere in the
second that `Date` names); the bounds of many responses meet within a fraction of a second. A machine that was
paused lags behind the server until the next response, never ahead of it: a lagging reader sees leases as
younger than they are, and takes none over that is alive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from functools import lru_cache

# What a quartz may drift between two responses: the bounds loosen with time.
_DRIFT = 2e-4
# A step back of the estimate up to here is jitter and is hidden; beyond it the server's clock was set back.
_JITTER_S = 2.0


def steady_seconds() -> float:
    """Seconds that pass while the machine sleeps, too, where the system counts them."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


@lru_cache(maxsize=4)  # hundreds of responses share a second
def _parsed(date: str) -> float:
    return parsedate_to_datetime(date).timestamp()


class ServerClock:
    """The server's time in seconds since the epoch, once one response was seen. Safe to share by threads."""

    def __init__(self, local: Callable[[], float] = steady_seconds) -> None:
        self.local = local
        self._lock = threading.Lock()
        self._bounds: tuple[float, float] | None = None  # of server minus local
        self._observed = 0.0
        self._told = float("-inf")

    def observe(self, date: str | None, sent: float, received: float) -> None:
        """Learn from a response's `Date`; `sent` and `received` are local times around the request."""
        if date is None:
            return
        try:
            second = _parsed(date)
        except ValueError:
            return  # a proxy's own making; the next response will do
        low, high = second - received, second + 1.0 - sent
        with self._lock:
            if self._bounds is not None:
                loose = max(0.0, received - self._observed) * _DRIFT
                met = max(low, self._bounds[0] - loose), min(high, self._bounds[1] + loose)
                if met[0] <= met[1]:  # else one of the clocks was set: only the newest word counts
                    low, high = met
            self._bounds, self._observed = (low, high), received

    def age(self) -> float:
        """Seconds since the last response; infinite before the first."""
        with self._lock:
            return float("inf") if self._bounds is None else self.local() - self._observed

    def now(self) -> float:
        """The server's time. It never steps back, unless the server's own clock was set back by seconds."""
        with self._lock:
            if self._bounds is None:
                raise RuntimeError("no response was seen yet")
            estimate = self.local() + sum(self._bounds) / 2
            if self._told - _JITTER_S < estimate < self._told:
                return self._told
            self._told = estimate
            return estimate
