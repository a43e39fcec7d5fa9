"""Open files that a program, a person or a broken disk may have replaced by something else.

Opening a named pipe waits for a writer that may never come, and reading a device never ends. `json_reader`,
`storage.local` and everything that reads a user's or a program's file open it here.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

MAX_BYTES = 64 * 1024 * 1024
"""Of what is read at once: a record of a trial takes kilobytes, a table of 10,000 trials some megabytes."""

_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a folder"),
)


class NotRegular(OSError):
    """No regular file stands there; `strerror` says what does."""

    def __init__(self, kind: str, path: Path) -> None:
        super().__init__(errno.EINVAL, f"{kind}, not a regular file", os.fspath(path))


def open_regular(path: Path) -> IO[bytes]:
    """Open a file to be read, without waiting.

    Raises:
        NotRegular: a named pipe, a socket, a device or a loop of links stands there.
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


def kind_of(path: Path) -> str | None:
    """Return what stands there in place of a regular file; None where one stands there, or nothing at all.

    Raises:
        OSError: it cannot be found out.
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
