"""The protocol of a store: small objects, each change a compare-and-swap on a version.

`experiment` and `lease` are written against `Store` alone; `tests/contracts/` runs one suite over every
backend. Keys are relative paths with `/`; a version is opaque, and no two contents of a key ever share one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from sweeps.errors import SweepError


class NotFound(SweepError):
    """There is no object of this key."""

    def __init__(self, key: str, location: str) -> None:
        self.key, self.location = key, location
        super().__init__(f"{location}: no such object")


class Entry(NamedTuple):
    """One line of a listing; `updated` is the store's time in seconds since the epoch."""

    key: str
    version: str
    updated: float


class Store(Protocol):
    """Where a sweep lives. Every method may raise `StoreUnavailable`."""

    @property
    def url(self) -> str:
        """The sweep's URL as a person would type it."""

    @property
    def is_remote(self) -> bool:
        """Whether a network lies in between: every look costs something, and failures pass."""

    @property
    def write_interval_s(self) -> float:
        """Seconds that must lie between two changes of one name; 0 where nothing limits them."""

    def location(self, key: str) -> str:
        """Where a person finds the object: a path or a URL."""

    def read(self, key: str) -> tuple[bytes, str]:
        """The object's bytes with their version.

        Raises:
            NotFound: there is none.
            DamagedObject: something stands in its place that is no object, such as a pipe in a folder.
        """

    def read_many(self, keys: Sequence[str]) -> list[tuple[bytes, str] | None]:
        """What `read` gives for each key, None for one that is not there, in the time of few reads."""

    def create(self, key: str, data: bytes) -> str:
        """Write a new object, return its version. Raises `AlreadyExists`, nothing written."""

    def replace(self, key: str, data: bytes, expected: str) -> str:
        """Overwrite the version `expected`, return the new one. Raises `Conflict`, nothing written."""

    def delete(self, key: str, expected: str) -> None:
        """Remove the version `expected`. Raises `Conflict`."""

    def list(self, prefix: str) -> list[Entry]:
        """Every object whose key starts with `prefix`, sorted by key."""

    def now(self) -> float:
        """The store's clock, in seconds since the epoch: the only clock that leases know."""

    def folder(self, prefix: str) -> Path:
        """A local folder, made if need be, for the bulk files of `prefix` (checkpoints, logs)."""
