"""Snapshots in a store: one publisher of many is first, and nothing is fetched that is not as it was published."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fake_gcs import FakeGcs, Fault
from memory_store import MemoryStore

from sweeps.errors import EnvironmentFault, StoreUnavailable
from sweeps.storage.base import Store
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.local import LocalStore
from sweeps.storage.objects.store import ObjectStore
from sweeps.storage.retries import RetryPolicy
from sweeps.storage.run_files.client import Changed
from sweeps.storage.run_files.exchange import Deadline, OutOfTime, UploadConfig
from sweeps.transfer import copying
from sweeps.transfer.copying import Damaged, Published, Unfit

PREFIX = f"stages/{'ab' * 32}"
MANIFEST = f"{PREFIX}/manifest.json"
FILES = {"weights.bin": "w" * 3000, "more/manifest.json": "{}", "stage.json": '{"schema": 1}'}
QUICK = RetryPolicy(total_s=1.0, attempt_s=0.5, first_wait_s=0.02, longest_wait_s=0.1)
PACE = UploadConfig(patience_s=0.3, first_wait_s=0.02, longest_wait_s=0.1)
OF_A_SERVER = replace(PACE, patience_s=10.0)
"""A real server stands still for seconds where the machine is busy."""


@pytest.fixture(params=["memory", "folder", "bucket", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        return MemoryStore()
    if request.param == "folder":
        return LocalStore(tmp_path / "store")
    if request.param == "s3":
        door = request.getfixturevalue("s3").door("a")
        return ObjectStore(f"s3://bucket/snapshots/{uuid.uuid4().hex}", endpoint=door, retries=QUICK)
    gcs = request.getfixturevalue("gcs")
    return GcsStore(f"gs://bucket/snapshots/{uuid.uuid4().hex}", endpoint=gcs.url, retries=QUICK)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return filled(tmp_path / "ended", FILES)


def filled(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def there(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}


def publish(store: Store, folder: Path, by: str = "000012-1", **options) -> Published | None:
    options = {"link": False, "deadline": Deadline(_pace(store))} | options
    return copying.publish(store, PREFIX, folder, by, **options)


def fetch(store: Store, into: Path, *, link: bool = False) -> dict[str, str]:
    found = copying.published(store, PREFIX)
    assert found is not None
    into.mkdir()
    copying.fetch(store, PREFIX, found, into, link=link, deadline=Deadline(_pace(store)))
    return there(into)


def _pace(store: Store) -> UploadConfig:
    return OF_A_SERVER if isinstance(store, ObjectStore) else PACE


def left_behind(store: Store, by: str) -> list[str]:
    """Return the files of a publisher that are stored."""
    if store.is_remote:
        return [entry.key for entry in store.list(f"{PREFIX}/{by}/")]
    return sorted(there(store.folder(f"{PREFIX}/{by}")))


# ---- publishing


def test_what_was_published_is_fetched(store, folder, tmp_path) -> None:
    assert copying.published(store, PREFIX) is None
    first = publish(store, folder)
    assert (first.by, first.size) == ("000012-1", sum(map(len, FILES.values())))
    assert copying.published(store, PREFIX) == first
    assert fetch(store, tmp_path / "fetched") == FILES


def test_who_comes_second_stores_nothing(store, folder, tmp_path) -> None:
    first = publish(store, folder)
    other = filled(tmp_path / "other", {"weights.bin": "other bytes"})
    assert publish(store, other, "000013-1") == first
    assert left_behind(store, "000013-1") == []
    assert fetch(store, tmp_path / "fetched") == FILES


def test_one_of_two_publishers_wins(store, folder, tmp_path, monkeypatch) -> None:
    other = filled(tmp_path / "other", {"weights.bin": "other bytes"})
    create = store.create

    def create_late(key: str, data: bytes) -> str:
        monkeypatch.setattr(store, "create", create)
        assert publish(store, other, "000013-1").by == "000013-1"
        return create(key, data)

    monkeypatch.setattr(store, "create", create_late)
    assert publish(store, folder).by == "000013-1"
    assert left_behind(store, "000012-1") == []
    assert fetch(store, tmp_path / "fetched") == {"weights.bin": "other bytes"}


def test_the_trainers_files_are_linked_and_others_copied(folder, tmp_path) -> None:
    for link in (True, False):
        store = LocalStore(tmp_path / f"store-{link}")
        publish(store, folder, link=link)
        fetch(store, tmp_path / f"fetched-{link}", link=link)
        stored = store.folder(f"{PREFIX}/000012-1") / "weights.bin"
        for path in (folder, tmp_path / f"fetched-{link}"):
            assert (path / "weights.bin").samefile(stored) == link


def test_a_file_system_without_links_gets_copies(folder, tmp_path, monkeypatch) -> None:
    def refuse(*arguments) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    store = LocalStore(tmp_path / "store")
    publish(store, folder, link=True)
    assert fetch(store, tmp_path / "fetched", link=True) == FILES


# ---- folders that are not published


def a_draft(folder: Path) -> None:
    (folder / "weights.tmp").write_text("x")


def a_link_to_outside(folder: Path) -> None:
    (folder / "latest").symlink_to(folder.parent)


def a_dangling_link(folder: Path) -> None:
    (folder / "latest").symlink_to("nowhere")


def a_pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def too_long_a_name(folder: Path) -> None:
    (folder / ("n" * 200)).write_text("x")


def nothing_at_all(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


@pytest.mark.parametrize(
    "spoil",
    [
        a_draft, a_link_to_outside, a_dangling_link, a_pipe, too_long_a_name, nothing_at_all
    ],
)  # fmt: skip
def test_folder_is_published_whole_or_not_at_all(folder, tmp_path, spoil) -> None:
    spoil(folder)
    store = LocalStore(tmp_path / "store")
    with pytest.raises(Unfit, match=r"cannot be published|it has no files"):
        publish(store, folder)
    assert copying.published(store, PREFIX) is None


def test_longest_name_is_published(folder, tmp_path) -> None:
    """A trial's tenth attempt has a longer key, so the page promises less than what fits."""
    page = Path(__file__).parents[3] / "docs" / "explanation" / "sharing.md"
    stated = re.search(r"names over (\d+) bytes", page.read_text(encoding="utf-8"))
    assert stated is not None
    for size, by, fits in ((127, "000012-1", True), (128, "000012-1", False), (stated[1], "000012-10", True)):
        source = tmp_path / f"{size}"
        source.mkdir()
        filled(source, {"checkpoint/" + "n" * (int(size) - len("checkpoint/")): "x"})
        store = LocalStore(tmp_path / f"store-{size}")
        if fits:
            assert publish(store, source, by) is not None
            continue
        with pytest.raises(Unfit, match="its name is too long"):
            publish(store, source, by)


