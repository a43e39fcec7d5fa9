"""Atomic writes: readers of a file see its old bytes or its new ones, even after a power cut."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Self

OWNER_ONLY = 0o600
OWNER_EXECUTABLE = 0o700
BY_UMASK = 0o666
_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""Errors of `link` on file systems without hard links: FAT the first, network mounts and FUSE the others."""


def steady_times(path: str, flags: int) -> int:
    """Open a file, for `opener` of `open`, so that its modification time stays once it is written.

    A client of NFS 4.2 to which the server has delegated a file (Linux 7.2) keeps the times of its writes to
    itself, and when another machine opens the file, the server sets a time of its own. With O_DIRECT a client
    asks for no delegation.
    """
    direct = getattr(os, "O_DIRECT", 0)
    try:
        descriptor = os.open(path, flags | direct, BY_UMASK)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # A file system without O_DIRECT has made the file by now.
        return os.open(path, flags & ~os.O_EXCL, BY_UMASK)
    if direct:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~direct)
    return descriptor


class Draft:
    """A file that replaces `path` once it is committed, and is removed otherwise.

    Args:
        draft: name of the file until then, in the same folder. What a killed writer left there is removed.

    Attributes:
        file: the draft, open for writing and reading bytes.
    """

    def __init__(self, path: Path, draft: Path) -> None:
        self._path, self._draft, self._committed = path, draft, False

    def __enter__(self) -> Self:
        try:
            self._draft.unlink(missing_ok=True)  # were it a pipe, opening it would block
            self.file = open(self._draft, "xb+", opener=steady_times)
        except FileExistsError:  # left by a killed writer on another machine: NFS did not know of it at once
            self._draft.unlink(missing_ok=True)
            self.file = open(self._draft, "xb+", opener=steady_times)
        return self

    def commit(self, *, new: bool = False) -> os.stat_result:
        """Flush the draft to the disk, rename it to `path`, and return its status on the disk.

        Args:
            new: replace nothing, not even what another machine has just made, which a client of NFS may not
                know of. File systems without hard links do replace that.

        Raises:
            FileExistsError: `new`, and the file exists.
            OSError: the file cannot be written; what `path` had stays.
        """
        with self.file:
            self.file.flush()
            os.fsync(self.file.fileno())
            status = os.fstat(self.file.fileno())
        if new:
            try:
                os.link(self._draft, self._path)
            except OSError as error:
                made = self._draft.stat().st_nlink > 1  # but a server's first answer was lost
                if not made and error.errno not in _NO_HARD_LINKS:
                    raise
            else:
                made = True
            if made:
                return status  # the draft's own name goes in `__exit__`
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


@contextmanager
def atomic_write(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield the path of a draft, which replaces `path` when the block ends without an error.

    For files that a library writes by their name, and for those that need not survive a power cut.

    Args:
        durable: flush the draft to the disk before it replaces the file.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield draft
        if durable:
            sync(draft)
        draft.replace(path)
    finally:
        with suppress(OSError):  # of a file system that has become read-only
            draft.unlink(missing_ok=True)


def write_atomic(path: Path, text: str, *, mode: int = OWNER_ONLY) -> None:
    """Replace a file durably; a reader, also a shell halfway through it, sees the old or the new text.

    Args:
        path: the file; missing parent folders are created.
        mode: permission bits before the umask. An environment may be confidential, so the default is
            `OWNER_ONLY`.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)  # left by a killed writer, whose mode would stay
    with open(draft, "w", encoding="utf-8", opener=partial(os.open, mode=mode)) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def sync(path: Path) -> None:
    """Flush a file's bytes, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Flush the folder's names to the disk; file systems that cannot do this are left alone."""
    with suppress(OSError):
        sync(folder)
