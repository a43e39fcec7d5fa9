"""The document of a cache: what it is of, which rows lie in which file. Pure. Used by `build` and `read`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic_core import from_json

INDEX = "index.json"
SCHEMA = 1

Spec = Mapping[str, str | int]
"""What decides the predictions; two caches of one spec differ in rounding alone. `match.spec` makes it."""


class UnreadableError(ValueError):
    """It is no index that this version of the program reads. The message is one line without the path."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A file of a cache.

    Args:
        first, rows: its rows are first … first + rows - 1.
        size, sha256: of the file.
        after: the state of the text's feed behind its last row, from where a builder goes on.
    """

    file: str
    first: int
    rows: int
    size: int
    sha256: str
    after: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Index:
    """A cache's document.

    Args:
        made_with: what may have changed its rounding: device, dtype and the like. For people.
        shards: without a gap, from row 0 on.
    """

    spec: Spec
    made_with: Mapping[str, str]
    shards: tuple[Shard, ...] = ()

    @property
    def rows(self) -> int:
        """How many there are."""
        return sum(shard.rows for shard in self.shards)

    def digest(self, rows: int) -> str:
        """Of the content of the first `rows`; more rows that are added later do not change it."""
        shards = [shard.sha256 for shard in self.shards if shard.first < rows]
        return hashlib.sha256(json.dumps([dict(self.spec), shards], sort_keys=True).encode()).hexdigest()


def encode(index: Index) -> bytes:
    """As JSON."""
    return (json.dumps({"schema": SCHEMA, **asdict(index)}, indent=1) + "\n").encode()


def decode(data: bytes) -> Index:
    """Raises UnreadableError."""
    try:
        document = from_json(data)
        schema = document["schema"]
        if schema != SCHEMA:
            raise UnreadableError(f"its schema is {schema!r}, this version reads {SCHEMA}; build it anew")
        shards = tuple(Shard(**shard) for shard in document["shards"])
        index = Index(spec=document["spec"], made_with=document["made_with"], shards=shards)
        firsts = [sum(shard.rows for shard in shards[:place]) for place in range(len(shards))]
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, UnreadableError):
            raise
        raise UnreadableError(f"its {INDEX} is damaged; build it anew in another folder") from error
    if firsts != [shard.first for shard in shards]:
        raise UnreadableError(f"its {INDEX} leaves rows out; build it anew in another folder")
    return index


def differences(theirs: Spec, ours: Spec) -> str:
    """In words: each name that differs, with both values; "" where none does."""
    names = [name for name in (*ours, *(theirs.keys() - ours.keys())) if theirs.get(name) != ours.get(name)]
    return ", ".join(f"{name} {_short(theirs.get(name))} (here {_short(ours.get(name))})" for name in names)


def _short(value: object) -> str:
    return value[:12] if isinstance(value, str) else str(value)