def test_a_link_within_the_folder_is_published_as_a_file(folder, tmp_path) -> None:
    (folder / "latest").symlink_to("weights.bin")
    store = LocalStore(tmp_path / "store")
    publish(store, folder, link=True)
    assert fetch(store, tmp_path / "fetched") == FILES | {"latest": FILES["weights.bin"]}


def test_a_folder_that_is_written_meanwhile_is_not_published(store, folder, monkeypatch) -> None:
    """A program that writes into a stage that it has called finished."""
    original = copying.scan
    calls = []

    def scan(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            (folder / "weights.bin").write_text("v" * 3000)
            os.utime(folder / "weights.bin", ns=(1, 1))
        return original(*arguments)

    monkeypatch.setattr(copying, "scan", scan)
    with pytest.raises(Changed):
        publish(store, folder)
    assert copying.published(store, PREFIX) is None
    assert left_behind(store, "000012-1") == []


def test_a_full_disk_leaves_nothing(folder, tmp_path, monkeypatch) -> None:
    copy, store = copying.copy_regular, LocalStore(tmp_path / "store")

    def copy_until_full(source: Path, target: Path) -> None:
        copy(source, target)
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    monkeypatch.setattr(copying, "copy_regular", copy_until_full)
    with pytest.raises(OSError, match="No space left"):
        publish(store, folder)
    assert left_behind(store, "000012-1") == []


def test_nothing_is_published_after_the_deadline(store, folder) -> None:
    over = Deadline(PACE)
    over.set(time.monotonic())
    with pytest.raises(OutOfTime):
        publish(store, folder, deadline=over)
    assert copying.published(store, PREFIX) is None


@pytest.mark.parametrize("refused", ["*weights.bin", "*manifest.json"])
def test_what_a_bucket_refused_is_published_by_the_next_call(gcs: FakeGcs, folder, tmp_path, refused) -> None:
    store = GcsStore(f"gs://bucket/snapshots/{uuid.uuid4().hex}", endpoint=gcs.url, retries=QUICK)
    fault = gcs.faults.add(Fault(action="status", operation="insert", name=refused, status=503, times=None))
    with pytest.raises(StoreUnavailable):
        publish(store, folder)
    assert copying.published(store, PREFIX) is None
    gcs.faults.remove(fault)
    assert publish(store, folder).by == "000012-1"
    assert fetch(store, tmp_path / "fetched") == FILES


# ---- damage


class Stored:
    """The stored files of a snapshot, to be damaged."""

    def __init__(self, store: Store, gcs: FakeGcs | None) -> None:
        self.store, self._gcs = store, gcs

    def write(self, data: bytes) -> None:
        """Replace the weights."""
        if not self.store.is_remote:
            (self.store.folder(PREFIX) / "000012-1/weights.bin").write_bytes(data)
        else:
            version = {e.key: e.version for e in self.store.list(PREFIX)}[f"{PREFIX}/000012-1/weights.bin"]
            self.store.replace(f"{PREFIX}/000012-1/weights.bin", data, version)

    def remove(self) -> None:
        if not self.store.is_remote:
            (self.store.folder(PREFIX) / "000012-1/weights.bin").unlink()
        elif isinstance(self.store, ObjectStore):
            self.store.discard(f"{PREFIX}/000012-1/weights.bin", "")
        else:
            name = f"{self.store.url.removeprefix('gs://bucket/')}/{PREFIX}/000012-1/weights.bin"
            self._gcs.objects.delete("bucket", name, {})

    def rewrite(self, change: Callable[[dict], object]) -> None:
        """Change the manifest."""
        data, version = self.store.read(MANIFEST)
        document = json.loads(data)
        change(document)
        time.sleep(self.store.write_interval_s)
        self.store.replace(MANIFEST, json.dumps(document).encode(), version)


@pytest.fixture
def stored(request: pytest.FixtureRequest, store: Store, folder: Path) -> Stored:
    publish(store, folder)
    return Stored(store, request.getfixturevalue("gcs") if isinstance(store, GcsStore) else None)


def weights(document: dict) -> dict:
    return document["files"]["weights.bin"]


DAMAGE: dict[str, Callable[[Stored], object]] = {
    "a file is missing": lambda s: s.remove(),
    "a file is cut off": lambda s: s.write(b"w" * 2999),
    "a file has more bytes": lambda s: s.write(b"w" * 3001),
    "a file is empty": lambda s: s.write(b""),
    "a bit has flipped": lambda s: s.write(b"w" * 1500 + b"v" + b"w" * 1499),
    "the manifest lies about a size": lambda s: s.rewrite(lambda d: weights(d).update(size=2999)),
    "the manifest lies about a checksum": lambda s: s.rewrite(lambda d: weights(d).update(sha256="0" * 64)),
    "the manifest names another object": lambda s: s.rewrite(
        lambda d: weights(d).update(object="000012-1/x")
    ),
    "the manifest leads out": lambda s: s.rewrite(lambda d: weights(d).update(object="../../sweep.json")),
    "the manifest has another schema": lambda s: s.rewrite(lambda d: d.update(schema=2)),
    "the manifest names no files": lambda s: s.rewrite(lambda d: d.update(files={})),
}


IN_A_BUCKET = {"a file is missing", "a bit has flipped", "the manifest lies about a checksum"}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_checkpoint_is_replaced(store, folder, tmp_path, stored, name) -> None:
    if store.is_remote and name not in IN_A_BUCKET:
        pytest.skip("the download has tests of its own, and a bucket takes one change of a name in a second")
    DAMAGE[name](stored)
    found = copying.published(store, PREFIX)
    with pytest.raises(EnvironmentFault):
        fetch(store, tmp_path / "fetched")
    time.sleep(store.write_interval_s)
    assert publish(store, folder, "000013-2", replaces=found.version).by == "000013-2"
    assert fetch(store, tmp_path / "again") == FILES


def test_checkpoint_replaced_meanwhile_is_kept(store, folder, stored) -> None:
    found = copying.published(store, PREFIX)
    time.sleep(store.write_interval_s)
    second = publish(store, folder, "000013-1", replaces=found.version)
    assert second.by == "000013-1"
    assert publish(store, folder, "000014-1", replaces=found.version) == second
    assert left_behind(store, "000014-1") == []


def test_checkpoint_removed_during_fetch_is_not_used(store, folder, tmp_path, stored) -> None:
    found = copying.published(store, PREFIX)
    store.delete(MANIFEST, found.version)
    stored.remove()
    with pytest.raises(Damaged):
        copying.fetch(store, PREFIX, found, tmp_path / "fetched", link=False, deadline=Deadline(PACE))
