"""Survey of all objects in a sweep's store, for `diagnostics` and `repair`.

Unlike `Experiment.trials` it does not stop at a record that cannot be read. It changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from sweeps.errors import DamagedObject
from sweeps.search.allocation import ASK_KEY
from sweeps.search.confirm.plan import stored_plan
from sweeps.storage.base import NotFound, Store
from sweeps.storage.local import LocalStore
from sweeps.storage.urls import local_path
from sweeps.text import json_reader
from sweeps.text.counted import counted
from sweeps.transfer import stored_stages
from sweeps.trials import control, lifecycle, packs
from sweeps.trials import record as trial
from sweeps.trials.record import Trial
from sweeps.upkeep import amended, checkpoints
from sweeps.upkeep.amended import Unreadable
from sweeps.upkeep.checkpoints import Mismatch
from sweeps.upkeep.runs import RUNS, RunFolder, half_uploads, local_root, run_folders

QUARANTINE = "quarantine/"

_RECORD = re.compile(rf"{trial.PREFIX}(\d{{6}})\.json")
_QUARANTINED = re.compile(rf"{QUARANTINE}(\d{{6}})\.json-.*")
_DRAFT_AGE_S = 3600.0
"""The writer of a draft this old is dead: a write takes milliseconds, on a struggling mount minutes."""

State = Literal["sound", "newer", "torn"]
"""newer: a later version wrote it. torn: it cannot be read."""


@dataclass(frozen=True, kw_only=True)
class StoredRecord:
    """Stored record of a trial; if it cannot be read, `trial` is None and `reason` says why."""

    index: int
    key: str
    version: str
    data: bytes
    state: State
    trial: Trial | None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class AskLock:
    """Lease for generating candidates, as its holder last wrote it."""

    version: str
    holder: str
    renewed: float


@dataclass(frozen=True, kw_only=True)
class Oddity:
    """Unreadable entry in place of an object of a folder: a pipe, a folder, a loop of links.

    `index` is the trial whose record it should be, or None.
    """

    key: str
    reason: str
    index: int | None


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Content of a store.

    Args:
        halves: of runs in a bucket, the objects that no manifest names and that nobody uploads any more.
        foreign: keys among records and runs that no version of this program writes.
        quarantined: indices of records that were moved to quarantine.
        ask_lock: the lease for generating candidates, if it exists.
        drafts: temporary files of killed writers (in a folder only).
        oddities: unreadable entries in place of objects (in a folder only).
        damaged_plan: why `confirm.json` cannot be read; None if it can, or is not there.
        damaged_control: why `control.json` cannot be read, with its bytes and version; None if it can.
        switch: of the sweep; None if it cannot be read.
        checkpoints: those stored ends of stages that do not fit their manifests or the records.
        packs: those that cannot be used or have copies of earlier versions: its version, and why, by key.
    """

    now: float
    records: Mapping[int, StoredRecord]
    runs: tuple[RunFolder, ...]
    halves: tuple[RunFolder, ...]
    foreign: tuple[str, ...]
    quarantined: frozenset[int]
    ask_lock: AskLock | None
    drafts: tuple[Path, ...]
    oddities: tuple[Oddity, ...]
    damaged_plan: str | None
    damaged_control: tuple[str, bytes, str] | None
    switch: control.Switch | None = None
    checkpoints: tuple[Mismatch, ...] = ()
    amendments: tuple[Unreadable, ...] = ()
    packs: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def of_state(self, state: State) -> list[StoredRecord]:
        """Return the records of that state, in index order."""
        return [stored for stored in self.records.values() if stored.state == state]

    def trials(self) -> list[Trial]:
        """Return every trial whose record can be read, in index order."""
        return [stored.trial for stored in self.records.values() if stored.trial is not None]

    def expired(self, expire_s: float) -> list[Trial]:
        """Return the running trials whose lease has expired; `expire_s` is in seconds."""
        return [record for record in self.trials() if lifecycle.is_stale(record, self.now, expire_s)]

    def dead_lock(self, expire_s: float) -> AskLock | None:
        """Return the ask lock if its holder has not renewed it for `expire_s` seconds, else None."""
        lock = self.ask_lock
        if lock is None or abs(self.now - lock.renewed) <= expire_s:  # false for NaN, too
            return None
        return lock

    def superseded_runs(self) -> list[RunFolder]:
        """Return the runs of attempts after which another attempt completed the trial."""
        completed = {r.trial: r.attempt for r in self.trials() if r.status == "completed"}
        return [run for run in self.runs if run.attempt < completed.get(run.index, 0)]

    def half_uploads(self) -> list[RunFolder]:
        """Return the leftovers of interrupted uploads, except of superseded and ownerless runs."""
        others = {run.prefix for run in (*self.superseded_runs(), *self.ownerless_runs())}
        return [run for run in self.halves if run.prefix not in others]

    def ownerless_runs(self) -> list[RunFolder]:
        """Return the runs of trials that have no record at all, not even a damaged one."""
        known = self.records.keys() | self._odd_records()
        return [run for run in self.runs if run.index not in known]

    def gaps(self) -> list[int]:
        """Return the indices below the highest that have neither a record nor one in quarantine."""
        known = self.records.keys() | self.quarantined | self._odd_records()
        return sorted(set(range(max(self.records, default=-1) + 1)) - known)

    def _odd_records(self) -> set[int]:
        return {oddity.index for oddity in self.oddities if oddity.index is not None}


