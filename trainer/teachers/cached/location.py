"""The location of a cache: a folder, or a URL that fsspec opens. Files are written atomically."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sweeps.text.atomic_file import atomic_write, sync
from sweeps.text.regular_file import read_regular
from trainer.cache import file_digest, locked
from trainer.data.remote import is_url, local_folder, open_filesystem
from trainer.errors import TrainerError

_LOCK = ".lock"
_ON_THIS_MACHINE = "file://"


class Location:
    """A folder or bucket prefix of files that are written once each, but for the index."""

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
    def lock(self) -> Iterator[None]:
        """Exclude other builders from a folder; a bucket has no lock.

        There concurrent builders repeat each other's work, and the one that writes the index last has written
        all of its shards.
        """
        if self._folder is None:
            yield
            return
        with self._reporting():
            self._folder.mkdir(parents=True, exist_ok=True)
        with locked(self._folder / _LOCK):
            for draft in self._folder.glob(".*.tmp"):
                draft.unlink()  # left by a builder that was killed
            yield

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes, None if there is no such file; raise TrainerError if it cannot be read."""
        with self._reporting():
            try:
                if self._folder is not None:
                    return read_regular(self._folder / name)
                data: bytes = self._filesystem.cat_file(f"{self._root}/{name}")
            except FileNotFoundError:
                return None
            return data

    def is_intact(self, name: str, *, size: int, sha256: str) -> bool:
        """Return whether the file is there as it was written, or raise TrainerError if it cannot be read.

        In a bucket, which has checksums of its own, only the size in bytes is compared.
        """
        with self._reporting():
            try:
                if self._folder is None:
                    return int(self._filesystem.info(f"{self._root}/{name}")["size"]) == size
                return file_digest(self._folder / name) == sha256
            except FileNotFoundError:
                return False

    def write(self, name: str, data: bytes) -> None:
        """Write or replace a file, or raise TrainerError."""
        with self._reporting():
            if self._folder is None:
                self._filesystem.pipe_file(f"{self._root}/{name}", data)
                return
            with atomic_write(self._folder / name, durable=True) as draft:
                draft.write_bytes(data)
            sync(self._folder)

    def local_copy(self) -> Path:
        """Return the folder, after copying a remote one into the trainer's cache, or raise DataError."""
        return self._folder if self._folder is not None else Path(local_folder(self._path))

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Turn errors of the file system into TrainerErrors."""
        try:
            yield
        except TrainerError:
            raise
        except Exception as error:  # every file system has errors of its own
            reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            raise TrainerError(f"cannot use the teacher's cache at {self._path}: {reason}") from error
