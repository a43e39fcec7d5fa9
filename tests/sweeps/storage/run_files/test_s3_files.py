"""Run folders in a bucket of S3: parts, logs, names that are not used again, and faults."""

from __future__ import annotations

import os
import re
import time
import uuid
from pathlib import Path

import pytest
from run_folders import download
from s3_server import Doors, Fault

from sweeps.storage.objects.store import ObjectStore
from sweeps.storage.retries import RetryPolicy
from sweeps.storage.run_files import manifest
from sweeps.storage.run_files.exchange import PART_UNIT, Deadline
from sweeps.storage.run_files.mirror import UploadConfig, Uploader
from sweeps.storage.run_files.upload import FolderUpload

PREFIX = "runs/000012/attempt-1"
QUICK = RetryPolicy(total_s=10.0, attempt_s=2.0, first_wait_s=0.02, longest_wait_s=0.1)
PACE = UploadConfig(
    scan_s=0.05,
    growing_s=0.01,
    patience_s=10,
    first_wait_s=0.02,
    longest_wait_s=0.1,
    chunk_bytes=20 * PART_UNIT,
)


@pytest.fixture
def store(s3: Doors) -> ObjectStore:
    return ObjectStore(f"s3://bucket/files/{uuid.uuid4().hex}", endpoint=s3.door("a"), retries=QUICK)


@pytest.fixture
def folder(store: ObjectStore) -> Path:
    return store.folder(PREFIX)


@pytest.fixture
def upload(store: ObjectStore, folder: Path) -> FolderUpload:
    return FolderUpload(store, folder, PREFIX, Deadline(PACE))


def fetched(store: ObjectStore, into: Path) -> dict[str, bytes] | None:
    names = download(store, PREFIX, into, config=PACE)
    return None if names is None else {name: (into / name).read_bytes() for name in names}


def stored(store: ObjectStore) -> set[str]:
    return {entry.key.removeprefix(f"{PREFIX}/") for entry in store.list(f"{PREFIX}/")}


def test_large_file_goes_in_parts(s3, store, folder, upload, tmp_path):
    large = os.urandom(2 * PACE.chunk_bytes + 12345)
    (folder / "model.bin").write_bytes(large)
    upload.round(final=True)
    assert s3.statuses("put").count(200) >= 3 + 1  # the parts and the manifest
    assert fetched(store, tmp_path / "there") == {"model.bin": large}


def test_large_file_needs_no_etag_in_the_last_answer(s3, store, folder, upload, tmp_path):
    s3.names_no_parts_etag = True
    data = os.urandom(50 * PART_UNIT)
    (folder / "model.bin").write_bytes(data)
    upload.round(final=True)
    assert fetched(store, tmp_path / "there") == {"model.bin": data}


def test_parts_that_fail_are_sent_again(s3, store, folder, upload, tmp_path):
    large = os.urandom(2 * PACE.chunk_bytes)
    (folder / "model.bin").write_bytes(large)
    for action in ("lose_request", "lose_response"):
        s3.faults.add(Fault(action=action, operation="put", name="*model.bin"))
    s3.faults.add(Fault(action="status", status=503, operation="put", name="*model.bin"))
    upload.round(final=True)
    assert fetched(store, tmp_path / "there") == {"model.bin": large}


@pytest.mark.parametrize("action", ["lose_request", "lose_response", "status"])
def test_small_files_in_bad_weather_are_complete(s3, store, folder, upload, tmp_path, action):
    for i in range(4):
        (folder / f"{i}.json").write_bytes(b"%d" % i)
    s3.faults.add(Fault(action=action, times=None, chance=0.3))
    upload.round(final=True)
    s3.faults.clear()
    assert fetched(store, tmp_path / "there") == {f"{i}.json": b"%d" % i for i in range(4)}


def test_a_log_grows_under_its_own_name(store, folder, upload, tmp_path):
    log = folder / "log.txt"
    for line in (b"one\n", b"two\n", b"three\n"):
        with log.open("ab") as file:
            file.write(line)
        upload.round(final=True)
        assert store.read(f"{PREFIX}/log.txt")[0] == log.read_bytes()
    assert stored(store) == {"log.txt", "manifest.json"}
    assert fetched(store, tmp_path / "there") == {"log.txt": b"one\ntwo\nthree\n"}


def test_log_grows_where_no_version_in_quotes_is_found(s3, store, folder, upload):
    """Ceph and DigitalOcean's Spaces: the first client of this sweep that replaces anything."""
    s3.refuses_versions = re.compile('"')
    log = folder / "log.txt"
    for text in (b"one\n", b"one\ntwo\n"):
        log.write_bytes(text)
        upload.round(final=True)
        assert store.read(f"{PREFIX}/log.txt")[0] == text


def test_the_name_of_a_deleted_object_is_not_used_again(store, folder, upload, tmp_path):
    """A delete names no version: a late one would remove a new object."""
    seen: list[str] = []
    for data in (b"A", b"B", b"A", b"B", b"A"):
        (folder / "model.bin").write_bytes(data)
        upload.round(final=True)
        objects = {each.object for each in manifest.decode(store.read(f"{PREFIX}/manifest.json")[0]).values()}
        assert stored(store) == {*objects, "manifest.json"}
        assert not objects & set(seen)
        seen += objects
        assert fetched(store, tmp_path / "there") == {"model.bin": data}


def test_later_uploader_sends_nothing_that_is_there(s3, store, folder, upload):
    (folder / "model.bin").write_bytes(b"x" * 1000)
    upload.round(final=True)
    s3.entries.clear()
    FolderUpload(store, folder, PREFIX, Deadline(PACE)).round(final=True)
    assert "put" not in {entry.operation for entry in s3.entries}


def test_an_upload_without_its_manifest_is_ignored(store, folder, upload, tmp_path):
    (folder / "model.bin").write_bytes(b"x")
    upload.round(final=True)
    store.delete(f"{PREFIX}/manifest.json", store.read(f"{PREFIX}/manifest.json")[1])
    assert fetched(store, tmp_path / "there") is None


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_an_object_that_is_not_as_the_manifest_says_is_noticed(store, folder, upload, tmp_path, how, caplog):
    (folder / "model.bin").write_bytes(b"x")
    upload.round(final=True)
    if how == "removed":
        store.discard(f"{PREFIX}/model.bin", "")
    else:
        import obstore

        obstore.put(store.client.store(), store.name(f"{PREFIX}/model.bin"), b"y")
    assert fetched(store, tmp_path / "there") is None
    assert "incomplete upload" in caplog.text


def test_a_deadline_abandons_a_request_that_hangs(s3, store, folder):
    (folder / "model.bin").write_bytes(b"x")
    s3.faults.add(Fault(action="hang", operation="put", times=None))
    uploader = Uploader(store, folder, PREFIX, config=PACE)
    uploader.start()
    start = time.monotonic()
    assert uploader.close(1.0) == ("model.bin",)
    assert time.monotonic() - start < 5


def test_a_file_of_a_run_is_deleted_and_leaves_no_tombstone(store, folder, upload):
    (folder / "model.bin").write_bytes(b"x")
    upload.round(final=True)
    (entry,) = store.list(f"{PREFIX}/model.bin")
    store.delete(entry.key, entry.version)
    import obstore

    names = [item["path"] for item in obstore.list(store.client.store(), store.name(PREFIX)).collect()]
    assert names == [store.name(f"{PREFIX}/manifest.json")]
