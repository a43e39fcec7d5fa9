"""Check that a file system has the locks of `flock`."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path


def require_locks(folder: Path) -> None:
    """Check that the folder's file system has locks, such as Lustre mounted without -o flock has not.

    `filelock` from 3.24 would take the existence of a file for the lock there: that of a machine that dies
    stays, and nobody else gets the lock any more.

    Raises:
        OSError: it has none.
    """
    import tempfile  # as `filelock`, which commands that only read need not

    with tempfile.TemporaryFile(dir=folder) as file:  # Lustre locks a folder all the same
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            raise OSError(errno.ENOSYS, "this file system has no locks", str(folder)) from None
