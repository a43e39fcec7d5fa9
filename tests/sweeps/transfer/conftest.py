"""Stores of each kind, and transfers that wait for fractions of a second."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_store import MemoryStore
from transfers import bucket, s3_bucket

from sweeps.storage.base import Store
from sweeps.storage.local import LocalStore
from sweeps.storage.run_files.exchange import UploadConfig
from sweeps.transfer import fetching, publishing


@pytest.fixture
def impatient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    pace = {"scan_s": 0.05, "growing_s": 0.05, "first_wait_s": 0.02, "longest_wait_s": 0.1}
    # A real server stands still for seconds where the machine is busy.
    callspec = getattr(request.node, "callspec", None)
    pace["patience_s"] = 10.0 if callspec is not None and callspec.params.get("store") == "s3" else 0.3
    for module in (fetching, publishing):
        monkeypatch.setattr(module, "UploadConfig", lambda **given: UploadConfig(**pace))
    monkeypatch.setattr(publishing, "POLL_S", 0.02)
    monkeypatch.setattr(fetching, "_rates", {})
    monkeypatch.setattr(fetching, "_LEAST_PATIENCE_S", 60.0)  # of a whole fetch, as stages take no time here


@pytest.fixture(params=["memory", "folder", "bucket", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        return MemoryStore()
    if request.param == "folder":
        return LocalStore(tmp_path / "store")
    return (
        s3_bucket(request.getfixturevalue("s3"))
        if request.param == "s3"
        else bucket(request.getfixturevalue("gcs"))
    )
