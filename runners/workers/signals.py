"""SIGTERM, Ctrl-C and the terminal's end, for a process that keeps a pool."""

from __future__ import annotations

import os
import signal

from runners.errors import EXIT_PREEMPTED


class StopSignal:
    """Whether this process was told to go. A second signal leaves at once: the workers were told by then, and
    are in sessions of their own."""

    def __init__(self) -> None:
        self.by = ""

    def listen(self) -> None:
        """Take the signals from now on. Only the main thread may call this."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._hear)

    def _hear(self, number: int, frame: object) -> None:
        if self.by:
            os._exit(EXIT_PREEMPTED)
        self.by = signal.Signals(number).name
