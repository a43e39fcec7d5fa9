"""Contract of uploads and downloads of run folders, over local, GCS and S3 stores."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from memory_store import MemoryStore
from run_folders import download

from sweeps.storage.base import NotFound, Store
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.local import LocalStore
from sweeps.storage.objects.store import ObjectStore
from sweeps.storage.run_files.mirror import UploadConfig, Uploader

PREFIX = "runs/000012/attempt-1"
PACE = UploadConfig(scan_s=0.05, growing_s=0.05, patience_s=3, first_wait_s=0.02, longest_wait_s=0.1)

# Two views of one sweep: of the worker that uploads, and of the one that takes over.
BACKENDS: dict[str, Callable[[Path, str], tuple[Store, Store]]] = {
    "memory": lambda folder, endpoint: (MemoryStore(),) * 2,
    "local": lambda folder, endpoint: (LocalStore(folder / "store"), LocalStore(folder / "store")),
    "gcs": lambda folder, endpoint: _gcs_pair(endpoint),
    "s3": lambda folder, endpoint: _pair("s3", endpoint),
    "az": lambda folder, endpoint: _pair("az", endpoint),
}


def _gcs_pair(endpoint: str) -> tuple[Store, Store]:
    url = f"gs://bucket/bulk/{uuid.uuid4().hex}"
    return GcsStore(url, endpoint=endpoint), GcsStore(url, endpoint=endpoint)


def _pair(scheme: str, endpoint: str) -> tuple[Store, Store]:
    url = f"{scheme}://bucket/bulk/{uuid.uuid4().hex}"
    return ObjectStore(url, endpoint=endpoint), ObjectStore(url, endpoint=endpoint)


@pytest.fixture(params=BACKENDS)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, Store]:
    endpoint = request.getfixturevalue("gcs").url if request.param == "gcs" else ""
    if request.param == "az":
        endpoint = request.getfixturevalue("azure")
    if request.param == "s3":
        endpoint = request.getfixturevalue("s3").door("front")
    return BACKENDS[request.param](tmp_path, endpoint)


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def upload(store: Store, files: dict[str, bytes]) -> tuple[str, ...]:
    folder = store.folder(PREFIX)
    write(folder, files)
    uploader = Uploader(store, folder, PREFIX, config=PACE)
    uploader.start()
    return uploader.close(20)


def fetch(store: Store) -> dict[str, bytes] | None:
    folder = store.folder(PREFIX)
    names = download(store, PREFIX, folder, config=PACE)
    return None if names is None else {name: (folder / name).read_bytes() for name in names}


class TestBulkContract:
    FILES = {  # noqa: RUF012 - nobody writes to it
        "result.json": b"{}",
        "metrics.jsonl": b'{"step": 1}\n',
        "empty": b"",
        "checkpoints/step-10/model.safetensors": bytes(range(256)) * 40,
        "checkpoints/step-10/a name with % and # and ü": b"x",
    }

    def test_what_one_worker_uploaded_another_fetches_byte_for_byte(self, stores):
        assert upload(stores[0], self.FILES) == ()
        assert fetch(stores[1]) == self.FILES

    def test_a_part_of_a_file_is_read_from_either_end(self, stores):
        store, data = stores[1], bytes(range(256)) * 40
        for name, content in {"log.txt": data, "empty": b""}.items():
            if isinstance(store, MemoryStore):  # its run folders are on the disk, not among its objects
                store.create(f"{PREFIX}/{name}", content)
            else:
                upload(stores[0], {name: content})
        key = f"{PREFIX}/log.txt"
        for start in (
            0,
            1,
            255,
            len(data) - 3,
            len(data),
            len(data) + 5,
            -1,
            -700,
            -len(data),
            -2 * len(data),
            -(10**18),
        ):
            begin = start if start >= 0 else max(0, len(data) + start)
            for most in (1, 700, 2 * len(data), 10**18):
                part = store.read_part(key, start, most)
                assert (part.data, part.size) == (data[begin : begin + most], len(data))
        assert part.version == next(entry.version for entry in store.list(key))
        for start in (0, 3, -3):
            assert store.read_part(f"{PREFIX}/empty", start, 10)[:2] == (b"", 0)
        with pytest.raises(NotFound, match=r"nothing\.txt"):
            store.read_part(f"{PREFIX}/nothing.txt", -3, 10)

    def test_fetching_twice_changes_nothing(self, stores):
        upload(stores[0], self.FILES)
        assert fetch(stores[1]) == fetch(stores[1]) == self.FILES

    def test_where_nothing_was_uploaded_there_is_nothing_to_fetch(self, stores):
        assert fetch(stores[1]) is None

    def test_drafts_stay_behind_and_other_hidden_files_do_not(self, stores):
        drafts = {".a.tmp": b"x", "a.tmp": b"x", ".incoming/a": b"x", "checkpoints/.step-20/model": b"x"}
        kept = self.FILES | {".hydra/config.yaml": b"lr: 1"}
        upload(stores[0], kept | drafts)
        assert fetch(stores[1]) == kept

    def test_a_later_uploader_of_the_same_folder_goes_on(self, stores):
        upload(stores[0], self.FILES)
        assert upload(stores[0], {"result.json": b'{"later": 1}'}) == ()
        assert fetch(stores[1]) == self.FILES | {"result.json": b'{"later": 1}'}

    def test_closing_unstarted_uploads_and_twice_is_harmless(self, stores):
        folder = stores[0].folder(PREFIX)
        write(folder, self.FILES)
        uploader = Uploader(stores[0], folder, PREFIX, config=PACE)
        assert uploader.close(20) == uploader.close(20) == ()
        assert fetch(stores[1]) == self.FILES

    def test_an_empty_folder_is_uploaded_as_nothing(self, stores):
        assert upload(stores[0], {}) == ()
        assert fetch(stores[1]) is None
