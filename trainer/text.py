"""Text for people (counts with their noun, sizes with their unit, lines), reading and writing of files.

The packages may not import each other, so each has its own `counted`; `tests/contracts/test_counted.py`
compares them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import TextIO

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return the number with its noun, as `1 process`. `plural` is for nouns that take more than an s."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


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


@contextlib.contextmanager
def atomic_write(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield a draft beside `path`, which replaces it when the block ends without an error.

    A reader never finds half a file, and an error leaves the old one.

    Args:
        path: of the file.
        durable: have the bytes on the disk before they replace the file.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield draft
        if durable:
            sync(draft)
        draft.replace(path)
    finally:
        with contextlib.suppress(OSError):  # of a file system that has become read-only
            draft.unlink(missing_ok=True)


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading: to open a named pipe blocks, and a device may never end.

    Raises:
        OSError: it cannot be opened, or is something else.
    """
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return file


def read_regular(path: Path) -> bytes:
    """Return the bytes of a regular file. Raises as `open_regular` does."""
    with open_regular(path) as file:
        return file.read()


def sync(path: Path) -> None:
    """Have a file's bytes, or a folder's entries, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
