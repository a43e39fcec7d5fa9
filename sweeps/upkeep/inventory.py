"""Survey of all objects in a sweep's store, for `diagnostics` and `repair`.

Unlike `Experiment.trials` it does not stop at a record that cannot be read. It changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sweeps.errors import DamagedObject, NewerFormat, NewerObject
from sweeps.search.allocation import ASK_KEY
from sweeps.search.confirm.plan import KEY as CONFIRM_KEY
from sweeps.search.confirm.plan import stored_plan
from sweeps.storage.base import NotFound, Store
from sweeps.storage.local import LocalStore
from sweeps.storage.urls import local_path
from sweeps.text.counted import counted
from sweeps.transfer import stored_stages
from sweeps.trials import amendments, control, lease, lifecycle, packs
from sweeps.trials import record as trial
from sweeps.trials.lease import Lock
from sweeps.trials.record import QUARANTINE, Trial
from sweeps.upkeep import checkpoints
from sweeps.upkeep.checkpoints import Mismatch
from sweeps.upkeep.runs import RUNS, RunFolder, half_uploads, local_root, run_folders

_RECORD = re.compile(rf"{trial.PREFIX}(\d{{6}})\.json")
_QUARANTINED = re.compile(rf"{QUARANTINE}(\d{{6}})\.json-.*")
_DRAFT_AGE_S = 3600.0
"""The writer of a draft this old is dead: a write takes milliseconds, on a struggling mount minutes."""


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """Object that cannot be read.

    Args:
        reason: what is wrong with it; "" for an amendment that is missing, though there are later ones.
        index: of the trial whose record it is; None for another object.
        is_newer: a later version wrote it.
        data, version: of the object; None for what is no file (a pipe, a folder, a loop of links).
    """

    key: str
    reason: str
    index: int | None = None
    is_newer: bool = False
    data: bytes | None = field(default=None, repr=False)
    version: str | None = None


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Content of a store.

    Args:
        trials: those whose records can be read, in index order.
        unreadable: records, the sweep's switch, the plan of a confirmation, and amendments.
        halves: of runs in a bucket, the objects that no manifest names and that nobody uploads any more.
        foreign: keys among records and runs that no version of this program writes.
        quarantined: indices of records that were moved to quarantine.
        ask_lock: as the function returns it.
        drafts: temporary files of killed writers (in a folder only).
        switch: of the sweep; None if it cannot be read.
        checkpoints: those stored ends of stages that do not fit their manifests or the records.
        packs: those that cannot be used or have copies of earlier versions: its version, and why, by key.
    """

    now: float
    trials: tuple[Trial, ...]
    unreadable: tuple[Unreadable, ...]
    runs: tuple[RunFolder, ...]
    halves: tuple[RunFolder, ...]
    foreign: tuple[str, ...]
    quarantined: frozenset[int]
    ask_lock: tuple[Lock, str] | None
    drafts: tuple[Path, ...]
    switch: control.Switch | None
    checkpoints: tuple[Mismatch, ...]
    packs: Mapping[str, tuple[str, str]]

    def expired(self, expire_s: float) -> list[Trial]:
        """Return the running trials whose lease has expired; `expire_s` is in seconds."""
        return [record for record in self.trials if lifecycle.is_stale(record, self.now, expire_s)]

    def dead_lock(self, expire_s: float) -> tuple[Lock, str] | None:
        """Return the ask lock if its holder has not renewed it for `expire_s` seconds, else None."""
        if (
            self.ask_lock is None or abs(self.now - self.ask_lock[0].renewed) <= expire_s
        ):  # false for NaN, too
            return None
        return self.ask_lock

    def superseded_runs(self) -> list[RunFolder]:
        """Return the runs of attempts after which another attempt completed the trial."""
        completed = {r.trial: r.attempt for r in self.trials if r.status == "completed"}
        return [run for run in self.runs if run.attempt < completed.get(run.index, 0)]

    def half_uploads(self) -> list[RunFolder]:
        """Return the leftovers of interrupted uploads, except of superseded and ownerless runs."""
        others = {run.prefix for run in (*self.superseded_runs(), *self.ownerless_runs())}
        return [run for run in self.halves if run.prefix not in others]

    def ownerless_runs(self) -> list[RunFolder]:
        """Return the runs of trials that have no record at all, not even a damaged one."""
        known = self._indices()
        return [run for run in self.runs if run.index not in known]

    def gaps(self) -> list[int]:
        """Return the indices below the highest that have neither a record nor one in quarantine."""
        known = self._indices()
        return sorted(set(range(max(known, default=-1) + 1)) - known - self.quarantined)

    def _indices(self) -> set[int]:
        unreadable = (each.index for each in self.unreadable if each.index is not None)
        return {record.trial for record in self.trials} | set(unreadable)


