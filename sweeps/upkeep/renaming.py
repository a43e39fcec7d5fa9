"""Renaming of a sweep (`sweep rename`): its folder is renamed; in a bucket, its objects are copied.

In a bucket `renaming.json` names the target until all is done: copy all objects, with manifests
that name the copies' generations; write `sweep.json` there, which makes it a sweep; remove the old ones.
Called again after an interruption, it goes on. Nobody can claim a trial meanwhile: the old sweep is stopped,
and the new one is there once it is complete. What people write meanwhile is copied, too, or stays where it
is: only versions that were copied are removed.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast, get_args

from sweeps.errors import AlreadyExists, DamagedObject, InputError, StoreConflict, StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.search.allocation import ASK_KEY
from sweeps.space.yaml_cursor import NO_FOLDER, is_folder_name
from sweeps.storage.base import Entry, NotFound, Store, put
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
from sweeps.upkeep.removal import AT_ONCE, LAST, remove_objects, require_idle

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


@dataclass(frozen=True)
class _Note:
    """What `renaming.json` says of a rename that was interrupted.

    Args:
        state: of the sweep before that.
        copied: the version of each object that was copied, by key, once all were; None before.
    """

    state: control.State
    copied: Mapping[str, str] | None


def _copy(experiment: Experiment, target: Store, name: str, by: str) -> None:
    """Copy the sweep's objects to the target and remove the old ones; go on with an interrupted rename."""
    store = experiment.store
    note, version = _read_note(store, target)
    if note is None:
        if target.list(""):
            raise _name_in_use(target)
        sizes = cast(Bucket, store).sizes("") if store.url.startswith(S3) else {}
        if large := sorted(key for key, size in sizes.items() if size > _LARGEST_COPY):
            raise InputError(
                f"{store.location(large[0])}: S3 copies no file of more than 5 GiB, so this sweep cannot be "
                f"renamed; `sweep copy {store.url} {target.url}`, then `sweep delete` the old one"
            )
        note = _Note(control.read(store), None)
        version = _put_note(store, target, note, version)
    if control.read(store) != "stopped":  # somebody may have resumed it since an interruption
        control.write(store, "stopped", by)
    require_idle(experiment, "renamed")  # a worker that saw no stop has a trial or the lease by now
    sweep = store.read(SWEEP_KEY)[0]
    try:
        there = target.read(SWEEP_KEY)[0]
    except NotFound:
        if note.state != "running":
            control.write(target, note.state, by)
        copied: dict[str, str] = {}
        while True:
            has_copied = _copy_objects(store, target, copied)
            _show(target, experiment, name, by)  # again: an amendment of this number may have been copied
            if not has_copied:
                break
            require_idle(experiment, "renamed")  # a claim may have been on its way
        note = replace(note, copied=copied)
        _put_note(store, target, note, version)
        target.create(SWEEP_KEY, sweep)
    else:  # the copy was complete, and workers may have gone on with it
        if there != sweep:
            raise InputError(f"{target.url}: another sweep is here meanwhile; choose another name")

    def check(entries: Sequence[Entry]) -> None:
        """Raise `InputError` if an object was written after it was copied."""
        if note.copied is None:  # by an earlier version
            return
        for key, present, _ in entries:
            if _is_copied(key) and note.copied.get(key) != present:
                is_file = key.startswith(("runs/", "stages/"))  # a worker's, which may have no other copy
                remedy = "fetch it, if you need it" if is_file else "do there what was done here"
                raise InputError(
                    f"{store.location(key)}: it was written after it had been copied to {target.url}, where "
                    f"the sweep is now; {remedy}, then `sweep delete --storage {shlex.quote(store.url)}`"
                )

    remove_objects(store, last=(*LAST, KEY), check=check)


def _read_note(store: Store, target: Store) -> tuple[_Note | None, str | None]:
    """Return the note of an interrupted rename, if it is about this sweep, and its version, if it is there.

    Raises:
        InputError: the sweep is being renamed to something else.
    """
    try:
        data, version = store.read(KEY)
        document = json_reader.parse(data)
        to, state, sweep = document["to"], document["state"], document["sweep"]
        copied = document.get("copied")
        if not isinstance(to, str) or state not in get_args(control.State):
            raise ValueError("to is not a text, or state is none of " + ", ".join(get_args(control.State)))
        if copied is not None and not isinstance(copied, dict):
            raise ValueError("copied has no versions by key")
    except NotFound:
        return None, None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedObject(KEY, str(error), store.location(KEY)) from None
    if sweep != store.read(SWEEP_KEY)[1]:  # left by another sweep that had this name
        return None, version
    if to != target.url:
        raise InputError(
            f"{store.url}: it is being renamed to {name_of(to)}; `sweep rename {name_of(to)}` goes on"
        )
    return _Note(state, copied), version


def _put_note(store: Store, target: Store, note: _Note, version: str | None) -> str:
    """Write the note over this version and return the new one. Raises `InputError` if somebody was faster."""
    document = {"schema": 1, "to": target.url, "state": note.state, "sweep": store.read(SWEEP_KEY)[1]}
    if note.copied is not None:
        document["copied"] = note.copied
    try:
        return put(store, KEY, json.dumps(document).encode(), version)
    except StoreConflict:
        _read_note(store, target)  # raises where it gets another name
        raise InputError(f"{store.url}: somebody else renames it at this moment; see `sweep list`") from None


def _is_copied(key: str) -> bool:
    return key not in _STAYS and not key.startswith(packs.PREFIX)


def _copy_objects(store: Store, target: Store, copied: dict[str, str]) -> bool:
    """Copy all objects, then the manifests, which name the generations of the copies.

    Args:
        copied: versions that were copied before, by key, which are left out; those of now are added.

    Returns:
        Whether there was anything to copy.
    """
    listed = {entry.key: entry.version for entry in store.list("") if _is_copied(entry.key)}
    entries = [key for key, version in listed.items() if copied.get(key) != version]
    manifests = {
        key
        for key in listed
        if key.rpartition("/")[2] == manifest.MANIFEST and "/" in key
        if key not in copied or any(each.startswith(key.removesuffix(manifest.MANIFEST)) for each in entries)
    }
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
            files = {
                name: replace(stored, generation=versions.get(f"{prefix}/{stored.object}", stored.generation))
                for name, stored in manifest.decode(data).items()
            }
            data = manifest.encode(files)  # of nobody who uploads any more
        with suppress(AlreadyExists):  # of an interrupted rename: its copies are overwritten now
            target.create(key, data)
            continue
        target.replace(key, data, versions[key])
    copied.update(listed)
    return bool(entries)
