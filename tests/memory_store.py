"""In-memory store, shared by the threads of one process."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from sweeps.errors import AlreadyExists, Conflict
from sweeps.storage.base import Entry, NotFound, Part
from sweeps.storage.keys import checked_key, checked_prefix


class MemoryStore:
    """`Store` in a dict.

    Args:
        name: last part of the URL.
        clock: source of the store's time, in seconds since the epoch.
    """

    is_remote = False
    write_interval_s = 0.0

    def __init__(self, name: str = "sweep", clock: Callable[[], float] = time.time) -> None:
        self.url, self._clock = f"memory://{name}", clock
        self._objects: dict[str, tuple[bytes, str, float]] = {}
        self._generation = 0
        self._lock = threading.Lock()
        self._bulk: Path | None = None

    def location(self, key: str) -> str:
        return f"{self.url}/{key}"

    def read(self, key: str) -> tuple[bytes, str]:
        with self._lock:
            if checked_key(key) not in self._objects:
                raise NotFound(key, self.location(key))
            data, version, _ = self._objects[key]
            return data, version

    def read_part(self, key: str, start: int, most: int) -> Part:
        data, version = self.read(key)
        begin = start if start >= 0 else max(0, len(data) + start)
        return Part(data[begin : begin + most], len(data), version)

    def read_many(self, keys: Sequence[str]) -> list[tuple[bytes, str] | None]:
        return [self._read_or_none(key) for key in keys]

    def _read_or_none(self, key: str) -> tuple[bytes, str] | None:
        try:
            return self.read(key)
        except NotFound:
            return None

    def create(self, key: str, data: bytes) -> str:
        with self._lock:
            if checked_key(key) in self._objects:
                raise AlreadyExists(key)
            return self._put(key, data)

    def replace(self, key: str, data: bytes, expected: str) -> str:
        with self._lock:
            self._must_be(key, expected)
            return self._put(key, data)

    def delete(self, key: str, expected: str) -> None:
        with self._lock:
            self._must_be(key, expected)
            del self._objects[key]

    def list(self, prefix: str) -> list[Entry]:
        with self._lock:
            return [
                Entry(key, version, updated)
                for key, (_, version, updated) in sorted(self._objects.items())
                if key.startswith(checked_prefix(prefix))
            ]

    def now(self) -> float:
        return self._clock()

    def folder(self, prefix: str) -> Path:
        if self._bulk is None:
            self._bulk = Path(tempfile.mkdtemp(prefix="stagesweep-"))
            weakref.finalize(self, shutil.rmtree, self._bulk, ignore_errors=True)
        folder = self._bulk / checked_key(prefix)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _must_be(self, key: str, expected: str) -> None:
        if checked_key(key) not in self._objects or self._objects[key][1] != expected:
            raise Conflict(key)

    def _put(self, key: str, data: bytes) -> str:
        self._generation += 1
        version = str(self._generation)
        self._objects[key] = (bytes(data), version, self._clock())
        return version
