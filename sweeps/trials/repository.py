"""Trial records of one store, with a cache; every change is a compare-and-swap."""

from __future__ import annotations

import random
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from operator import attrgetter, itemgetter

from sweeps.errors import Conflict, DamagedObject, StoreConflict, unreadable
from sweeps.storage.base import NotFound, Store
from sweeps.storage.local import LocalStore
from sweeps.trials import brake, lifecycle, packs, storable
from sweeps.trials import record as trial
from sweeps.trials.record import Trial
from sweeps.trials.redaction import redact_event

_RECORD = re.compile(rf"{trial.PREFIX}(\d{{6}})\.json")
FRESH_S = 1.0
"""Seconds for which a listing may be reused: a worker claims several short trials from one."""
ENDED_S = 10.0
"""Seconds for which a worker may take ended records for unchanged: only a person changes them, by a retry."""


def free_index(store: Store, records: Sequence[Trial]) -> int:
    """Return the next trial's index: behind all records, and behind files of a trial whose record is lost.

    A record that was moved to `quarantine/` or removed leaves the files of its runs, which may have its
    result; another trial of its index would overwrite them, or resume from what it finds there.

    Args:
        records: all of them, in index order.

    Returns:
        The index. If others have made that trial since `records` were read, `create` refuses it.

    Raises:
        StoreUnavailable: the files cannot be listed.
    """
    index = records[-1].trial + 1 if records else 0
    # A caller that stood still until its lease was lost sees files of a trial that it does not know: with the
    # next index it would store that trial's parameters once more, beyond the run cap.
    while store.list(trial.runs_prefix(index)) and store.read_many([trial.key(index)]) == [None]:
        index += 1
    return index


