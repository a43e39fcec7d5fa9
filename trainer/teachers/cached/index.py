"""The index of a cache: its spec, and the rows of each file. Pure. Used by `build` and `reader`."""

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
"""All that decides the predictions but for rounding. Made by `compatibility.spec`."""


class UnreadableError(ValueError):
    """An index that this version cannot read. The message is one line without the path."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A file of a cache.

    Args:
        sha256: of the file.
        after: the state of the text's feed after its last row, where a builder resumes.
    """

    file: str
    first: int
    rows: int
    size: int
    sha256: str
    after: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Index:
    """The contents of `index.json`.

    Args:
        spec: decides the predictions.
        made_with: device, dtype and versions, which may affect rounding. Informational.
        shards: contiguous, from row 0 on.
    """

    spec: Spec
    made_with: Mapping[str, str]
    shards: tuple[Shard, ...] = ()

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return sum(shard.rows for shard in self.shards)

    def digest(self, rows: int) -> str:
        """Return the digest of the shards that have the first `rows`; rows added later do not change it."""
        shards = [shard.sha256 for shard in self.shards if shard.first < rows]
        return hashlib.sha256(json.dumps([dict(self.spec), shards], sort_keys=True).encode()).hexdigest()


def encode(index: Index) -> bytes:
    """Encode an index as JSON."""
    return (json.dumps({"schema": SCHEMA, **asdict(index)}, indent=1) + "\n").encode()


def decode(data: bytes) -> Index:
    """Decode an index, or raise UnreadableError."""
    try:
        document = from_json(data)
        schema = document["schema"]
        if schema != SCHEMA:
            raise UnreadableError(f"its schema is {schema!r}, this version reads {SCHEMA}; build it anew")
        shards = tuple(Shard(**shard) for shard in document["shards"])
        index = Index(spec=document["spec"], made_with=document["made_with"], shards=shards)
        firsts = [sum(shard.rows for shard in shards[:number]) for number in range(len(shards))]
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, UnreadableError):
            raise
        raise UnreadableError(f"its {INDEX} is damaged; build it anew in another folder") from error
    if firsts != [shard.first for shard in shards]:
        raise UnreadableError(f"its {INDEX} leaves rows out; build it anew in another folder")
    return index


def differences(theirs: Spec, ours: Spec) -> str:
    """Describe each name that differs with both values; return "" if none does."""
    names = [name for name in (*ours, *(theirs.keys() - ours.keys())) if theirs.get(name) != ours.get(name)]
    return ", ".join(f"{name} {_short(theirs.get(name))} (here {_short(ours.get(name))})" for name in names)


def _short(value: object) -> str:
    return value[:12] if isinstance(value, str) else str(value)
