"""Handling of SIGTERM, Ctrl-C and SIGHUP in a process that supervises a pool."""

from __future__ import annotations

import os
import signal

from runners.errors import EXIT_PREEMPTED


class StopSignal:
    """Name of the signal that asked this process to stop, in `by`; "" before.

    A second signal exits at once: by then the workers, in sessions of their own, have got theirs.
    """

    def __init__(self) -> None:
        self.by = ""

    def listen(self) -> None:
        """Install the signal handlers. Only the main thread may call this."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # ignored under nohup
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: object) -> None:
        if self.by:
            os._exit(EXIT_PREEMPTED)
        self.by = signal.Signals(number).name
