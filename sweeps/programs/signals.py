"""Handling of SIGTERM, SIGHUP and Ctrl-C in a worker: a flag, and an exception only where that is safe.

An exception raised by a signal handler could interrupt a write halfway; a flag alone would not end a user's
Python function. So the handler sets the flag, and raises only inside `interruptible`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from sweeps.errors import EXIT_PREEMPTED, Interrupted

ECHO_S = 5.0
"""Seconds in which another SIGTERM is the same notice: engines signal every process of a job, and a worker's
parents pass the signal on."""

_LEAVING = b"\nsweep: leaving; a trial in hand is handed back first. Ctrl-C again exits at once\n"
_EXITING = (
    b"sweep: second signal: exiting immediately; a trial in hand is resumed once its lease has expired\n"
)


class Stop:
    """Request to a worker to stop, by a signal or by `request`."""

    def __init__(self) -> None:
        self._by = ""
        self._at = 0.0
        self._may_raise = False

    @property
    def requested(self) -> bool:
        """Return whether the worker should stop."""
        return bool(self._by)

    @property
    def by(self) -> str:
        """Return the name of the signal or other source of the request; "" if there is none."""
        return self._by

    def listen(self) -> None:
        """Install the handlers of SIGTERM, SIGINT and SIGHUP. Only the main thread may call this."""
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGINT, self._handle)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # ignored under nohup
            signal.signal(signal.SIGHUP, self._handle)

    def request(self, by: str) -> None:
        """Ask the worker to stop; only the first request counts."""
        if not self._by:
            self._by, self._at = by, time.monotonic()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raise `Interrupted` in the block as soon as a request comes, or at once if there is one."""
        self._may_raise = True
        try:
            if self._by:
                raise Interrupted(self._by)
            yield
        finally:
            self._may_raise = False

    def sleep(self, seconds: float) -> None:
        """Sleep, or raise `Interrupted` as soon as a request comes."""
        with self.interruptible():
            time.sleep(seconds)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._by:
            if signum == signal.SIGTERM and time.monotonic() - self._at < ECHO_S:
                return
            os.write(2, _EXITING)  # the signal may have interrupted print()
            os._exit(EXIT_PREEMPTED)  # no time left: the program dies with this process, the lease expires
        self.request(signal.Signals(signum).name)
        if signum == signal.SIGINT and os.isatty(2):
            os.write(2, _LEAVING)  # to write a checkpoint or to choose a trial can take minutes
        if self._may_raise:
            self._may_raise = False
            raise Interrupted(self._by)
