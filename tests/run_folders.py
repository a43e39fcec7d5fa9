"""Download of a whole run folder, as a person or a later worker would look at it."""

from __future__ import annotations

from pathlib import Path

from sweeps.storage.base import Store
from sweeps.storage.run_files.client import Bucket
from sweeps.storage.run_files.download import FolderDownload
from sweeps.storage.run_files.exchange import Deadline, UploadConfig
from sweeps.storage.run_files.scan import scan


def download(
    store: Store, prefix: str, folder: Path, *, config: UploadConfig | None = None
) -> tuple[str, ...] | None:
    """The names of the files of a run that are in `folder` then; of a local store, in its own folder."""
    if isinstance(store, Bucket):
        return FolderDownload(store, prefix, folder, Deadline(config or UploadConfig())).run()
    return tuple(sorted(scan(folder, prefix))) or None
