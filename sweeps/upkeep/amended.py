"""Amendments of a sweep that cannot be read, for `inventory`, `diagnostics` and `repair`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from sweeps.errors import DamagedObject
from sweeps.storage.base import NotFound, Store
from sweeps.storage.local import LocalStore
from sweeps.text import json_reader
from sweeps.trials import amendments
from sweeps.upkeep.finding import Finding


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """Amendment that cannot be read.

    Args:
        reason: what is wrong with it; "" if there is none of its number, though there are later ones.
        is_newer: a later version wrote it.
        data, version: the object; None for what is no file, or is not there.
    """

    key: str
    reason: str
    is_newer: bool = False
    data: bytes | None = field(default=None, repr=False)
    version: str | None = None


def survey_amendments(store: Store) -> tuple[tuple[Unreadable, ...], tuple[str, ...]]:
    """Return the amendments that cannot be read, and the keys among them that no version writes."""
    listed = {entry.key: amendments.RECORD.fullmatch(entry.key) for entry in store.list(amendments.PREFIX)}
    numbers = {int(match[1]) for match in listed.values() if match}
    found: list[Unreadable] = []
    for number in range(1, max(numbers, default=0) + 1):
        key = amendments.key(number)
        try:
            if number not in numbers:
                raise NotFound(key, store.location(key))
            data, version = store.read(key)
            amendments.decoded(number, data)
        except NotFound:
            found.append(Unreadable(key=key, reason=""))
        except DamagedObject as error:
            found.append(Unreadable(key=key, reason=error.reason))
        except ValueError as error:
            newer = is_newer(data, amendments.SCHEMA)
            found.append(Unreadable(key=key, reason=str(error), is_newer=newer, data=data, version=version))
    return tuple(found), tuple(key for key, match in listed.items() if match is None)


def is_newer(data: bytes, schema: int) -> bool:
    """Return whether a document says that it has a later schema than this."""
    try:
        written = json_reader.parse(data)["schema"]
    except (ValueError, KeyError, TypeError):
        return False
    return isinstance(written, int) and written > schema


def findings(found: Iterable[Unreadable], where: Callable[[str], str]) -> Iterator[Finding]:
    """Yield a finding for each; `where` returns an object's location for people, by key."""
    for each in found:
        if each.is_newer:
            yield Finding(
                kind="newer",
                what=f"a later version has changed this sweep ({each.reason}); workers stop at it",
                where=where(each.key),
                remedy="update this machine: pip install -U stagesweep",
            )
        elif each.reason:
            yield Finding(
                kind="torn",
                what=f"a change of the sweep's limits cannot be read ({each.reason}); workers stop at it",
                where=where(each.key),
                remedy="put the original back, or let `sweep repair --yes` move it to quarantine/; then "
                "`sweep status` shows which limits hold, and `sweep extend` sets others",
            )
        else:
            yield Finding(
                kind="gap",
                level="note",
                what="a change of the limits is missing, though later ones are there: somebody removed it",
                where=where(each.key),
                remedy="`sweep status` shows which limits hold, and `sweep extend` sets others",
            )


def empty(store: Store, found: Unreadable, aside: str) -> None:
    """Move the object to the key `aside`, and leave an empty amendment, since no number is used twice.

    Raises:
        StoreConflict: somebody has repaired it in the meantime.
    """
    if found.data is None and isinstance(store, LocalStore):
        store.set_aside(found.key, aside)
        store.create(found.key, amendments.encoded({}, "sweep repair", store.now()))
    elif found.data is not None and found.version is not None:
        store.create(aside, found.data)
        store.replace(found.key, amendments.encoded({}, "sweep repair", store.now()), found.version)
