"""History of what people did to a sweep, `actions/000001.json` and on: paused it, confirmed, scaled a pool.

Each command adds an object once it has done its work; `sweep launch` of a pool that it keeps running, before.
For people only; state is in the records, `control.json` and `confirm.json`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sweeps.errors import AlreadyExists, DamagedObject, StoreConflict, StoreUnavailable
from sweeps.storage.base import NotFound, Store
from sweeps.text import json_reader
from sweeps.trials import storable
from sweeps.trials.redaction import redacted_line

PREFIX = "actions/"
SCHEMA = 1
MOST_TRIALS = 12
"""Trials that a description lists; it counts the others."""
_RECORD = re.compile(rf"{PREFIX}(\d{{6}})\.json")
_LONGEST = 500

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Action:
    """Record of what somebody did to a sweep.

    Args:
        number: from 1.
        what: in words, such as `retry trials 3, 5`.
        by: who did it; "" if that is not known.
        at: the store's time, in seconds since the epoch; 0 if that is not known.
    """

    number: int
    what: str
    by: str = ""
    at: float = 0.0


def key(number: int) -> str:
    """Return the key of an action."""
    return f"{PREFIX}{number:06d}.json"


def about_trials(verb: str, indices: Sequence[int]) -> str:
    """Return the verb with the trials that it was done to: `retry trials 3, 5`."""
    listed = ", ".join(map(str, indices[:MOST_TRIALS]))
    more = f" and {len(indices) - MOST_TRIALS} more" if len(indices) > MOST_TRIALS else ""
    return f"{verb} {'trial' if len(indices) == 1 else 'trials'} {listed}{more}"


def note(store: Store, what: str, by: str) -> None:
    """Add an action that is done. If it cannot be stored, warn: the action itself remains done."""
    document = {"schema": SCHEMA, "what": _line(what), "by": _line(by), "write": uuid.uuid4().hex}
    try:
        number = max(_numbers(store), default=0) + 1
        while True:
            try:
                store.create(key(number), json.dumps(document | {"at": store.now()}, indent=1).encode())
            except AlreadyExists:  # somebody else did something at the same time
                number += 1
            else:
                return
    except (StoreUnavailable, StoreConflict, DamagedObject) as error:
        log.warning("done, but `sweep history` will not show it: %s", error)


class History:
    """Actions of one sweep, for one thread.

    Attributes:
        actions: those that are known, by number; of one that cannot be read, `what` says so.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listed = False
        self.actions: tuple[Action, ...] = ()

    def refresh(self) -> tuple[Action, ...]:
        """Read new actions and return all: by a listing at first, then by the number after the last."""
        if not self._listed:
            numbers = sorted(_numbers(self._store))
            self.actions = tuple(_read(self._store, numbers))
            self._listed = True
            return self.actions
        while True:
            number = self.actions[-1].number + 1 if self.actions else 1
            try:
                self.actions = (*self.actions, _fetch(self._store, number))
            except NotFound:
                return self.actions


def _numbers(store: Store) -> list[int]:
    return [int(match[1]) for entry in store.list(PREFIX) if (match := _RECORD.fullmatch(entry.key))]


def _read(store: Store, numbers: Sequence[int]) -> Iterator[Action]:
    """Yield the actions of these numbers, in few round trips; without those that were just removed."""
    try:
        contents = store.read_many([key(number) for number in numbers])
    except DamagedObject:  # one of them is no file; find out which
        for number in numbers:
            with contextlib.suppress(NotFound):
                yield _fetch(store, number)
        return
    for number, content in zip(numbers, contents, strict=True):
        if content is not None:
            yield _decode(number, content[0])


def _fetch(store: Store, number: int) -> Action:
    """Return the action of this number. Raises `NotFound`."""
    try:
        data, _ = store.read(key(number))
    except DamagedObject as error:
        return _unreadable(number, error)
    return _decode(number, data)


def _unreadable(number: int, error: Exception) -> Action:
    return Action(number=number, what=f"{key(number)} cannot be read: {_line(str(error))}")


def _decode(number: int, data: bytes) -> Action:
    """Return the action in these bytes; if they are not one, `what` says so."""
    try:
        document = json_reader.parse(data)
    except ValueError as error:
        return _unreadable(number, error)
    if not isinstance(document, dict) or not isinstance(document.get("what"), str):
        return _unreadable(number, ValueError("it says nothing of what was done"))
    by, at = document.get("by"), document.get("at")
    return Action(
        number=number,
        what=_line(document["what"]),
        by=_line(by) if isinstance(by, str) else "",
        at=storable.seconds(at),
    )


def _line(text: str) -> str:
    return redacted_line(text)[:_LONGEST]
