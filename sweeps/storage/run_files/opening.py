"""The client of a bucket's run files."""

from __future__ import annotations

from typing import cast

from sweeps.storage.objects.bucket import BucketStore
from sweeps.storage.run_files.client import Bucket, RunFilesClient
from sweeps.storage.run_files.exchange import Deadline


def open_client(store: Bucket, prefix: str, deadline: Deadline) -> RunFilesClient:
    """Return a client for the objects below `prefix`, for one thread at a time."""
    return RunFilesClient(cast(BucketStore, store), prefix, deadline)
