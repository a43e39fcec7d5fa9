"""Detection of lost workers, also after the store's clock was set back.

A folder's clock is a machine's, which may be set. Set back by an hour, every heartbeat lies in the future,
and each running trial would be taken from a live worker. After such a heartbeat, a process waits for the next
one by its own monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sweeps.trials import lifecycle
from sweeps.trials.record import Trial


class Silence:
    """Monitor of the heartbeats of one sweep, for one process.

    Args:
        expire_s: seconds without a heartbeat after which a worker is lost.
        steady: monotonic clock, in seconds.
    """

    def __init__(self, expire_s: float, steady: Callable[[], float] = time.monotonic) -> None:
        self._expire_s, self._steady = expire_s, steady
        self._watched: dict[int, tuple[int, float, float]] = {}  # index -> attempt, heartbeat, since when

    def is_stale(self, record: Trial, now: float) -> bool:
        """Return whether the trial's worker has sent no heartbeat for `expire_s`."""
        if record.heartbeat is None or not lifecycle.is_stale(record, now, self._expire_s):
            self._watched.pop(record.trial, None)
            return False
        if record.heartbeat < now:
            return True
        here = self._steady()
        watched = self._watched.get(record.trial)
        if watched is None or watched[:2] != (record.attempt, record.heartbeat):
            watched = self._watched[record.trial] = (record.attempt, record.heartbeat, here)
        return here - watched[2] > self._expire_s
