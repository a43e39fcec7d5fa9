"""Run folders of attempts in the store, `runs/000012/attempt-1/…`, and leftovers of interrupted uploads.

Runs hold checkpoints of gigabytes: their size comes from the file system, without reading them.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sweeps.errors import Conflict, StoreUnavailable
from sweeps.storage.base import Entry, Store
from sweeps.storage.local import LocalStore
from sweeps.storage.run_files import manifest
from sweeps.storage.run_files.client import Bucket
from sweeps.storage.run_files.manifest import MANIFEST
from sweeps.storage.urls import local_path
from sweeps.trials.record import Trial

RUNS = "runs/"

_ATTEMPT = re.compile(rf"({RUNS}(\d{{6}})/attempt-(\d+))/.+")
_UPLOAD_AGE_S = 86400.0
"""The uploader of an object this old is done: the files of one checkpoint do not take a day."""


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """Objects of an attempt, under `runs/000012/attempt-1/`, or some of them."""

    index: int
    attempt: int
    prefix: str
    entries: tuple[Entry, ...]


def run_folders(entries: Iterable[Entry]) -> list[RunFolder]:
    """Group the entries of attempts by attempt; others are left out."""
    folders: dict[str, list[Entry]] = {}
    names: dict[str, tuple[int, int]] = {}
    for entry in entries:
        if match := _ATTEMPT.fullmatch(entry.key):
            folders.setdefault(match[1], []).append(entry)
            names[match[1]] = int(match[2]), int(match[3])
    return [
        RunFolder(index=names[prefix][0], attempt=names[prefix][1], prefix=prefix, entries=tuple(inside))
        for prefix, inside in folders.items()
    ]


def half_uploads(
    store: Store, runs: Sequence[RunFolder], trials: Iterable[Trial], now: float
) -> list[RunFolder]:
    """Return the leftovers of interrupted uploads: old objects of runs in a bucket that no manifest names.

    Args:
        store: of the sweep; a local folder has no uploads.
        trials: all trials; runs of running ones are left out.
    """
    if not isinstance(store, Bucket):
        return []
    running = {(record.trial, record.attempt) for record in trials if record.status == "running"}
    idle = [run for run in runs if (run.index, run.attempt) not in running]
    manifests = store.read_many([f"{run.prefix}/{MANIFEST}" for run in idle])
    found: list[RunFolder] = []
    for run, content in zip(idle, manifests, strict=True):
        named = {f"{run.prefix}/{MANIFEST}"}
        if content is not None:
            try:
                files = manifest.decode(content[0])
            except ValueError:
                continue  # perhaps of a later version
            named |= {f"{run.prefix}/{stored.object}" for stored in files.values()}
        old = [each for each in run.entries if each.key not in named and now - each.updated > _UPLOAD_AGE_S]
        if old:
            found.append(replace(run, entries=tuple(old)))
    return found


def local_root(store: Store) -> Path | None:
    """Return the sweep's folder, or None if the store is a bucket."""
    return Path(local_path(store.url)) if isinstance(store, LocalStore) else None


def size(store: Store, run: RunFolder) -> int | None:
    """Return the size of the run's entries in bytes; None if the store does not know it."""
    root = local_root(store)
    if root is not None:
        return folder_size(root / run.prefix)
    if not isinstance(store, Bucket):
        return None
    try:
        sizes = store.sizes(f"{run.prefix}/")
    except (OSError, StoreUnavailable):
        return None
    return sum(sizes.get(entry.key, 0) for entry in run.entries)


def remove(store: Store, run: RunFolder) -> None:
    """Remove the run's files. Raises `StoreUnavailable`, or `Conflict` if somebody still writes there."""
    root = local_root(store)
    if root is not None:
        remove_path(root / run.prefix)
        return
    # The manifest first: the rest of an interrupted removal must not look like a complete run.
    for entry in sorted(run.entries, key=lambda entry: not entry.key.endswith(f"/{MANIFEST}")):
        try:
            store.delete(entry.key, entry.version)
        except Conflict:
            if any(present.key == entry.key for present in store.list(entry.key)):
                raise


def folder_size(folder: Path) -> int:
    """Return the bytes of all files in a folder, without following links."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # removed in the meantime
                total += os.lstat(os.path.join(path, name)).st_size  # noqa: PTH118 - many small files
    return total


def remove_path(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, if it exists. Raises `StoreUnavailable`."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreUnavailable(f"{path}: cannot be removed: {error.strerror or error}") from error
