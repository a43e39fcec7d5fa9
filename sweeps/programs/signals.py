"""Handling of SIGTERM, SIGHUP and Ctrl-C in a worker: a flag, and an exception only where that is safe.

An exception raised by a signal handler could interrupt a write halfway; a flag alone would not end a user's
Python function. So the handler sets the flag, and raises only inside `interruptible`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, ClassVar

from sweeps.errors import EXIT_PREEMPTED, Interrupted

ECHO_S = 5.0
"""Seconds in which another SIGTERM is the same notice: engines signal every process of a job, and a worker's
parents pass the signal on."""

_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_LEAVING = b"\nsweep: leaving; a trial in hand is handed back first. Ctrl-C again exits at once\n"
_EXITING = (
    b"sweep: second signal: exiting immediately; a trial in hand is resumed once its lease has expired\n"
)


class Stop:
    """Request to a worker to stop, by a signal or by `request`."""

    _latest: ClassVar[Stop | None] = None

    def __init__(self) -> None:
        self._by = ""
        self._at = 0.0
        self._is_relayed = False  # and no signal has come since
        self._may_raise = False
        self._arrived = -1
        self._before: dict[int, Any] = {}

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
        for signum in _STOPPING:
            before = signal.getsignal(signum)
            if signum != signal.SIGHUP or before != signal.SIG_IGN:  # ignored under nohup
                self._before[signum] = before
                signal.signal(signum, self._handle)
        self._overhear()

    @contextmanager
    def overhearing(self) -> Iterator[None]:
        """Let `heard` know of signals in the block, whose handlers stay. In another thread it never does."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before, writer = self._overhear()
        try:
            yield
        finally:
            current = signal.set_wakeup_fd(before)
            if current not in (-1, writer):  # a function's own, such as asyncio's, and perhaps still in use
                with suppress(OSError):  # it is closed
                    signal.set_wakeup_fd(current, warn_on_full_buffer=False)
            os.close(writer)
            os.close(self._arrived)
            self._arrived = -1

    def _overhear(self) -> tuple[int, int]:
        """Let Python write signals into a pipe of this object.

        Returns:
            Where it wrote them before, and the pipe's end where it writes them now.
        """
        self._arrived, writer = os.pipe()
        os.set_blocking(self._arrived, False)
        os.set_blocking(writer, False)
        Stop._latest = self
        return signal.set_wakeup_fd(writer, warn_on_full_buffer=False), writer

    def heard(self) -> bool:
        """Return whether a signal to stop has come since the last call, and take it as a request.

        A function of the user's may have replaced the handlers, as `Trainer` of transformers does with
        `enable_jit_checkpoint`, or have caught the exception, as Lightning does.
        """
        if self._arrived < 0:
            return False
        try:
            numbers = os.read(self._arrived, 4096)
        except BlockingIOError:
            return False
        came = [number for number in numbers if number in _STOPPING]
        if came:
            self.request(signal.Signals(came[0]).name)
        return bool(came)

    def request(self, by: str) -> None:
        """Ask the worker to stop; only the first request counts."""
        if not self._by:
            self._by, self._at = by, time.monotonic()

    def relay(self) -> None:
        """Ask the worker to stop since another host of its gang was told to, as a signal would.

        The next signal is the first of this process's own: it has its time to leave from then on.
        """
        if not (self._by or self._is_relayed):
            self._is_relayed = True
            os.kill(os.getpid(), signal.SIGTERM)  # interrupts what waits, where `request` would not

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

    @classmethod
    def _forget(cls) -> None:
        """Leave the parent's signals alone, in a forked child such as one of a function's process pool."""
        stop, cls._latest = cls._latest, None
        if stop is None or stop._arrived < 0:
            return
        with suppress(ValueError):  # forked by another thread than the main one
            signal.set_wakeup_fd(-1)
            for signum, before in stop._before.items():
                if signal.getsignal(signum) == stop._handle:
                    signal.signal(signum, before)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._by and self._is_relayed:
            self._is_relayed, self._at = False, time.monotonic()
        elif self._by:
            if signum == signal.SIGTERM and time.monotonic() - self._at < ECHO_S:
                return
            os.write(2, _EXITING)  # the signal may have interrupted print()
            os._exit(EXIT_PREEMPTED)  # no time left: the program dies with this process, the lease expires
        else:
            self.request(signal.Signals(signum).name)
        if signum == signal.SIGINT and os.isatty(2):
            os.write(2, _LEAVING)  # to write a checkpoint or to choose a trial can take minutes
        if self._may_raise:
            self._may_raise = False
            raise Interrupted(self._by)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Stop._forget)