def survey(store: Store, *, checksums: bool = False) -> Survey:
    """Read all objects of the store, and checkpoints with `checksums` alone. Raises `StoreUnavailable`."""
    oddities: list[Oddity] = []
    if isinstance(store, LocalStore):
        names = (f"{trial.PREFIX}{name}" for name in _names(Path(local_path(store.url), trial.PREFIX)))
        for key in (control.KEY, ASK_KEY, *filter(_RECORD.fullmatch, names)):
            if (reason := store.oddity(key)) is not None:
                match = _RECORD.fullmatch(key)
                oddities.append(Oddity(key=key, reason=reason, index=int(match[1]) if match else None))
    odd = {oddity.key for oddity in oddities}
    # Before the records: a pack that is written meanwhile may be ahead of them.
    packed = packs.read_all(store) if store.is_remote else []
    entries = [entry for entry in store.list(trial.PREFIX) if "/".join(entry.key.split("/")[:2]) not in odd]
    keys = {int(match[1]): entry.key for entry in entries if (match := _RECORD.fullmatch(entry.key))}
    objects = store.list(RUNS)
    runs = run_folders(objects)
    in_runs = {entry.key for run in runs for entry in run.entries}
    foreign = [entry.key for entry in entries if not _RECORD.fullmatch(entry.key)]
    foreign += [entry.key for entry in objects if entry.key not in in_runs]
    amendments, others = amended.survey_amendments(store)
    foreign += others
    foreign += stored_stages.foreign(store.list(stored_stages.STAGES))
    foreign += [entry.key for entry in store.list(packs.PREFIX) if not packs.is_key(entry.key)]
    in_quarantine = {entry.key for entry in store.list(QUARANTINE)}
    if (root := local_root(store)) is not None:  # a listing does not show empty folders
        in_quarantine |= {f"{QUARANTINE}{name}" for name in _names(root / QUARANTINE)}
    moved = map(_QUARANTINED.fullmatch, in_quarantine)
    now = store.now()
    drafts: list[Path] = []
    if root is not None:
        for draft in sorted((*root.glob(".*.draft"), *(root / trial.PREFIX).glob(".*.draft"))):
            with suppress(FileNotFoundError):  # its writer was alive
                if now - draft.stat().st_mtime > _DRAFT_AGE_S:
                    drafts.append(draft)
    records = _records(store, keys)
    trials = [stored.trial for stored in records.values() if stored.trial is not None]
    switch: control.Switch | None = None
    damaged_control: tuple[str, bytes, str] | None = None
    damaged_plan: str | None = None
    if control.KEY not in odd:
        try:
            switch = control.switch(store)
        except DamagedObject as error:
            damaged_control = (error.reason, *store.read(control.KEY))
    try:
        stored_plan(store)
    except DamagedObject as error:
        damaged_plan = error.reason
    return Survey(
        now=now,
        records=MappingProxyType(records),
        runs=tuple(runs),
        halves=tuple(half_uploads(store, runs, trials, now)),
        foreign=tuple(foreign),
        quarantined=frozenset(int(match[1]) for match in moved if match),
        ask_lock=None if ASK_KEY in odd else ask_lock(store),
        drafts=tuple(drafts),
        oddities=tuple(oddities),
        damaged_plan=damaged_plan,
        damaged_control=damaged_control,
        switch=switch,
        checkpoints=checkpoints.survey_checkpoints(store, trials, now, checksums=checksums),
        amendments=amendments,
        packs=_unfit_packs(packed, {index: stored.version for index, stored in records.items()}),
    )


def _unfit_packs(packed: list[packs.Pack], present: Mapping[int, str]) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for pack in packed:
        why = pack.problem
        if outdated := pack.outdated(present):
            why = f"it has earlier versions of {counted(len(outdated), 'record')}"
        if why and pack.version is not None:
            found[packs.key(pack.number)] = (pack.version, why)
    return found


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _records(store: Store, keys: Mapping[int, str]) -> dict[int, StoredRecord]:
    found: dict[int, StoredRecord] = {}
    contents = store.read_many([keys[index] for index in sorted(keys)])
    # One of them may have been deleted since the listing.
    read = {i: content for i, content in zip(sorted(keys), contents, strict=True) if content is not None}
    decoded = trial.decode_each({index: data for index, (data, _) in read.items()})
    for index, (data, version) in read.items():
        state: State = "sound"
        record: Trial | None = None
        reason = ""
        result = decoded[index]
        if isinstance(result, Trial):
            record = result
        else:
            state, reason = "newer" if amended.is_newer(data, trial.SCHEMA) else "torn", str(result)
        found[index] = StoredRecord(
            index=index, key=keys[index], version=version, data=data, state=state, trial=record, reason=reason
        )
    return found


def ask_lock(store: Store) -> AskLock | None:
    """Return the lease for generating candidates, or None if nobody has it."""
    try:
        data, version = store.read(ASK_KEY)
    except NotFound:
        return None
    try:
        document = json_reader.parse(data)
        return AskLock(version=version, holder=str(document["holder"]), renewed=float(document["renewed"]))
    except (ValueError, KeyError, TypeError, OverflowError):
        # Like `lease`, take it for expired.
        return AskLock(version=version, holder="somebody unknown", renewed=0.0)
