"""Removal of a whole sweep, for `sweep delete`, and who must have left before.

The sweep is stopped before, and `sweep.json` goes last: a removal that is cut short leaves a stopped sweep,
and the next one finishes it. A worker that waited meanwhile finds no `sweep.json`, and leaves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from sweeps.errors import Conflict, DamagedObject, InputError, NewerObject, StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.search.allocation import ASK_KEY
from sweeps.search.confirm.plan import stored_plan
from sweeps.storage.base import Entry, NotFound, Store
from sweeps.storage.keys import SWEEP_KEY
from sweeps.storage.run_files.client import Bucket
from sweeps.storage.run_files.manifest import MANIFEST, is_uploading
from sweeps.storage.run_files.upload import UPLOAD_S
from sweeps.text.counted import counted
from sweeps.trials import control, lifecycle
from sweeps.trials.record import run_prefix
from sweeps.upkeep.inventory import ask_lock
from sweeps.upkeep.runs import folder_size, local_root, remove_path

AT_ONCE = 16
"""Requests to a bucket at the same time."""
LAST = (SWEEP_KEY, control.KEY)
"""Objects that are removed last: until there is no sweep, it must stay stopped."""
_TRIES = 3


@dataclass(frozen=True, kw_only=True)
class Stock:
    """Contents of a sweep: trials by status, damaged records, files and their bytes (None: not known)."""

    trials: Mapping[str, int]
    damaged: int
    files: int
    size: int | None


def living(experiment: Experiment, *, wait: bool = False) -> tuple[str, ...]:
    """Return the workers that sent a heartbeat within the lease; idle ones send none.

    Args:
        wait: where there are only older heartbeats, wait for further ones: after an outage of the store or a
            machine's sleep those of live workers are old, too.

    Raises:
        NewerObject: a later version wrote a record; its worker may be alive.
    """
    workers, old = _heartbeats(experiment)
    heartbeat_s = experiment.space.lease.heartbeat_s
    if wait and not workers and experiment.silence.wait_for_heartbeats(old, heartbeat_s):
        workers, still_old = _heartbeats(experiment)
        # A new one is a sign of life even if it is old: the worker's clock may be wrong.
        workers += [worker for heartbeat, worker in still_old.items() if heartbeat not in old]
    return tuple(dict.fromkeys(workers))


def _heartbeats(experiment: Experiment) -> tuple[list[str], dict[Hashable, str]]:
    """Return the workers with a heartbeat within the lease, and those of older heartbeats, by these."""
    now, expire_s = experiment.store.now(), experiment.space.lease.expire_s
    records, damaged = experiment.readable_trials()
    _raise_newer(damaged)
    workers: list[str] = []
    old: dict[Hashable, str] = {}
    for record in records:
        if record.status != "running" or record.heartbeat is None:
            continue
        worker = record.worker or "somebody"
        if lifecycle.is_stale(record, now, expire_s):
            old[record.trial, record.attempt, record.heartbeat] = worker
        else:
            workers.append(worker)
    found = ask_lock(experiment.store)
    if found is not None and abs(now - found[0].renewed) <= expire_s:
        workers.append(found[0].holder)
    elif found is not None:
        old[ASK_KEY, found[1]] = found[0].holder
    return workers, old


def require_known(experiment: Experiment) -> None:
    """Raise `NewerObject` if a later version wrote an amendment, the switch or a confirmation's plan.

    `living` does that for records. Damaged ones are left to what reads them.
    """
    unreadable = [*experiment.amendments.damaged]
    for read in (control.switch, stored_plan):
        try:
            read(experiment.store)
        except DamagedObject as error:
            unreadable.append(error)
    _raise_newer(unreadable)


def _raise_newer(unreadable: Iterable[DamagedObject]) -> None:
    if newer := next((error for error in unreadable if isinstance(error, NewerObject)), None):
        raise newer


def require_uploaded(experiment: Experiment, verb: str) -> None:
    """Raise `InputError` while a worker uploads the last files of a finished trial to a bucket.

    The trial is reported before: then its worker holds nothing, but its files would miss a copy.
    """
    store = experiment.store
    if not isinstance(store, Bucket):
        return
    now = store.now()
    ended = [
        record
        for record in experiment.readable_trials()[0]
        # One that somebody else has ended, as after a lost lease, has no worker that uploads.
        if record.history and record.history[-1].reason in ("completed", "failed", "early_stopped")
        if record.ended is not None and now - record.ended < UPLOAD_S
    ]
    manifests = store.read_many([f"{run_prefix(each.trial, each.attempt)}/{MANIFEST}" for each in ended])
    for record, content in zip(ended, manifests, strict=True):
        if content is not None and is_uploading(content[0]):
            raise InputError(
                f"{store.url}: worker {record.history[-1].worker} still uploads the last files of trial "
                f"{record.trial}; it can be {verb} when they are there, at most {UPLOAD_S / 60:.0f} minutes "
                "after the trial's end (`sweep down` would cut that off)"
            )


def require_idle(experiment: Experiment, verb: str) -> None:
    """Raise `InputError` while workers are at work, and `NewerObject` where a later version wrote something.

    It comes before the first write, so that who refuses has changed nothing.
    """
    require_known(experiment)
    if workers := living(experiment, wait=True):
        raise InputError(
            f"{experiment.store.url}: {counted(len(workers), 'worker')} still at work "
            f"({', '.join(workers[:3])}); "
            f"it can be {verb} when they have left: `sweep down` or `sweep stop`"
        )
    require_uploaded(experiment, verb)


def stock(experiment: Experiment) -> Stock:
    """Return what `remove` would remove. Raises `StoreUnavailable`."""
    records, damaged = experiment.readable_trials()
    store, size = experiment.store, None
    if (root := local_root(store)) is not None:
        size = folder_size(root)
    elif isinstance(store, Bucket):
        size = sum(store.sizes("").values())
    return Stock(
        trials=Counter(record.status for record in records),
        damaged=len(damaged),
        files=len(store.list("")),
        size=size,
    )


def remove(store: Store) -> None:
    """Remove all objects of a stopped sweep. Raises StoreUnavailable; the next call goes on."""
    remove_objects(store)
    root = local_root(store)
    if root is not None:
        remove_path(root)


def remove_objects(
    store: Store,
    last: Sequence[str] = LAST,
    *,
    check: Callable[[Sequence[Entry]], None] = lambda entries: None,
) -> None:
    """Remove all objects, those of `last` at the end, in this order. Raises `StoreUnavailable`.

    Args:
        check: called with each listing of a bucket before its versions are removed; may raise.
    """
    root = local_root(store)
    if root is not None:
        for child in sorted(root.iterdir()):
            if child.name not in last:
                remove_path(child)
        for name in last:
            remove_path(root / name)
        return
    for _ in range(_TRIES):
        entries = [entry for entry in store.list("") if entry.key not in last]
        if not entries:
            break
        check(entries)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda entry: _delete(store, entry), entries))
    else:
        raise StoreUnavailable(f"{store.url}: somebody still writes here; end that, and delete it again")
    if isinstance(store, Bucket):
        store.clear(last)  # before the sweep may be made again
    for key in last:  # workers see a stopped sweep until there is none
        with suppress(NotFound):
            _delete(store, Entry(key, store.read(key)[1], 0.0))


def _delete(store: Store, entry: Entry) -> None:
    with suppress(Conflict):  # it was changed or removed since the listing; the next one tells
        store.delete(entry.key, entry.version)
