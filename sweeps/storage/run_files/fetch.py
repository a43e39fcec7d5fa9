"""Copies of the files of one run folder in another, so that a new attempt can resume from them.

From a bucket they are downloaded as the last manifest describes them. A local folder is copied, not linked: a
program that writes into its files would write into both.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from sweeps.storage.base import Store
from sweeps.storage.run_files.client import Bucket
from sweeps.storage.run_files.download import FolderDownload
from sweeps.storage.run_files.exchange import Deadline, UploadConfig
from sweeps.storage.run_files.scan import scan, unit_of
from sweeps.text.regular_file import NotRegular, copy_regular


def fetch_files(store: Store, prefix: str, into: Path, *, below: str) -> tuple[str, ...]:
    """Copy the files of a run folder whose names begin with `below`.

    Args:
        prefix: key prefix of the run folder.
        below: beginning of the files' names relative to the run folder.

    Returns:
        Names of the files that are in `into` now; empty without a complete upload.

    Raises:
        StoreUnavailable: the bucket is out of reach; some files may have been copied.
        EnvironmentFault, OSError: the folder cannot be written; some files may have been copied.
    """
    if isinstance(store, Bucket):
        return FolderDownload(store, prefix, into, Deadline(UploadConfig()), below=below).run() or ()
    source = store.folder(prefix)
    names = sorted(name for name in scan(source, prefix) if name.startswith(below))
    torn = set[str]()
    for name in names:
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            copy_regular(source / name, into / name)
        except (FileNotFoundError, IsADirectoryError, NotRegular):
            torn.add(unit_of(name))
    for name in names:  # complete units only: an orphaned program may still rotate its checkpoints meanwhile
        if unit_of(name) in torn:
            with contextlib.suppress(FileNotFoundError):
                (into / name).unlink()
    return tuple(name for name in names if unit_of(name) not in torn)