class Records:
    """Trial records of one store, for one thread.

    Records and versions are cached: a listing reads only those that have changed.

    Attributes:
        is_partial: whether the last listing took ended records for unchanged.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[int, tuple[Trial, str]] = {}  # by ascending index
        self._ordered: list[Trial] | None = []  # those records; None: to be made anew
        self._unsettled: set[int] = set()  # those that may change at any time
        self._last_ended: Trial | None = None  # of those records, once somebody has asked for it
        self._knows_last = False
        self._next = 0  # the index after the last that was listed
        self._listed = self._listed_in_full = float("-inf")
        self.is_partial = False

    def copy(self) -> Records:
        """Return the same for another thread: it reads only what changes from now on."""
        copied = Records(self._store)
        copied._learn(dict(self._known))
        return copied

    def all(self, *, trust_ended_s: float = 0.0) -> list[Trial]:
        """Return all trials in index order.

        Args:
            trust_ended_s: seconds for which a folder's ended records may be taken for unchanged.

        Raises:
            DamagedObject: a record is incomplete or was edited badly.
        """
        is_recent = time.monotonic() - self._listed_in_full < trust_ended_s
        self.is_partial = is_recent and isinstance(self._store, LocalStore) and self._refresh(self._store)
        if not self.is_partial:
            return self._read_all(self._versions())
        self._listed = time.monotonic()
        return self.known()

    def some(self, most: int) -> tuple[list[Trial], int]:
        """Return trials as they are now: all, unless more than `2 * most` are new or have changed.

        Returns:
            Trials in index order: those that have not changed since they were read, and at least `most`
            others, drawn at random; and how many there are beside these.
        """
        known, versions = self._known, self._versions()
        changed = self._changed(versions)
        if len(changed) <= 2 * most:
            return self._read_all(versions), 0
        same = [known[index][0] for index in versions.keys() - set(changed)]
        chosen = random.sample(changed, most)
        drawn = [self._keep(record, version) for record, version in self._fetch_all(chosen)]
        self._listed = self._listed_in_full = float("-inf")
        return sorted(same + drawn, key=attrgetter("trial")), len(changed) - most

    def __len__(self) -> int:
        """Return the number of trials that were ever read."""
        return len(self._known)

    def _learn(self, known: dict[int, tuple[Trial, str]]) -> None:
        self._known, self._ordered = known, None
        self._unsettled = {index for index, (record, _) in known.items() if not _is_settled(record)}
        self._knows_last = False

    def _changed(self, versions: Mapping[int, str]) -> list[int]:
        known = self._known
        return [index for index, v in versions.items() if index not in known or known[index][1] != v]

    def _read_all(self, versions: Mapping[int, str]) -> list[Trial]:
        """Read what differs from a listing, and return all trials in index order."""
        known, changed = self._known, self._changed(versions)
        known.update(zip(changed, self._fetch_all(changed, versions), strict=True))
        self._learn({index: known[index] for index in sorted(versions)})
        self._next = next(reversed(self._known), -1) + 1
        self._listed = self._listed_in_full = time.monotonic()
        return self.known()

    def _refresh(self, store: LocalStore) -> bool:
        """Read what has changed of the records that are not settled, and the new ones; False: some are gone.

        Indices have no gaps, so the new ones follow the last. This costs a `stat` for each open trial, where
        a listing of the folder costs one for each trial.
        """
        while self._next in self._known:  # our own
            self._next += 1
        last = {self._next - 1} - {-1}  # it is gone if the sweep is
        old, ahead = sorted(self._unsettled | last), 1
        while True:
            new = range(self._next, self._next + ahead)
            versions = store.versions([trial.key(index) for index in (*old, *new)])
            if None in versions[: len(old)]:
                return False
            # Of the new ones, those until the first that is missing.
            there = list(takewhile(itemgetter(1), zip((*old, *new), versions, strict=True)))
            changed = [i for i, v in there if i not in self._known or self._known[i][1] != v]
            for record, version in self._fetch_all(changed):
                self._keep(record, version)
            self._next += len(there) - len(old)
            if len(there) < len(versions):
                return True
            old, ahead = [], 2 * ahead

    def readable(self) -> tuple[list[Trial], list[DamagedObject]]:
        """Return all trials that can be read, in index order, and an error for each that cannot."""
        try:
            return self.all(), []
        except DamagedObject:
            found, damaged = {}, []
        versions = self._versions()
        packed = self._packed(versions)
        for index, version in sorted(versions.items()):
            try:
                known = self._known.get(index)
                if known is not None and known[1] == version:
                    found[index] = known
                else:
                    found[index] = self._decode_packed(index, packed) or self._fetch(index)
            except DamagedObject as error:
                damaged.append(error)
            except NotFound:
                continue  # somebody has repaired it
        self._learn(found)
        self._listed_in_full = float("-inf")
        return [record for record, _ in found.values()], damaged

    def _versions(self) -> dict[int, str]:
        if isinstance(self._store, LocalStore) and not self._known:  # to read them gives their versions
            found = dict.fromkeys(self._store.keys(trial.PREFIX), "")
        else:
            found = {entry.key: entry.version for entry in self._store.list(trial.PREFIX)}
        # Other objects are not ours.
        return {int(match[1]): v for key, v in found.items() if (match := _RECORD.fullmatch(key))}

    def lately(self) -> list[Trial]:
        """Return the last listing with our own changes since; empty once that is outdated."""
        return [] if time.monotonic() - self._listed > FRESH_S else self.known()

    def known(self) -> list[Trial]:
        """Return the last listing with our own changes since, however old it is."""
        if self._ordered is None:
            self._ordered = [record for record, _ in self._known.values()]
        return self._ordered.copy()

    def last_failed(self) -> bool:
        """Return whether of those of `known` the one that ended last has failed.

        An ask needs it, and mostly goes through no list for it, however many trials there are.
        """
        if not self._knows_last:
            ended = (record for record, _ in self._known.values() if brake.has_ended(record))
            self._last_ended, self._knows_last = max(ended, key=brake.order, default=None), True
        return self._last_ended is not None and self._last_ended.status == "failed"

    def unsettled(self) -> list[Trial]:
        """Return those of `known` that may change at any time, all open ones among them, in index order."""
        return [self._known[index][0] for index in sorted(self._unsettled)]

    def read(self, index: int) -> Trial:
        """Return the current record of one trial. Raises `NotFound` or `DamagedObject`."""
        return self._keep(*self._fetch(index))

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
            Conflict: another writer was faster.
            UnstorableRecord: it could not be read back; nothing was stored.
        """
        data = trial.encode(changed, uuid.uuid4().hex)
        try:
            version = self._store.replace(trial.key(changed.trial), data, self._known[changed.trial][1])
        except StoreConflict:
            self._known[changed.trial] = (changed, "")  # the next listing reads it again
            self._note_end(changed)
            self._unsettled.add(changed.trial)
            self._ordered = None
            self._listed = float("-inf")
            raise
        return self._remember(data, version)

    def create(self, record: Trial) -> Trial:
        """Store a new trial and return it. Raises `AlreadyExists` or `UnstorableRecord`."""
        data = trial.encode(record, uuid.uuid4().hex)
        return self._remember(data, self._store.create(trial.key(record.trial), data))

    def _remember(self, data: bytes, version: str) -> Trial:
        return self._keep(trial.decode(data), version)

    def _keep(self, record: Trial, version: str) -> Trial:
        if record.trial not in self._known and record.trial != next(reversed(self._known), -1) + 1:
            self._listed = self._listed_in_full = float("-inf")  # it has no place among them
        self._known[record.trial] = (record, version)
        index, ordered = record.trial, self._ordered
        if ordered is not None and index < len(ordered) and ordered[index].trial == index:
            ordered[index] = record
        elif ordered is not None and index == len(ordered) == len(self._known) - 1:
            ordered.append(record)
        else:  # there is a gap, or it is out of order
            self._ordered = None
        (self._unsettled.discard if _is_settled(record) else self._unsettled.add)(record.trial)
        self._note_end(record)
        return record

    def _note_end(self, record: Trial) -> None:
        """Keep up which trial ended last, when a record has taken the place of another one or none."""
        last = self._last_ended
        if last is not None and last.trial == record.trial:
            self._knows_last = False  # a retry has put it back, perhaps
        elif brake.has_ended(record) and (last is None or brake.order(record) > brake.order(last)):
            self._last_ended = record

    def pack(self) -> list[int]:
        """Bring the packs of a bucket up to date, and return the numbers of those that were written."""
        if not self._store.is_remote:
            return []
        before = packs.read_all(self._store)  # before the records, so that no pack has later ones
        self.all()
        settled = {index: version for index, (record, version) in self._known.items() if _is_settled(record)}
        return packs.write(self._store, before, settled)

    def _fetch_all(
        self, indices: list[int], versions: Mapping[int, str] | None = None
    ) -> Iterator[tuple[Trial, str]]:
        """Yield the records of `indices` in their order. Raises as `_fetch` does.

        Args:
            versions: as they were listed; a pack may have copies of them.
        """
        packed = self._packed({index: versions[index] for index in indices} if versions else {})
        single = [index for index in indices if index not in packed]
        contents = self._store.read_many([trial.key(index) for index in single])
        found = {i: content for i, content in zip(single, contents, strict=True) if content is not None}
        found |= packed
        records = trial.decode_each({index: found[index][0] for index in indices if index in found})
        for index in indices:
            record = records.get(index)
            if isinstance(record, Trial):
                yield record, found[index][1]
            elif record is not None and index not in packed:
                raise self._damaged_object(index, record)
            else:  # gone since the listing, or the pack's copy is damaged
                yield self._fetch(index)

    def _packed(self, versions: Mapping[int, str]) -> dict[int, packs.Content]:
        """Return copies of these versions, by index, of records that were never read."""
        return packs.read(self._store, {i: v for i, v in versions.items() if i not in self._known})

    def _decode_packed(self, index: int, packed: Mapping[int, packs.Content]) -> tuple[Trial, str] | None:
        """Return a record by its copy; None if there is none, or none that can be read."""
        record = trial.decode_each({index: packed[index][0]})[index] if index in packed else None
        return (record, packed[index][1]) if isinstance(record, Trial) else None

    def _fetch(self, index: int) -> tuple[Trial, str]:
        data, version = self._store.read(trial.key(index))
        record = trial.decode_each({index: data})[index]
        if isinstance(record, ValueError):
            raise self._damaged_object(index, record)
        return record, version

    def _damaged_object(self, index: int, error: ValueError) -> DamagedObject:
        key = trial.key(index)
        return unreadable(key, error, self._store.location(key))


def _is_settled(record: Trial) -> bool:
    """Return whether only a person changes the record; workers note where a snapshot is no longer stored."""
    return record.finished and not ((record.stages or record.points) and record.snapshots)
