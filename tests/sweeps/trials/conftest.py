"""The stores that tests of amendments and actions run over."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from memory_store import MemoryStore

from sweeps.storage.base import Store
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.local import LocalStore


@pytest.fixture(params=["memory", "local", "gcs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Return an empty store of each kind; a file of tests may have a fixture of its own instead."""
    if request.param == "memory":
        return MemoryStore()
    if request.param == "local":
        return LocalStore(tmp_path / "sweep")
    endpoint = request.getfixturevalue("gcs").url
    return GcsStore(f"gs://bucket/trials/{uuid.uuid4().hex}", endpoint=endpoint)
