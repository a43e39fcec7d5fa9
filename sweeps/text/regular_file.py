"""Safe opening of files that a program, a user or a broken disk may have replaced by something else.

Opening a named pipe blocks until there is a writer, and reading a device may never end.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from io import BufferedReader
from pathlib import Path

MAX_BYTES = 64 * 1024 * 1024
"""Most bytes to read at once: a trial's record takes kilobytes, a table of 10,000 trials some megabytes."""

_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a folder"),
)


class NotRegular(OSError):
    """A path that is no regular file; `strerror` says what it is."""

    def __init__(self, kind: str, path: Path) -> None:
        super().__init__(errno.EINVAL, f"{kind}, not a regular file", os.fspath(path))


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading, without blocking.

    Raises:
        NotRegular: the path is a named pipe, a socket, a device or a loop of links.
        OSError: the file cannot be opened (`IsADirectoryError` for a folder).
    """
    try:
        file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 - the caller closes it
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ELOOP) and (kind := kind_of(path)) is not None:
            raise NotRegular(kind, path) from None
        raise
    if (kind := _kind(os.fstat(file.fileno()).st_mode)) is not None:
        file.close()
        raise NotRegular(kind, path)
    return file


def read_regular(path: Path) -> bytes:
    """Return the bytes of a regular file. Raises as `open_regular` does."""
    with open_regular(path) as file:
        return file.read()


def copy_regular(source: Path, target: Path) -> None:
    """Copy the bytes of a regular file. Raises as `open_regular` does, and OSError if the copy fails."""
    with open_regular(source) as file, target.open("wb") as copy:
        shutil.copyfileobj(file, copy, 2**20)


def kind_of(path: Path) -> str | None:
    """Return what the path is if it is no regular file, or None if it is one or does not exist.

    Raises:
        OSError: the path cannot be examined.
    """
    try:
        return _kind(path.stat().st_mode)
    except FileNotFoundError:
        return "a link to nothing" if path.is_symlink() else None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return "a loop of links"


def _kind(mode: int) -> str | None:
    return next((kind for is_kind, kind in _KINDS if is_kind(mode)), None)


def _open_at_once(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NONBLOCK)
