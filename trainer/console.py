"""Lines for people. Written by `__main__` and `telemetry`.

Nobody has to read them: a reader who left (`| head -1`) or a full disk behind `>` must not end a run.
"""

from __future__ import annotations

import contextlib
import os
from typing import TextIO


class Lines:
    """Lines to a stream, each flushed; after the first that cannot be written, no more are tried."""

    def __init__(self, out: TextIO | None) -> None:
        self._out = out

    def write(self, line: str) -> None:
        """One line, without its newline."""
        if self._out is None:
            return
        try:
            self._out.write(line + "\n")
            self._out.flush()
        except OSError:
            _discard_the_rest(self._out)
            self._out = None


def _discard_the_rest(out: TextIO) -> None:
    """Python flushes its streams once more at exit and would end with status 120; let that go nowhere."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: no file is behind this stream
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, out.fileno())
        finally:
            os.close(nowhere)
