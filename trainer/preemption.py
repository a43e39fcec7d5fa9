"""SIGTERM and SIGINT, turned into one exception between two steps. Installed by `__main__`, asked by `loop`.

Inside a step and while libraries are imported the signal waits until that is done; anywhere else (waiting
for another process to build the teacher, downloading) it is raised at once, because a machine may be gone
thirty seconds later. Processes that share a run end after the same step, though each has its signal at its
own time, and some perhaps none: from `share` on a signal is only noted, and at the end of every `hold` they
all ask each other. Whoever signals again, after a moment, wants no checkpoint and no good-bye: out at once.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from trainer.errors import EXIT_PREEMPTED, PreemptedError

# Who signals a whole process group or job reaches a trainer twice: directly, and through its worker.
ECHO_S = 1.0
_ELSEWHERE = "SIGTERM"  # what another process was told, most likely


class StopSignal:
    """Whether somebody asked the run to end. Does nothing until `install`ed."""

    def __init__(self) -> None:
        self._received: str | None = None
        self._received_at = 0.0
        self._held = 0
        self._ignored = False
        self._raised: PreemptedError | None = None
        self._any: Callable[[bool], bool] | None = None

    def install(self) -> None:
        """Handles SIGTERM and SIGINT from now on. Only in a main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def share(self, any_of_all: Callable[[bool], bool]) -> None:
        """From now on all processes go the same way, which they may only leave together.

        Args:
            any_of_all: whether a flag is up in any process; called by all of them in turn.
        """
        self._any = any_of_all

    @contextmanager
    def hold(self, where: str) -> Iterator[None]:
        """Finishes what is inside first; raises PreemptedError at its end if a signal came meanwhile."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        if not self._held and self._is_asked():
            raise PreemptedError(signal_name=self._received or _ELSEWHERE, where=where)

    @contextmanager
    def together(self, where: str) -> Iterator[None]:
        """`hold` for processes that share a run; alone, a signal is raised at once."""
        if self._any is None:
            yield
        else:
            with self.hold(where):
                yield

    @property
    def came(self) -> bool:
        """Whether a signal came to this process."""
        return self._received is not None

    def raise_if_asked(self) -> None:
        """For long waits inside a `hold`. Raises PreemptedError if a signal came."""
        if self._received:
            raise PreemptedError(signal_name=self._received)

    @contextmanager
    def unmangled(self) -> Iterator[None]:
        """Libraries wrap what is raised inside them; what a signal caused leaves here as PreemptedError."""
        try:
            yield
        except Exception as error:
            if self._raised is None or error is self._raised:
                raise
            raise self._raised from error

    def ignore(self) -> None:
        """The work is done: a signal that comes now changes nothing."""
        self._ignored = True

    def _is_asked(self) -> bool:
        received = self._received is not None
        return received if self._any is None else self._any(received)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._ignored:
            return
        now = time.monotonic()
        if self._received is not None:
            if now - self._received_at >= ECHO_S:
                os._exit(EXIT_PREEMPTED)  # even out of a system call that does not come back
            return
        self._received, self._received_at = signal.Signals(number).name, now
        if not self._held and self._any is None:
            self._raised = PreemptedError(signal_name=self._received)
            raise self._raised
