"""Atomic writes: readers of a file see its old bytes or its new ones, even after a power cut."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Self


class Draft:
    """A file that replaces `path` once it is committed, and is removed otherwise.

    Args:
        path: the file to replace.
        draft: name of the file until then, in the same folder. What a killed writer left there is removed.

    Attributes:
        file: the draft, open for writing and reading bytes.
    """

    def __init__(self, path: Path, draft: Path) -> None:
        self._path, self._draft, self._committed = path, draft, False

    def __enter__(self) -> Self:
        self._draft.unlink(missing_ok=True)  # were it a pipe, opening it would block
        self.file = self._draft.open("xb+")
        return self

    def commit(self) -> os.stat_result:
        """Flush the draft to the disk, rename it to `path`, and return its status on the disk."""
        with self.file:
            self.file.flush()
            os.fsync(self.file.fileno())
            status = os.fstat(self.file.fileno())
        self._draft.replace(self._path)
        self._committed = True
        return status

    def __exit__(self, *_: object) -> None:
        try:
            self.file.close()
        finally:
            if not self._committed:
                with suppress(OSError):  # the first error says more
                    self._draft.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush the folder's names to the disk; file systems that cannot do this are left alone."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
