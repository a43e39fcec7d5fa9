"""Trial records of one store, with a cache; every change is a compare-and-swap."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator

from sweeps.errors import Conflict, DamagedObject, StoreConflict
from sweeps.storage.base import NotFound, Store
from sweeps.trials import lifecycle, storable
from sweeps.trials import record as trial
from sweeps.trials.record import Trial
from sweeps.trials.redaction import redact_event

_RECORD = re.compile(rf"{trial.PREFIX}(\d{{6}})\.json")
FRESH_S = 1.0
"""Seconds for which a listing may be reused: a worker claims several short trials from one."""


class Records:
    """Trial records of one store, for one thread.

    Records and versions are cached: a listing reads only those that have changed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[int, tuple[Trial, str]] = {}
        self._listed = float("-inf")

    def all(self) -> list[Trial]:
        """Return all trials in index order.

        Raises:
            DamagedObject: a record is incomplete or was edited badly.
        """
        known, versions = self._known, self._versions()
        changed = [i for i, version in versions.items() if i not in known or known[i][1] != version]
        known.update(zip(changed, self._fetch_all(changed), strict=True))
        self._known, self._listed = {index: known[index] for index in sorted(versions)}, time.monotonic()
        return [record for record, _ in self._known.values()]

    def readable(self) -> tuple[list[Trial], list[DamagedObject]]:
        """Return all trials that can be read, in index order, and an error for each that cannot."""
        try:
            return self.all(), []
        except DamagedObject:
            found, damaged = {}, []
        for index, version in sorted(self._versions().items()):
            try:
                known = self._known.get(index)
                found[index] = known if known is not None and known[1] == version else self._fetch(index)
            except DamagedObject as error:
                damaged.append(error)
            except NotFound:
                continue  # somebody has repaired it
        self._known = found
        return [record for record, _ in found.values()], damaged

    def _versions(self) -> dict[int, str]:
        return {
            int(match[1]): entry.version
            for entry in self._store.list(trial.PREFIX)
            if (match := _RECORD.fullmatch(entry.key))  # other objects are not ours
        }

    def lately(self) -> list[Trial]:
        """Return the last listing with our own changes since; empty once that is outdated."""
        if time.monotonic() - self._listed > FRESH_S:
            return []
        return [self._known[index][0] for index in sorted(self._known)]

    def read(self, index: int) -> Trial:
        """Return the current record of one trial. Raises `NotFound` or `DamagedObject`."""
        self._known[index] = self._fetch(index)
        return self._known[index][0]

    def apply(self, index: int, event: lifecycle.Event) -> Trial:
        """Store the trial after the event and return it; a lost race is retried on the new record.

        Raises:
            IllegalTransition: as in `lifecycle.apply`.
            UnstorableRecord: the record could not be read back; nothing was stored.
        """
        event = redact_event(storable.event(event))
        while True:
            record = self.read(index)
            changed = lifecycle.apply(record, event, self._store.now())
            if changed is record:
                return record
            try:
                return self.replace(changed)
            except Conflict:
                continue

    def replace(self, changed: Trial) -> Trial:
        """Replace the version that was read last, and return the stored trial.

        Raises:
            Conflict: another writer was faster; the cached record is dropped.
            UnstorableRecord: it could not be read back; nothing was stored.
        """
        data = trial.encode(changed, uuid.uuid4().hex)
        try:
            version = self._store.replace(trial.key(changed.trial), data, self._known[changed.trial][1])
        except StoreConflict:
            del self._known[changed.trial]  # the next listing reads it again
            self._listed = float("-inf")
            raise
        return self._remember(data, version)

    def create(self, record: Trial) -> Trial:
        """Store a new trial and return it. Raises `AlreadyExists` or `UnstorableRecord`."""
        data = trial.encode(record, uuid.uuid4().hex)
        return self._remember(data, self._store.create(trial.key(record.trial), data))

    def _remember(self, data: bytes, version: str) -> Trial:
        stored = trial.decode(data)
        self._known[stored.trial] = (stored, version)
        return stored

    def _fetch_all(self, indices: list[int]) -> Iterator[tuple[Trial, str]]:
        """Yield the records of `indices` in their order. Raises as `_fetch` does."""
        found = self._store.read_many([trial.key(index) for index in indices])
        for index, content in zip(indices, found, strict=True):
            yield self._decode(index, *content) if content is not None else self._fetch(index)

    def _fetch(self, index: int) -> tuple[Trial, str]:
        return self._decode(index, *self._store.read(trial.key(index)))

    def _decode(self, index: int, data: bytes, version: str) -> tuple[Trial, str]:
        try:
            record = trial.decode(data)
            if record.trial != index:
                raise ValueError(f"it says trial {record.trial}")
        except ValueError as error:
            key = trial.key(index)
            raise DamagedObject(key, str(error), self._store.location(key)) from None
        return record, version
