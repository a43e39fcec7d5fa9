"""Protocol of a store: small objects, each change a compare-and-swap on a version.

Keys are relative paths with `/`. A version is opaque, and no two contents of a key ever share one.
`tests/contracts/` runs one suite over every backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from sweeps.errors import SweepError


class NotFound(SweepError):
    """A key without an object."""

    def __init__(self, key: str, location: str) -> None:
        self.key, self.location = key, location
        super().__init__(f"{location}: no such object")


class Entry(NamedTuple):
    """An object in a listing; `updated` is the store's time in seconds since the epoch."""

    key: str
    version: str
    updated: float


class Part(NamedTuple):
    """Bytes of an object from a position on, with the size of all of it and its version."""

    data: bytes
    size: int
    version: str


class Store(Protocol):
    """Storage of one sweep. Every method may raise `StoreUnavailable`."""

    @property
    def url(self) -> str:
        """Return the sweep's URL as a user would type it."""

    @property
    def is_remote(self) -> bool:
        """Return whether requests cross a network: they cost time and money, and may fail for a while."""

    @property
    def write_interval_s(self) -> float:
        """Return the least seconds between two changes of one object; 0 where there is no such limit."""

    def location(self, key: str) -> str:
        """Return the path or URL of the object, for messages."""

    def read(self, key: str) -> tuple[bytes, str]:
        """Return the object's bytes and their version.

        Raises:
            NotFound: there is none.
            DamagedObject: the name belongs to something that is no object, such as a pipe in a folder.
        """

    def read_many(self, keys: Sequence[str]) -> list[tuple[bytes, str] | None]:
        """Return what `read` returns for each key, or None where there is no object, in few round trips."""

    def read_part(self, key: str, start: int, most: int) -> Part:
        """Return a part of a file of a run, whatever its size; past its end there are no bytes.

        It is not for records, behind which a store may keep more bytes.

        Args:
            start: first byte; a negative number counts from the end.
            most: bytes to return at most, one or more.

        Raises:
            NotFound, DamagedObject: as `read`.
        """

    def create(self, key: str, data: bytes) -> str:
        """Write a new object and return its version. Raises `AlreadyExists`, nothing written."""

    def replace(self, key: str, data: bytes, expected: str) -> str:
        """Overwrite the version `expected` and return the new one. Raises `Conflict`, nothing written."""

    def delete(self, key: str, expected: str) -> None:
        """Remove the version `expected`. Raises `Conflict`."""

    def list(self, prefix: str) -> list[Entry]:
        """Return all objects whose key starts with `prefix`, sorted by key."""

    def now(self) -> float:
        """Return the store's clock in seconds since the epoch: the only clock of leases."""

    def folder(self, prefix: str) -> Path:
        """Return a local folder for the bulk files of `prefix` (checkpoints, logs), created if missing."""


def put(store: Store, key: str, data: bytes, expected: str | None) -> str:
    """Replace the version `expected`, or create the object if that is None. Raises `StoreConflict`."""
    return store.create(key, data) if expected is None else store.replace(key, data, expected)
