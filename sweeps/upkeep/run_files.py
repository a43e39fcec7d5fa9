"""Files of one attempt's run: their size and removal, in a folder or in a bucket.

Runs hold checkpoints of gigabytes: their size comes from the file system, without reading them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from sweeps.errors import Conflict, StoreUnavailable
from sweeps.storage.base import Store
from sweeps.storage.run_files.client import Bucket
from sweeps.storage.run_files.manifest import MANIFEST
from sweeps.upkeep.inventory import local_root
from sweeps.upkeep.runs import RunFolder


def size(store: Store, run: RunFolder) -> int | None:
    """Return the size of the run's entries in bytes; None if the store does not know it."""
    root = local_root(store)
    if root is not None:
        return _folder_size(root / run.prefix)
    if not isinstance(store, Bucket):
        return None
    root_url = store.location("").removeprefix("gs://")
    try:
        found = store.filesystem().find(f"{root_url}{run.prefix}/", detail=True)
    except OSError:
        return None
    sizes = {name.removeprefix(root_url): int(about["size"]) for name, about in found.items()}
    return sum(sizes.get(entry.key, 0) for entry in run.entries)


def remove(store: Store, run: RunFolder) -> None:
    """Remove the run's files. Raises `StoreUnavailable`, or `Conflict` if somebody still writes there."""
    root = local_root(store)
    if root is not None:
        _remove_folder(root / run.prefix)
        return
    # The manifest first: the rest of an interrupted removal must not look like a complete run.
    for entry in sorted(run.entries, key=lambda entry: not entry.key.endswith(f"/{MANIFEST}")):
        try:
            store.delete(entry.key, entry.version)
        except Conflict:
            if any(present.key == entry.key for present in store.list(entry.key)):
                raise


def _folder_size(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(path) / name).lstat().st_size
            except OSError:
                continue  # removed in the meantime
    return total


def _remove_folder(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreUnavailable(f"{folder}: cannot be removed: {error.strerror or error}") from error
