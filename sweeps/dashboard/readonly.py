"""A store that refuses to write: what the dashboard shows is read through it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from sweeps.errors import WriteRefused
from sweeps.storage.base import Entry, Part, Store
from sweeps.storage.local import LocalStore
from sweeps.storage.urls import local_path


class ReadOnlyStore:
    """`Store` that passes reads on to another one, and changes nothing, not even a folder's clock file."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def is_remote(self) -> bool:
        return self._store.is_remote

    @property
    def write_interval_s(self) -> float:
        return self._store.write_interval_s

    def location(self, key: str) -> str:
        return self._store.location(key)

    def read(self, key: str) -> tuple[bytes, str]:
        return self._store.read(key)

    def read_many(self, keys: Sequence[str]) -> list[tuple[bytes, str] | None]:
        return self._store.read_many(keys)

    def read_part(self, key: str, start: int, most: int) -> Part:
        return self._store.read_part(key, start, most)

    def list(self, prefix: str) -> list[Entry]:
        return self._store.list(prefix)

    def now(self) -> float:
        """Return a bucket's time; of a folder this machine's, as asking its file system writes a file."""
        return self._store.now() if self._store.is_remote else time.time()

    def create(self, key: str, data: bytes) -> str:
        self._refuse()

    def replace(self, key: str, data: bytes, expected: str) -> str:
        self._refuse()

    def delete(self, key: str, expected: str) -> None:
        self._refuse()

    def folder(self, prefix: str) -> Path:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise WriteRefused(f"{self.url}: this dashboard only reads")


def folder_of(store: Store) -> Path | None:
    """Return the folder of a store on this machine, absolute; None of another kind of store."""
    inner = store._store if isinstance(store, ReadOnlyStore) else store
    return Path(local_path(inner.url)).absolute() if isinstance(inner, LocalStore) else None