def survey(store: Store, *, checksums: bool = False) -> Survey:
    """Read all objects of the store, and checkpoints with `checksums` alone. Raises `StoreUnavailable`."""
    unreadable: list[Unreadable] = []
    if isinstance(store, LocalStore):
        names = (f"{trial.PREFIX}{name}" for name in _names(Path(local_path(store.url), trial.PREFIX)))
        for key in (control.KEY, ASK_KEY, *filter(_RECORD.fullmatch, names)):
            if (reason := store.oddity(key)) is not None:
                match = _RECORD.fullmatch(key)
                unreadable.append(Unreadable(key=key, reason=reason, index=int(match[1]) if match else None))
    odd = {each.key for each in unreadable}
    # Before the records: a pack that is written meanwhile may be ahead of them.
    packed = packs.read_all(store) if store.is_remote else []
    objects = store.list(RUNS)  # before them, too: a run of a trial that begins meanwhile has a record
    entries = [entry for entry in store.list(trial.PREFIX) if "/".join(entry.key.split("/")[:2]) not in odd]
    keys = {int(match[1]): entry.key for entry in entries if (match := _RECORD.fullmatch(entry.key))}
    runs = run_folders(objects)
    in_runs = {entry.key for run in runs for entry in run.entries}
    foreign = [entry.key for entry in entries if not _RECORD.fullmatch(entry.key)]
    foreign += [entry.key for entry in objects if entry.key not in in_runs]
    changes, others = _unreadable_amendments(store)
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
    trials, torn, versions = _records(store, keys)
    unreadable += torn
    switch: control.Switch | None = None
    if control.KEY not in odd:
        try:
            switch = control.switch(store)
        except DamagedObject as error:
            data, version = store.read(control.KEY)
            newer = isinstance(error, NewerObject)
            unreadable.append(
                Unreadable(key=control.KEY, reason=error.reason, is_newer=newer, data=data, version=version)
            )
    try:
        stored_plan(store)
    except DamagedObject as error:
        newer = isinstance(error, NewerObject)
        unreadable.append(Unreadable(key=CONFIRM_KEY, reason=error.reason, is_newer=newer))
    return Survey(
        now=now,
        trials=tuple(trials),
        unreadable=(*unreadable, *changes),
        runs=tuple(runs),
        halves=tuple(half_uploads(store, runs, trials, now)),
        foreign=tuple(foreign),
        quarantined=frozenset(int(match[1]) for match in moved if match),
        ask_lock=None if ASK_KEY in odd else ask_lock(store),
        drafts=tuple(drafts),
        switch=switch,
        checkpoints=tuple(checkpoints.survey_checkpoints(store, trials, now, checksums=checksums)),
        packs=_unfit_packs(packed, versions),
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


def _records(store: Store, keys: Mapping[int, str]) -> tuple[list[Trial], list[Unreadable], dict[int, str]]:
    """Return the records that can be read, those that cannot, and the versions of all by index."""
    contents = store.read_many([keys[index] for index in sorted(keys)])
    # One of them may have been deleted since the listing.
    read = {i: content for i, content in zip(sorted(keys), contents, strict=True) if content is not None}
    trials: list[Trial] = []
    unreadable: list[Unreadable] = []
    for index, result in trial.decode_each({index: data for index, (data, _) in read.items()}).items():
        if isinstance(result, Trial):
            trials.append(result)
            continue
        data, version = read[index]
        newer = isinstance(result, NewerFormat)
        unreadable.append(
            Unreadable(
                key=keys[index], reason=str(result), index=index, is_newer=newer, data=data, version=version
            )
        )
    return trials, unreadable, {index: version for index, (_, version) in read.items()}


def _unreadable_amendments(store: Store) -> tuple[list[Unreadable], list[str]]:
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
            newer = isinstance(error, NewerFormat)
            found.append(Unreadable(key=key, reason=str(error), is_newer=newer, data=data, version=version))
    return found, [key for key, match in listed.items() if match is None]


def ask_lock(store: Store) -> tuple[Lock, str] | None:
    """Return the lease for generating candidates, and its version; None if nobody has it."""
    try:
        data, version = store.read(ASK_KEY)
    except NotFound:
        return None
    lock = lease.parse(data)
    return Lock(lock.holder or "somebody unknown", lock.renewed), version
