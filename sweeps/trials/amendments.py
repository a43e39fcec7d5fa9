"""Amendments of a sweep, `amendments/0001.json` and on: what people changed after `sweep init`.

`sweep.json` is written once. `sweep extend`, `rename` and `archive` each add an object, which is never
changed; in the order of their numbers, a later one wins. Before each claim a worker reads the number after
the last that it knows, and `sweep.json`, to see that the sweep is the same: in a bucket a read costs a tenth
of a listing.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import TypeGuard

from sweeps.errors import AlreadyExists, DamagedObject, InputError, NewerFormat, SweepClosed, unreadable
from sweeps.space.definition import Budget, Space, Stop
from sweeps.space.domain import no_stop
from sweeps.storage.base import NotFound, Store
from sweeps.storage.keys import SWEEP_KEY
from sweeps.text import json_reader
from sweeps.trials import storable
from sweeps.trials.redaction import redacted_line

PREFIX = "amendments/"
SCHEMA = 1
RECORD = re.compile(rf"{PREFIX}(\d{{4}})\.json")
MOST = 9999

Change = bool | float | str | None
Changes = Mapping[str, Change] | Callable[[Space], Mapping[str, Change]]
"""New values by name, or what returns them for the space as it is when they are stored, such as 20 more."""

BUDGET = tuple(field.name for field in fields(Budget))
GAIN = "expected_gain"
LIMITS = ("run_cap", *BUDGET, GAIN)
"""What `sweep extend` changes; None lifts a limit."""
NAME, ARCHIVED = "name", "archived"


@dataclass(frozen=True, kw_only=True)
class Amendment:
    """A person's change of a sweep.

    Args:
        number: from 1.
        changes: new values by name: of LIMITS, NAME or ARCHIVED.
        at: the store's time, in seconds since the epoch.
    """

    number: int
    changes: Mapping[str, Change]
    by: str = ""
    at: float = 0.0


def key(number: int) -> str:
    """Return the key of an amendment."""
    return f"{PREFIX}{number:04d}.json"


def encoded(changes: Mapping[str, Change], by: str, at: float) -> bytes:
    """Return an amendment as JSON that `decoded` can read; no two have the same bytes."""
    document = {"schema": SCHEMA, "changes": dict(changes), "by": redacted_line(by), "at": at}
    return json.dumps(document | {"write": uuid.uuid4().hex}, indent=1, allow_nan=False).encode()


def decoded(number: int, data: bytes) -> Amendment:
    """Return the amendment in these bytes. Raises ValueError for what this version does not write."""
    document = json_reader.parse(data)
    json_reader.require_schema(document, SCHEMA)
    changes, by, at = document.get("changes"), document.get("by"), document.get("at")
    if not isinstance(changes, dict):
        raise ValueError("it holds no changes")  # noqa: TRY004 - one error type for all bad data
    if unknown := changes.keys() - {NAME, ARCHIVED, *LIMITS}:
        raise NewerFormat(f"it changes {', '.join(sorted(unknown))!a}")
    if problem := next(filter(None, (_problem(*change) for change in changes.items())), ""):
        raise ValueError(problem)
    return Amendment(
        number=number,
        changes=MappingProxyType(changes),
        by=by if isinstance(by, str) else "",
        at=storable.seconds(at),
    )


def _problem(name: str, value: object) -> str:
    """Return why a sweep cannot have these changes, or ""."""
    if name == NAME:
        return "" if isinstance(value, str) and value else f"{name} is no text"
    if name == ARCHIVED:
        return "" if isinstance(value, bool) else f"{name} is neither true nor false"
    if name not in LIMITS:
        return f"{name!a} cannot be changed"
    if value is None:
        return ""
    if not _is_number(value) or value <= 0:
        return f"{name} is {value!r:.50}, not a number above 0"
    return f"{name} is {value!r}, not a count" if name == "run_cap" and not isinstance(value, int) else ""


def _is_number(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value <= sys.float_info.max  # false for NaN, and no error for integers beyond floats


def limits(space: Space) -> dict[str, float | None]:
    """Return the limits of a space by name; None: no limit."""
    stop = space.search.stop
    return {
        "run_cap": space.run_cap,
        **{name: getattr(space.budget, name) for name in BUDGET},
        GAIN: None if stop is None else stop.expected_gain,
    }


def amended(space: Space, made: Iterable[Amendment]) -> Space:
    """Return the space with the amendments in their order."""
    changes: dict[str, Change] = {}
    for amendment in made:
        changes |= amendment.changes
    budget = {name: changes[name] for name in BUDGET if name in changes}
    top = {name: changes[name] for name in ("run_cap", NAME) if name in changes}
    search = space.search
    if GAIN in changes:
        gain, stop = changes[GAIN], search.stop or Stop(expected_gain=1.0)
        stated = replace(stop, expected_gain=gain) if isinstance(gain, int | float) else None
        search = replace(search, stop=stated)
    # The types of changes were checked by name when they were made.
    budgeted = replace(space.budget, **budget)  # type: ignore[arg-type]  # a change may be of any type
    return replace(space, **top, budget=budgeted, search=search)  # type: ignore[arg-type]  # likewise


class Amendments:
    """Amendments of one sweep, for one thread.

    Args:
        written: the space of `sweep.json`.
        stored: bytes and version of that object; None: as it is when it is first read.

    Attributes:
        space: the space with those that are known.
        made: the amendments, by number.
        damaged: those that cannot be read.
        stored: as above.
    """

    def __init__(self, store: Store, written: Space, stored: tuple[bytes, str] | None = None) -> None:
        self._store, self._written, self.stored = store, written, stored
        self._last = 0
        self.space = written
        self.made: tuple[Amendment, ...] = ()
        self.damaged: tuple[DamagedObject, ...] = ()

    def copy(self) -> Amendments:
        """Return the same for another thread."""
        copied = Amendments(self._store, self._written, self.stored)
        copied.space, copied.made, copied.damaged = self.space, self.made, self.damaged
        copied._last = self._last
        return copied

    @property
    def archived(self) -> bool:
        """Return whether `sweep archive` has archived the sweep."""
        last = next((a.changes[ARCHIVED] for a in reversed(self.made) if ARCHIVED in a.changes), False)
        return bool(last)

    def refresh(self) -> Space:
        """Read new amendments and return the space with them.

        Raises:
            DamagedObject: any of them cannot be read.
            SweepClosed: see `require_same_sweep`.
        """
        new, stored = self._store.read_many([key(self._last + 1), SWEEP_KEY])
        self.require_same_sweep(stored)
        return self._read_new() if new is not None or self.damaged else self.space

    def _read_new(self) -> Space:
        while not self.damaged:
            try:
                self._append(self._fetch(self._last + 1))
            except NotFound:
                return self.space
        raise self.damaged[0]

    def require_same_sweep(self, stored: tuple[bytes, str] | None) -> None:
        """Check that the sweep is still the one that was opened: another may have its name by now.

        A worker that waited meanwhile would run the trials of that one with the program of this one.

        Args:
            stored: bytes and version of `sweep.json` now; None: it is not there.

        Raises:
            SweepClosed: the sweep is gone.
        """
        if stored is None:
            raise SweepClosed(
                "stopped", f"{self._store.url} is gone: somebody has renamed or deleted the sweep"
            )
        data, version = self.stored or stored
        # A file that was restored has the same bytes; in a bucket they end in blanks that differ.
        if version != stored[1] and data.rstrip() != stored[0].rstrip():
            raise SweepClosed(
                "stopped",
                f"{self._store.url} is another sweep now: somebody has deleted the one that was opened here, "
                "and made one of the same name; start this again",
            )
        self.stored = stored

    def load(self) -> None:
        """List and read the amendments; what cannot be read is left out, in `damaged`."""
        listed = (RECORD.fullmatch(entry.key) for entry in self._store.list(PREFIX))
        damaged: list[DamagedObject] = []
        self.made, self._last = (), 0
        for number in sorted(int(match[1]) for match in listed if match):  # other objects are not ours
            try:
                self._append(self._fetch(number))
            except DamagedObject as error:
                damaged.append(error)
            except NotFound:
                continue  # somebody has just removed it
        self.damaged = tuple(damaged)

    def _append(self, amendment: Amendment) -> None:
        self.made, self._last = (*self.made, amendment), amendment.number
        self.space = amended(self._written, self.made)

    def add(self, changes: Changes, by: str) -> Amendment:
        """Store an amendment behind all others and return it.

        Of several people at once each gets a number, and the later number wins.

        Raises:
            DamagedObject: an earlier one cannot be read.
            InputError: there are too many, or the sweep cannot be changed so.
        """
        while True:
            present = self._read_new()
            new = changes(present) if callable(changes) else changes
            if not new or (problem := next(filter(None, (_problem(*change) for change in new.items())), "")):
                raise InputError(f"{self._store.url}: {problem if new else 'nothing to change'}")
            if new.get(GAIN) is not None and (why := no_stop(self._written)):
                raise InputError(f"{self._store.url}: {GAIN} {why}")
            number = self._last + 1
            if number > MOST:
                raise InputError(f"{self._store.url}: it was changed {MOST} times; make a new sweep")
            try:
                self._store.create(key(number), encoded(new, by, self._store.now()))
            except AlreadyExists:
                continue
            self._read_new()
            return next(amendment for amendment in self.made if amendment.number == number)

    def _fetch(self, number: int) -> Amendment:
        name = key(number)
        data, _ = self._store.read(name)
        try:
            return decoded(number, data)
        except ValueError as error:
            raise unreadable(name, error, self._store.location(name)) from None
