"""Who has fallen silent, also after the store's clock was set back. `asking` takes trials over by it.

A folder's clock is a machine's, and somebody may set it. Set back by an hour, every heartbeat lies in the
future, and each running trial would be taken at once from a worker that is alive. Whoever sees such a
heartbeat waits for the next one, by seconds of its own machine that nobody sets.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sweeps.trials import lifecycle
from sweeps.trials.record import Trial


class Silence:
    """Watches the heartbeats of one sweep, for one process.

    Args:
        expire_s: the lease's time, in seconds.
        steady: seconds that nobody sets.
    """

    def __init__(self, expire_s: float, steady: Callable[[], float] = time.monotonic) -> None:
        self._expire_s, self._steady = expire_s, steady
        self._watched: dict[int, tuple[int, float, float]] = {}  # index -> attempt, heartbeat, since when

    def is_stale(self, record: Trial, now: float) -> bool:
        """Return whether the trial's worker has given no sign of life for the lease's time.

        Args:
            now: the store's time.
        """
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
