"""Folders on this machine for the bulk files of a sweep in a bucket."""

from __future__ import annotations

import logging
import os
import platform
import re
import shutil
import tempfile
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from sweeps.errors import StoreUnavailable
from sweeps.storage.keys import checked_key

log = logging.getLogger(__name__)

_IN_USE = ".in-use.lock"
_YOUNG_S = 60.0
"""Age from which a temporary folder is surely locked by its process, if that lives."""


class Scratch:
    """Folder of one sweep: below `SWEEP_SCRATCH`, or temporary and removed with this object.

    A killed process leaves gigabytes of checkpoints; the next one that makes a temporary folder removes them.
    """

    def __init__(self, url: str, bucket: str, prefix: str) -> None:
        self._url, self._below = url, (bucket, *prefix.split("/"))
        self._temporary: Path | None = None
        self._in_use: FileLock | None = None  # of that folder, until this process ends
        self._lock = threading.Lock()

    def folder(self, prefix: str) -> Path:
        """Return the folder of a key prefix, created if missing. Raises `StoreUnavailable`."""
        parts = checked_key(prefix).split("/")
        try:
            if kept := os.environ.get("SWEEP_SCRATCH"):
                root = Path(kept, *self._below).absolute()
            else:
                root = self._temporary_root()
            folder = root.joinpath(*parts)
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = error.strerror or str(error)
            raise StoreUnavailable(
                f"{error.filename or 'temporary files'}: cannot make this folder: "
                f"{problem[:1].lower()}{problem[1:]}; let SWEEP_SCRATCH name a folder that you may write to"
            ) from error
        return folder

    def _temporary_root(self) -> Path:
        """Return the temporary folder, made at the first call."""
        with self._lock:
            if self._temporary is None:
                # By host, as hosts may share the folder of temporary files, and no locks.
                prefix = f"stagesweep-{re.sub(r'[^A-Za-z0-9.-]', '-', platform.node())[:60]}-"
                _remove_dead(Path(tempfile.gettempdir()), prefix)
                self._temporary = Path(tempfile.mkdtemp(prefix=prefix))
                self._in_use = FileLock(self._temporary / _IN_USE, thread_local=False)
                with suppress(OSError, NotImplementedError):  # a file system without locks
                    self._in_use.acquire(timeout=0)
                weakref.finalize(self, _remove_own, self._temporary, os.getpid())
                log.info("%s: bulk files go to %s", self._url, self._temporary)
            return self._temporary


def _remove_dead(parent: Path, prefix: str) -> None:
    """Remove the temporary folders of this host that killed processes have left."""
    for lock_file in parent.glob(f"{prefix}*/{_IN_USE}"):
        folder = lock_file.parent
        # In use, another host's whose name begins alike, another user's, a file system without locks.
        with suppress(OSError, NotImplementedError):
            is_old = time.time() - lock_file.stat().st_mtime > _YOUNG_S
            if is_old and re.fullmatch(r"[a-z0-9_]{8}", folder.name.removeprefix(prefix)):
                with FileLock(lock_file).acquire(timeout=0):
                    shutil.rmtree(folder)
                log.info("removed %s, which a killed process has left", folder)


def _remove_own(folder: Path, maker: int) -> None:
    if os.getpid() == maker:  # a forked child must leave its parent's folder
        shutil.rmtree(folder, ignore_errors=True)
