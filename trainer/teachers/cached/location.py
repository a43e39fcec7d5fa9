"""Where a cache lies: a folder, or a URL that fsspec opens. Files appear whole or not at all. Used by `build`
and `read`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.cache import locked
from trainer.checkpoint.layout import sync
from trainer.checkpoint.manifest import file_digest
from trainer.data.remote import is_url, local_folder, open_filesystem
from trainer.errors import TrainerError

_LOCK = ".lock"
_ON_THIS_MACHINE = "file://"


class Place:
    """A folder of files that are written once each, but for the index.

    Args:
        path: as `stage3.teacher.path` names it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder: Path | None = None
        self._filesystem: Any = None
        if is_url(path) and not path.startswith(_ON_THIS_MACHINE):
            self._filesystem, root = open_filesystem(path)
            self._root = root.rstrip("/")
        else:
            self._folder = Path(path.removeprefix(_ON_THIS_MACHINE)).expanduser()

    @contextmanager
    def builder(self) -> Iterator[None]:
        """One builder at a time works in a folder. A bucket has no lock; there builders repeat each other's
        work, and whoever writes the index last has written all of its shards."""
        if self._folder is None:
            yield
            return
        with self._told():
            self._folder.mkdir(parents=True, exist_ok=True)
        with locked(self._folder / _LOCK):
            for draft in self._folder.glob(".*.tmp"):
                draft.unlink()  # of a builder that was killed
            yield

    def read(self, name: str) -> bytes | None:
        """A file's bytes; None: there is none. Raises TrainerError."""
        with self._told():
            try:
                if self._folder is not None:
                    return (self._folder / name).read_bytes()
                data: bytes = self._filesystem.cat_file(f"{self._root}/{name}")
            except FileNotFoundError:
                return None
            return data

    def holds(self, name: str, *, size: int, sha256: str) -> bool:
        """Whether the file is there as it was written. In a bucket, which guards what it holds itself, only
        its length is looked at. Raises TrainerError."""
        with self._told():
            try:
                if self._folder is None:
                    return int(self._filesystem.info(f"{self._root}/{name}")["size"]) == size
                return file_digest(self._folder / name) == sha256
            except FileNotFoundError:
                return False

    def write(self, name: str, data: bytes) -> None:
        """The file, in place of the one that was there. Raises TrainerError."""
        with self._told():
            if self._folder is None:
                self._filesystem.pipe_file(f"{self._root}/{name}", data)
                return
            draft = self._folder / f".{uuid.uuid4().hex}.tmp"
            try:
                draft.write_bytes(data)
                sync(draft)
                draft.replace(self._folder / name)
                sync(self._folder)
            finally:
                draft.unlink(missing_ok=True)

    def here(self) -> Path:
        """The folder on this machine that has all of it; what lies elsewhere is copied into the trainer's
        cache. Raises DataError."""
        return self._folder if self._folder is not None else Path(local_folder(self._path))

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except TrainerError:
            raise
        except Exception as error:  # every file system has errors of its own
            said = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            raise TrainerError(f"cannot use the teacher's cache at {self._path}: {said}") from error
