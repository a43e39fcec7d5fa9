"""Buckets of other implementations leave out what is zero, or spell it differently: nothing is lost for that."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import get_args

import pytest
from fake_gcs import FakeGcs
from fake_gcs.api import Quirk
from run_folders import download

from sweeps.errors import StoreUnavailable
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.retries import RetryPolicy
from sweeps.storage.run_files.exchange import PART_UNIT
from sweeps.storage.run_files.mirror import UploadConfig, Uploader
from sweeps.trials.record import Trial
from sweeps.upkeep.runs import half_uploads, run_folders

PREFIX = "runs/000012/attempt-1"
QUICK = RetryPolicy(total_s=3.0, attempt_s=0.5, first_wait_s=0.02, longest_wait_s=0.1)
PACE = UploadConfig(scan_s=0.05, growing_s=0.05, patience_s=3, first_wait_s=0.02, longest_wait_s=0.1)
FILES = {"result.json": b"{}", "empty.txt": b"", "log.txt": b"words", "checkpoints/1/empty": b""}
HARMLESS = tuple(quirk for quirk in get_args(Quirk) if quirk != "no_generation")
ACCENTS = [*((quirk,) for quirk in HARMLESS), HARMLESS]


@pytest.fixture
def store(gcs: FakeGcs) -> GcsStore:
    return GcsStore(f"gs://bucket/others/{uuid.uuid4().hex}", endpoint=gcs.url, retries=QUICK)


def upload(store: GcsStore, files: dict[str, bytes]) -> tuple[str, ...]:
    folder = store.folder(PREFIX)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return Uploader(store, folder, PREFIX, config=PACE).close(20)


@pytest.mark.parametrize("accent", ACCENTS, ids="+".join)
def test_a_run_folder_goes_into_such_a_bucket_and_comes_back(gcs, store, tmp_path: Path, accent):
    gcs.speak(*accent)
    assert upload(store, FILES) == ()
    assert upload(store, FILES | {"log.txt": b"words and more"}) == ()  # goes by what the listing says
    assert download(store, PREFIX, tmp_path / "there", config=PACE) == tuple(sorted(FILES))
    there = {name: (tmp_path / "there" / name).read_bytes() for name in FILES}
    assert there == FILES | {"log.txt": b"words and more"}


@pytest.mark.parametrize("accent", ACCENTS, ids="+".join)
def test_files_in_parts_go_into_such_a_bucket(gcs, store, tmp_path: Path, accent):
    gcs.speak(*accent)
    config = UploadConfig(scan_s=0.05, patience_s=3, first_wait_s=0.02, chunk_bytes=PART_UNIT)
    large = bytes(range(256)) * (PART_UNIT // 128)
    folder = store.folder(PREFIX)
    (folder / "large.bin").write_bytes(large)
    assert Uploader(store, folder, PREFIX, config=config).close(20) == ()
    assert download(store, PREFIX, tmp_path / "there", config=config) == ("large.bin",)
    assert (tmp_path / "there" / "large.bin").read_bytes() == large


@pytest.mark.parametrize("accent", ACCENTS, ids="+".join)
def test_records_are_written_listed_and_swapped_in_such_a_bucket(gcs, store, accent):
    gcs.speak(*accent)
    assert store.list("trials/") == []
    first = store.create("trials/000000.json", b"one")
    second = store.replace("trials/000000.json", b"two", first)
    (entry,) = store.list("trials/")
    assert (entry.key, entry.version) == ("trials/000000.json", second)
    assert abs(entry.updated - time.time()) < 60
    assert store.read("trials/000000.json") == (b"two", second)
    store.delete("trials/000000.json", second)
    assert store.list("trials/") == []


def test_object_of_unknown_age_is_no_old_upload(gcs, store):
    gcs.speak("no_times")
    store.create(f"{PREFIX}/half.bin", b"x")
    done = Trial(trial=12, status="completed", parameters={}, generator="sobol")
    found = run_folders(store.list("runs/"))
    assert half_uploads(store, found, [done], store.now()) == []


def test_a_bucket_without_generations_is_refused_in_one_line(gcs, store):
    store.create("trials/000000.json", b"one")
    gcs.speak("no_generation")
    for read in (lambda: store.list("trials/"), lambda: store.read("trials/000000.json")):
        with pytest.raises(
            StoreUnavailable, match=r"000000\.json: .*[Gg]eneration, .* STORAGE_EMULATOR_HOST"
        ):
            read()
