"""The client of a bucket's run files."""

from __future__ import annotations

from typing import cast

from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.objects.store import ObjectStore
from sweeps.storage.run_files.client import Bucket, RunFilesClient
from sweeps.storage.run_files.exchange import Deadline
from sweeps.storage.run_files.object_client import ObjectFilesClient


def open_client(store: Bucket, prefix: str, deadline: Deadline) -> RunFilesClient | ObjectFilesClient:
    """Return a client for the objects below `prefix`, for one thread at a time."""
    if isinstance(store, ObjectStore):
        return ObjectFilesClient(store, prefix, deadline)
    return RunFilesClient(cast(GcsStore, store), prefix, deadline)
