"""Renaming of a sweep (`sweep rename`): its folder is renamed; in a bucket, its objects are copied.

In a bucket `renaming.json` names the target until all is done: copy all objects, with manifests
that name the copies' generations; write `sweep.json` there, which makes it a sweep; remove the old ones.
Called again after an interruption, it goes on. Nobody can claim a trial meanwhile: the old sweep is stopped,
and the new one is there once it is complete.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast, get_args

from sweeps.errors import AlreadyExists, DamagedObject, InputError, StoreConflict, StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.search.allocation import ASK_KEY
from sweeps.space.yaml_cursor import NO_FOLDER, is_folder_name
from sweeps.storage.base import NotFound, Store, put
from sweeps.storage.bucket_url import S3
from sweeps.storage.keys import SWEEP_KEY
from sweeps.storage.local import LocalStore
from sweeps.storage.run_files import manifest
from sweeps.storage.run_files.client import Bucket
from sweeps.storage.urls import join, local_path, name_of, open_store, parent
from sweeps.text import json_reader
from sweeps.text.shorten import one_line
from sweeps.trials import amendments, control, packs
from sweeps.trials.amendments import Amendments
from sweeps.upkeep.removal import AT_ONCE, LAST, remove_objects

KEY = "renaming.json"
_LARGEST_COPY = 5 * 2**30  # bytes that S3 copies in one request
_STAYS = (SWEEP_KEY, KEY, control.KEY, ASK_KEY)


def rename(experiment: Experiment, name: str, by: str) -> Experiment:
    """Rename the sweep within its folder of sweeps, and return it at its new place.

    Raises:
        InputError: `name` cannot name a folder, or is in use.
        StoreUnavailable: it was interrupted; the next call goes on.
    """
    if not is_folder_name(name):
        raise InputError(f"{name!r:.120} {NO_FOLDER}")
    store = experiment.store
    if name == name_of(store.url):  # it may be shown by another one, as a copy is
        target = store
    elif isinstance(store, Bucket):
        target = open_store(join(parent(store.url), name))
        _copy(experiment, target, name, by)
    elif isinstance(store, LocalStore):
        target = LocalStore(join(parent(store.url), name))
        _rename_folder(store, target)
        try:
            _show(target, experiment, name, by)
        except BaseException:  # such as a full disk: the name and the folder change together or not at all
            _rename_folder(target, store)
            raise
    else:
        raise InputError(f"{store.url}: this store cannot be renamed")
    _show(target, experiment, name, by)  # also of a rename that was killed in between
    return Experiment.open(target)


def _show(target: Store, experiment: Experiment, name: str, by: str) -> None:
    """Store the new name, so that the sweep in `target` is shown by it."""
    shown = Amendments(target, experiment.written)
    shown.load()
    if shown.space.name != name:
        shown.add({amendments.NAME: name}, by)


def _rename_folder(store: LocalStore, target: LocalStore) -> None:
    old, new = Path(local_path(store.url)), Path(local_path(target.url))
    if new.exists() or new.is_symlink():
        raise _name_in_use(target)
    try:
        old.rename(new)
    except OSError as error:
        raise StoreUnavailable(f"{store.url}: cannot be renamed: {error.strerror or error}") from error


def _name_in_use(target: Store) -> InputError:
    return InputError(
        f"{target.url}: there is something of this name; choose another, or `sweep delete` it first"
    )


# ---- buckets


def _copy(experiment: Experiment, target: Store, name: str, by: str) -> None:
    """Copy the sweep's objects to the target and remove the old ones; go on with an interrupted rename."""
    store = experiment.store
    state, version = _interrupted_state(store, target)
    if state is None:
        if target.list(""):
            raise _name_in_use(target)
        sizes = cast(Bucket, store).sizes("") if store.url.startswith(S3) else {}
        if large := sorted(key for key, size in sizes.items() if size > _LARGEST_COPY):
            raise InputError(
                f"{store.location(large[0])}: S3 copies no file of more than 5 GiB, so this sweep cannot be "
                f"renamed; `sweep copy {store.url} {target.url}`, then `sweep delete` the old one"
            )
        state = control.read(store)
        document = {"schema": 1, "to": target.url, "state": state, "sweep": store.read(SWEEP_KEY)[1]}
        marker = json.dumps(document).encode()
        try:
            put(store, KEY, marker, version)
        except StoreConflict:
            _interrupted_state(store, target)  # raises where it gets another name
            raise InputError(
                f"{store.url}: somebody else renames it at this moment; see `sweep list`"
            ) from None
        control.write(store, "stopped", by)
    sweep = store.read(SWEEP_KEY)[0]
    try:
        there = target.read(SWEEP_KEY)[0]
    except NotFound:
        _copy_objects(store, target)
        if state != "running":
            control.write(target, state, by)
        _show(target, experiment, name, by)
        target.create(SWEEP_KEY, sweep)
    else:  # the copy was complete, and workers may have gone on with it
        if there != sweep:
            raise InputError(f"{target.url}: another sweep is here meanwhile; choose another name")
    remove_objects(store, last=(*LAST, KEY))


def _interrupted_state(store: Store, target: Store) -> tuple[control.State | None, str | None]:
    """Return the state that the sweep had before its interrupted rename, and the version of the note.

    The state is None if no rename was interrupted, the version if there is no note.
    """
    try:
        data, version = store.read(KEY)
        document = json_reader.parse(data)
        to, state, sweep = document["to"], document["state"], document["sweep"]
        if not isinstance(to, str) or state not in get_args(control.State):
            raise ValueError("to is not a text, or state is none of " + ", ".join(get_args(control.State)))
    except NotFound:
        return None, None
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedObject(KEY, str(error), store.location(KEY)) from None
    if sweep != store.read(SWEEP_KEY)[1]:  # left by another sweep that had this name
        return None, version
    if to != target.url:
        raise InputError(
            f"{store.url}: it is being renamed to {name_of(to)}; `sweep rename {name_of(to)}` goes on"
        )
    return cast("control.State", state), version


def _copy_objects(store: Store, target: Store) -> None:
    """Copy all objects, then the manifests, which name the generations of the copies."""
    entries = [
        entry.key
        for entry in store.list("")
        if entry.key not in _STAYS and not entry.key.startswith(packs.PREFIX)
    ]
    manifests = {key for key in entries if key.rpartition("/")[2] == manifest.MANIFEST and "/" in key}
    bucket = cast(Bucket, store)

    def copy(key: str) -> None:
        try:
            bucket.copy(key, target.url)
        except Exception as error:  # whatever gcsfs and obstore raise, after retries of its own
            reason = one_line(error)
            raise StoreUnavailable(
                f"{store.location(key)}: cannot be copied ({reason}); rename it again to go on"
            ) from error

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(copy, (key for key in entries if key not in manifests)))
    versions = {entry.key: entry.version for entry in target.list("")}
    if missing := [key for key in entries if key not in versions and key not in manifests]:
        raise StoreUnavailable(f"{target.location(missing[0])}: it was not copied; rename it again")
    for key in sorted(manifests):
        data, prefix = store.read(key)[0], key.rpartition("/")[0]
        with suppress(ValueError):  # one that cannot be read is copied as it is
            copied = {
                name: replace(stored, generation=versions.get(f"{prefix}/{stored.object}", stored.generation))
                for name, stored in manifest.decode(data).items()
            }
            data = manifest.encode(copied)
        with suppress(AlreadyExists):  # of an interrupted rename: its copies are overwritten now
            target.create(key, data)
            continue
        target.replace(key, data, versions[key])
