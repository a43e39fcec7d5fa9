"""Background execution of library calls that may hang. Used by `telemetry` and `xla_compilation_cache`.

A call that still hangs at the end is abandoned after a deadline; `__main__` then `leave`s the process without
running exit handlers, which would hang as well.
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

THREAD_NAME = "background calls"
MAX_QUEUED = 10_000

Call = Callable[[], object]


class BackgroundExecutor:
    """A daemon thread that makes the submitted calls one after the other.

    Args:
        on_error: called on that thread with whatever a call raised.
    """

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error
        # Not `Queue`, whose lock a signal's exception in the main thread could leave taken.
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def submit(self, call: Call) -> bool:
        """Queue a call; return False, and never make it, if too many are queued."""
        if self._calls.qsize() >= MAX_QUEUED:
            return False
        self._calls.put(call)
        return True

    def shutdown(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the queued calls; return whether all of them ended."""
        self._calls.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception as error:  # noqa: BLE001 - the caller handles any error of a library
                self._on_error(error)


def anything_hangs() -> bool:
    """Return whether a background call of this process still runs."""
    return any(thread.name == THREAD_NAME for thread in threading.enumerate())


def leave(status: int, *, shared: bool = False) -> NoReturn:
    """End the process; without exit handlers if a background call hangs, as its library's would hang as well.

    After a signal, too, they are skipped: torch's take a second of CPU, ten on a busy machine. And in one of
    several processes, where threads of the process group may still want the interpreter that is ending: one
    such process of a finished run was aborted ("terminate called without an active exception").

    Args:
        shared: whether several processes share the run.
    """
    if status == EXIT_PREEMPTED or shared or anything_hangs():
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)
    sys.exit(status)
