"""Text for people: sizes with their unit, lines on a stream, progress."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TextIO

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def byte_size(size: float) -> str:
    """Return a number of bytes as three digits and a unit: `128 GiB`, `0.55 GiB`, `93.8 MiB`.

    The unit is the largest of which there is at least a tenth: two decimals of a GiB would hide a small size.
    """
    if not size:
        return "0 MiB"
    unit, name = next((each for each in _UNITS if size >= each[0] / 10), _UNITS[-1])
    value = size / unit
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f} {name}"


class Lines:
    """Lines on a stream, each flushed; after the first that cannot be written, no more are tried.

    A closed pipe (`| head -1`) or a full disk behind `>` must not end a run.

    Args:
        out: the stream; None: nothing is written.
    """

    def __init__(self, out: TextIO | None) -> None:
        self._out = out

    def write(self, line: str) -> None:
        """Write one line, given without its newline."""
        if self._out is None:
            return
        try:
            self._out.write(line + "\n")
            self._out.flush()
        except OSError:
            _redirect_to_null(self._out)
            self._out = None


def _redirect_to_null(out: TextIO) -> None:
    """Redirect the stream to the null device: Python flushes it at exit and would end with status 120."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: no file is behind this stream
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, out.fileno())
        finally:
            os.close(nowhere)


def progress_lines(
    out: TextIO | None, also: Callable[[str, float | None], None] | None = None
) -> Callable[[str, float | None], None]:
    """Return a progress callback that prints a line per tenth of whatever is being prepared.

    Args:
        out: as of `Lines`.
        also: called with every message and share.
    """
    printed, lines = set[tuple[str, int]](), Lines(out)

    def progress(message: str, fraction: float | None) -> None:
        if also:
            also(message, fraction)
        tenth = (message, int((fraction or 0.0) * 10))
        if fraction is not None and tenth not in printed:
            printed.add(tenth)
            lines.write(f"preparing {message}: {tenth[1] * 10} %")

    return progress
