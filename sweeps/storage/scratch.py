"""Folders on this machine for the bulk files of a sweep in a bucket."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import weakref
from pathlib import Path

from sweeps.errors import StoreUnavailable
from sweeps.storage.keys import checked_key

log = logging.getLogger(__name__)


class Scratch:
    """Folder of one sweep: below `SWEEP_SCRATCH`, or temporary and removed with this object."""

    def __init__(self, url: str, bucket: str, prefix: str) -> None:
        self._url, self._below = url, (bucket, *prefix.split("/"))
        self._temporary: Path | None = None
        self._lock = threading.Lock()

    def folder(self, prefix: str) -> Path:
        """Return the folder of a key prefix, created if missing. Raises `StoreUnavailable`."""
        parts = checked_key(prefix).split("/")
        if kept := os.environ.get("SWEEP_SCRATCH"):
            root = Path(kept, *self._below).absolute()
        else:
            with self._lock:
                if self._temporary is None:
                    self._temporary = Path(tempfile.mkdtemp(prefix="stagesweep-"))
                    weakref.finalize(self, _remove_own, self._temporary, os.getpid())
                    log.info("%s: bulk files go to %s", self._url, self._temporary)
                root = self._temporary
        folder = root.joinpath(*parts)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnavailable(
                f"{folder}: cannot make this folder: {(error.strerror or str(error)).lower()}; "
                "let SWEEP_SCRATCH name a folder that you may write to"
            ) from error
        return folder


def _remove_own(folder: Path, maker: int) -> None:
    if os.getpid() == maker:  # a forked child must leave its parent's folder
        shutil.rmtree(folder, ignore_errors=True)
