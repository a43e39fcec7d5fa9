"""Calls into a library that may hang, made one after the other on a thread of their own. Used by `telemetry`.

The run goes on meanwhile. What hangs at the end is left behind after a deadline; `__main__` then `leave`s the
process without the good-byes of its libraries, which would hang as well.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from trainer.errors import EXIT_PREEMPTED

_NAME = "calls aside"
_MOST_WAITING = 10_000

Act = Callable[[], object]


class BackgroundExecutor:
    """The thread and what waits for it.

    Args:
        failed: told what a call raised, on that thread.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        # Not `Queue`, whose lock a signal's exception in the main thread could leave taken.
        self._acts: queue.SimpleQueue[Act | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=_NAME, daemon=True)
        self._thread.start()

    def do(self, act: Act) -> bool:
        """Makes the call when those before it are over; False where too many wait, and it never will."""
        if self._acts.qsize() >= _MOST_WAITING:
            return False
        self._acts.put(act)
        return True

    def end(self, timeout: float) -> bool:
        """Makes no call after those that wait; whether they were all over in time."""
        self._acts.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (act := self._acts.get()) is not None:
            try:
                act()
            except Exception as error:  # noqa: BLE001 - whatever a library raises is the caller's to judge
                self._failed(error)


def anything_hangs() -> bool:
    """Whether a call of this process still runs."""
    return any(thread.name == _NAME for thread in threading.enumerate())


def leave(status: int) -> NoReturn:
    """End the process; at once where a call hangs, as its library's own good-bye would hang as well.

    And at once where a signal asked for it: taking torch apart is a second of CPU, ten on a busy machine.
    """
    if status == EXIT_PREEMPTED or anything_hangs():
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)
    sys.exit(status)
