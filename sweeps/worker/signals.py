"""SIGTERM, SIGHUP and Ctrl-C for a worker: a flag everywhere, an exception only where it is safe.

An exception out of a signal handler in the middle of a write would tear what is being done; a flag alone
would not end a user's Python function. So the handler sets the flag, and raises only inside `interruptible`.
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
"""Engines signal every process of a job, and those above a worker pass that on: SIGTERM again so soon is the
same notice, and no reason to leave without handing the trial back."""

_LEFT = b"sweep: told twice: left at once; a trial in hand goes on elsewhere when its lease has run out\n"


class Stop:
    """Whether this worker was told to go, and by what."""

    def __init__(self) -> None:
        self._by = ""
        self._at = 0.0
        self._may_raise = False

    @property
    def requested(self) -> bool:
        return bool(self._by)

    @property
    def by(self) -> str:
        """The name of the signal, "" if none came."""
        return self._by

    def listen(self) -> None:
        """Take SIGTERM, SIGINT and SIGHUP from now on. Only the main thread may call this."""
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGINT, self._handle)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # under nohup the terminal's end means nothing
            signal.signal(signal.SIGHUP, self._handle)

    def request(self, by: str) -> None:
        """Ask the worker to go."""
        if not self._by:
            self._by, self._at = by, time.monotonic()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """A block that a request ends at once with `Interrupted`."""
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
            os.write(2, _LEFT)  # print() may be what was interrupted
            os._exit(EXIT_PREEMPTED)  # told twice: no time left; the program dies with us, the lease expires
        self.request(signal.Signals(signum).name)
        if self._may_raise:
            self._may_raise = False
            raise Interrupted(self._by)
