"""Packs: copies of a thousand ended records in one object, for whoever comes to a sweep in a bucket late.

`packs/012.gz` copies records of the trials 12,000 to 12,999. The records themselves remain the truth: a
reader lists them, and uses a copy only if its version is the one in the listing. So a pack that is old,
damaged, another sweep's or not there costs requests, and nothing else. Workers write them, and `Records` and
the dashboard read them.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sweeps.errors import Busy, StoreConflict
from sweeps.storage.base import Store, put
from sweeps.storage.keys import SWEEP_KEY
from sweeps.text import json_reader
from sweeps.trials import record as trial

PREFIX = "packs/"
SCHEMA = 1
SIZE = 1000
"""Trials of one pack."""
EVERY = 50
"""Every fiftieth trial's worker brings the packs up to date when the trial has ended."""
LACKING = 25
"""Ended records that a pack must lack to be written anew: so a thousand trials take at most forty writes."""
WORTH_READING = 50
"""Records that a reader must lack of a pack: fewer are read as quickly by themselves."""

_NAME = re.compile(rf"{PREFIX}(\d{{3}})\.gz")
_LARGEST = 64 * 1024
"""Bytes of a record that is copied; larger ones are read by themselves."""
_MOST_BYTES = SIZE * (_LARGEST + 100)

Content = tuple[bytes, str]
"""Bytes of a record and their version, as `Store.read` returns them."""


@dataclass(frozen=True, kw_only=True)
class Pack:
    """A stored pack.

    Args:
        version: of the object; None if there is none.
        records: copies by index; of a record that is too large to be copied, no bytes.
        problem: why the object cannot be used, as one clause, or "".
    """

    number: int
    version: str | None
    records: Mapping[int, Content]
    problem: str = ""

    def outdated(self, present: Mapping[int, str]) -> list[int]:
        """Return the indices of copies whose version is not the one in `present`."""
        return [index for index, (_, version) in self.records.items() if present.get(index) != version]


def key(number: int) -> str:
    """Return the key of a pack: `packs/012.gz` for the trials 12,000 to 12,999."""
    return f"{PREFIX}{number:03d}.gz"


def is_key(found: str) -> bool:
    """Return whether this is the key of a pack."""
    return _NAME.fullmatch(found) is not None


def read(store: Store, wanted: Mapping[int, str]) -> dict[int, Content]:
    """Return copies of the wanted versions, by index, as far as a few requests find many of them.

    Args:
        wanted: version of each record as it was listed. In a folder nothing is found: there a record is
            read in a hundredth of a millisecond.
    """
    if not store.is_remote or len(wanted) < WORTH_READING:
        return {}
    numbers = [n for n, count in Counter(i // SIZE for i in wanted).items() if count >= WORTH_READING]
    return {
        index: content
        for pack in _load(store, numbers)
        for index, content in pack.records.items()
        if content[0] and wanted.get(index) == content[1]
    }


def read_all(store: Store) -> list[Pack]:
    """Return all packs of a sweep."""
    names = (_NAME.fullmatch(entry.key) for entry in store.list(PREFIX))
    return [pack for pack in _load(store, [int(name[1]) for name in names if name]) if pack.version]


def write(store: Store, before: list[Pack], settled: Mapping[int, str]) -> list[int]:
    """Write the packs anew that lack many ended records, or have outdated copies; return their numbers.

    Bytes are taken over as they were read, from the record or from the last pack. Of writers at the same time
    one wins for each pack, and a writer that dies leaves the last pack or the new one: each is one write.

    Args:
        before: what `read_all` returned before `settled` was listed; so no copy in it is newer than that.
        settled: versions of all records that only a person would change.
    """
    written = []
    packs = {pack.number: pack for pack in before}
    for number in sorted({index // SIZE for index in settled} | packs.keys()):
        pack = packs.get(number) or Pack(number=number, version=None, records={})
        mine = {index: version for index, version in settled.items() if index // SIZE == number}
        outdated = pack.outdated(settled)
        kept = {index: content for index, content in pack.records.items() if index not in outdated}
        lacking = sorted(mine.keys() - kept.keys())
        if len(lacking) < LACKING and not outdated and not pack.problem:
            continue
        found = store.read_many([trial.key(index) for index in lacking])
        for index, content in zip(lacking, found, strict=True):
            if content is not None and content[1] == mine[index] and _is_sound(index, content[0]):
                kept[index] = content if len(content[0]) <= _LARGEST else (b"", content[1])
        try:
            put(store, key(number), _encode(store.read(SWEEP_KEY)[1], kept), pack.version)
        except (StoreConflict, Busy):
            continue  # another worker has just written it
        written.append(number)
    return written


def _is_sound(index: int, data: bytes) -> bool:
    try:
        return trial.decode(data).trial == index
    except ValueError:
        return False


def _load(store: Store, numbers: list[int]) -> list[Pack]:
    """Return these packs; what cannot be used as one has no records, and a problem."""
    sweep, *found = store.read_many([SWEEP_KEY, *map(key, numbers)])
    loaded = []
    for number, content in zip(numbers, found, strict=True):
        records: dict[int, Content] = {}
        problem = ""
        try:
            if content is not None and sweep is not None:
                records = _decode(content[0], number, sweep[1])
        except ValueError as error:
            problem = str(error)
        version = None if content is None else content[1]
        loaded.append(Pack(number=number, version=version, records=records, problem=problem))
    return loaded


def _encode(sweep: str, records: Mapping[int, Content]) -> bytes:
    """Return a pack: a line of JSON, which says what is in it, and the records one after another, compressed.

    Args:
        sweep: version of the sweep's `sweep.json`, which no other sweep shares.
    """
    entries = [[index, records[index][1], len(records[index][0])] for index in sorted(records)]
    head = json.dumps({"schema": SCHEMA, "sweep": sweep, "records": entries}).encode()
    return gzip.compress(b"\n".join((head, *(records[index][0] for index in sorted(records)))), 6, mtime=0)


def _decode(data: bytes, number: int, sweep: str) -> dict[int, Content]:
    """Return the records in the bytes that `_encode` wrote; gzip's checksum is over all of them.

    Raises:
        ValueError: `_encode` does not write this, or it is another sweep's.
    """
    try:
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
        plain = unpacker.decompress(data, _MOST_BYTES)
        if not unpacker.eof:
            raise ValueError("it is cut short, or far too large")
    except zlib.error as error:
        raise ValueError(f"it is damaged: {error}") from None
    line, _, rest = plain.partition(b"\n")
    document = json_reader.parse(line)
    try:
        json_reader.require_schema(document, SCHEMA)
        if document["sweep"] != sweep:
            raise ValueError("it is a copy of another sweep's")
        records, at = {}, 0
        for index, version, size in document["records"]:
            if index // SIZE != number or not isinstance(version, str) or size < 0:
                raise ValueError(f"trial {index} does not belong into it")
            records[index] = (rest[at : at + size], version)
            at += size + 1  # and a line's end
    except (KeyError, TypeError) as error:
        raise ValueError(f"unexpected or missing field: {error}") from None
    if at != len(rest) + 1 and records:
        raise ValueError("its records are not as long as it says")
    return records
