"""Files of one run folder, as far as they are whole in the store, into another. `resuming` calls this.

Out of a bucket they are downloaded as the last manifest has them. In a folder they are copied, not linked: a
program that writes into its files would write into both.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from sweeps.storage.base import Store
from sweeps.storage.run_files.client import Bucket
from sweeps.storage.run_files.download import FolderDownload
from sweeps.storage.run_files.exchange import Deadline, UploadConfig
from sweeps.storage.run_files.scan import scan, unit_of


def bring(
    store: Store, prefix: str, into: Path, *, below: str, config: UploadConfig | None = None
) -> tuple[str, ...]:
    """Put the files of the run folder `prefix` whose names begin with `below` into the folder `into`.

    Returns:
        The names of the files that are there now; none where there is no whole upload of any.

    Raises:
        StoreUnavailable: the bucket is out of reach; some files may be there.
        EnvironmentFault, OSError: the folder cannot be written; some files may be there.
    """
    if isinstance(store, Bucket):
        return (
            FolderDownload(store, prefix, into, Deadline(config or UploadConfig()), below=below).run() or ()
        )
    source = store.folder(prefix)
    return _copy(source, sorted(name for name in scan(source, prefix) if name.startswith(below)), into)


def _copy(source: Path, names: list[str], into: Path) -> tuple[str, ...]:
    """Copies what stays there: a program that is cut off, but alive, may rotate its checkpoints meanwhile."""
    torn = set[str]()
    for name in names:
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(source / name, into / name)
        except FileNotFoundError:
            torn.add(unit_of(name))
    for name in names:
        if unit_of(name) in torn:  # of files that belong together, all or none
            with contextlib.suppress(FileNotFoundError):
                (into / name).unlink()
    return tuple(name for name in names if unit_of(name) not in torn)
