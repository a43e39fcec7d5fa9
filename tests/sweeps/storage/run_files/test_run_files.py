"""Bulk data on its way to a bucket: lost answers, partitions, kills, rotated checkpoints, hostile manifests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Set
from pathlib import Path

import pytest
from fake_gcs import FakeGcs, Fault
from run_folders import download

from sweeps.errors import StoreUnavailable
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.local import LocalStore
from sweeps.storage.retries import RetryPolicy
from sweeps.storage.run_files import manifest
from sweeps.storage.run_files.exchange import PART_UNIT, Deadline
from sweeps.storage.run_files.manifest import Digest, Stored
from sweeps.storage.run_files.mirror import UploadConfig, Uploader
from sweeps.storage.run_files.scan import Stamp, due_batches, scan
from sweeps.storage.run_files.upload import FolderUpload

PREFIX = "runs/000012/attempt-1"
QUICK = RetryPolicy(total_s=3.0, attempt_s=0.5, first_wait_s=0.02, longest_wait_s=0.1)
PACE = UploadConfig(
    scan_s=0.05, growing_s=0.05, patience_s=3, first_wait_s=0.02, longest_wait_s=0.1, chunk_bytes=PART_UNIT
)
BIG = os.urandom(5 * PART_UNIT + 1234)


@pytest.fixture
def url() -> str:
    return f"gs://bucket/bulk/{uuid.uuid4().hex}"


@pytest.fixture
def store(gcs: FakeGcs, url: str) -> GcsStore:
    return GcsStore(url, endpoint=gcs.door("a"), retries=QUICK)


@pytest.fixture
def other(gcs: FakeGcs, url: str) -> GcsStore:
    """Return the store of the worker that takes over, with a door of its own."""
    return GcsStore(url, endpoint=gcs.door("b"), retries=QUICK)


@pytest.fixture(autouse=True)
def _no_uploads_left(gcs: FakeGcs) -> Iterator[None]:
    """End uploads that a test abandoned before the next test reads the journal."""
    yield
    gcs.faults.clear()
    for thread in threading.enumerate():
        if thread.name.startswith("upload "):
            thread.join(10)


def write(folder: Path, name: str, data: bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_bytes(data)
    draft.replace(path)


def upload(store: GcsStore, files: dict[str, bytes], timeout: float = 20) -> tuple[str, ...]:
    folder = store.folder(PREFIX)
    for name, data in files.items():
        write(folder, name, data)
    return Uploader(store, folder, PREFIX, config=PACE).close(timeout)


def fetch(store: GcsStore) -> dict[str, bytes] | None:
    folder = store.folder(PREFIX)
    names = download(store, PREFIX, folder, config=PACE)
    return None if names is None else {name: (folder / name).read_bytes() for name in names}


def rounds(store: GcsStore) -> FolderUpload:
    """Return an upload whose rounds the test calls itself."""
    return FolderUpload(store, store.folder(PREFIX), PREFIX, Deadline(PACE))


def test_each_batch_is_timed(store: GcsStore) -> None:
    ticks, found = iter(range(100)), []
    uploads = FolderUpload(
        store,
        store.folder(PREFIX),
        PREFIX,
        Deadline(PACE),
        timed=lambda *told: found.append(told),
        clock=lambda: float(next(ticks)),
    )
    for name in ("checkpoints/00000320/model", "checkpoints/00000320/state.json", "result.json"):
        write(store.folder(PREFIX), name, b"12345")
    uploads.round(final=True)
    assert sorted(found) == [("checkpoints/00000320", 10, 1.0), ("result.json", 5, 1.0)]
    uploads.round(final=True)
    assert len(found) == 2


def wait_until(condition: Callable[[], bool], timeout: float = 20) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)


def names(gcs: FakeGcs, store: GcsStore) -> list[str]:
    """Return the objects below the run's prefix."""
    root = store.url.removeprefix("gs://bucket/") + f"/{PREFIX}/"
    return [name.removeprefix(root) for name in gcs.objects.names("bucket", root)]


def sent(gcs: FakeGcs) -> list[str]:
    """Return the files whose upload began, in order."""
    found = [entry.name.partition(f"{PREFIX}/")[2] for entry in gcs.journal.entries("insert")]
    return [name for name in found if name != "manifest.json"]


class TestFaults:
    FILES = {"result.json": b"{}", "checkpoints/model.safetensors": BIG}  # noqa: RUF012 - nobody writes to it

    @pytest.mark.parametrize("size", [0, 1, PART_UNIT, PART_UNIT + 1, 3 * PART_UNIT], ids=str)
    def test_every_size_arrives_whole_in_one_request_or_in_parts(self, gcs, store, other, size):
        data = os.urandom(size)
        assert upload(store, {"model.bin": data}) == ()
        assert fetch(other) == {"model.bin": data}
        parts = len(gcs.journal.entries("upload_part"))
        assert parts == (0 if size <= PART_UNIT else -(-size // PART_UNIT))

    @pytest.mark.parametrize("operation", ["insert", "upload_part", "complete", "list", "get"])
    @pytest.mark.parametrize("action", ["lose_request", "lose_response", "hang", "status"])
    def test_a_request_that_goes_wrong_once_is_made_again(self, gcs, store, other, action, operation):
        gcs.faults.add(Fault(action=action, operation=operation, name="*", status=503))
        assert upload(store, self.FILES) == ()
        assert fetch(other) == self.FILES

    def test_a_lost_answer_leaves_one_generation_of_each_object(self, gcs, store):
        gcs.faults.add(Fault(action="lose_response", operation="insert", name="*result.json"))
        assert upload(store, {"result.json": b"{}"}) == ()
        answers = [e.status for e in gcs.journal.entries("insert") if e.name.endswith("result.json")]
        assert answers == [0, 412]

    def test_only_a_lost_part_is_sent_again(self, gcs, store, other):
        gcs.faults.add(Fault(action="delay", operation="upload_part", times=2))  # the first two parts arrive
        gcs.faults.add(Fault(action="lose_request", operation="upload_part"))
        assert upload(store, {"m.bin": BIG}) == ()
        assert len(gcs.journal.entries("upload_part")) == 6 + 1
        assert fetch(other) == {"m.bin": BIG}

    def test_an_upload_that_the_service_forgot_begins_anew(self, gcs, store, other):
        gcs.faults.add(Fault(action="delay", operation="upload_part"))
        gcs.faults.add(Fault(action="status", operation="upload_part", status=410))
        assert upload(store, {"m.bin": BIG}) == ()
        assert fetch(other) == {"m.bin": BIG}

    def test_an_end_without_an_answer_begins_the_upload_anew(self, gcs, store, other):
        """obstore sends it again, and the service knows the upload no more."""
        gcs.faults.add(Fault(action="lose_response", operation="complete"))
        assert upload(store, {"m.bin": BIG}) == ()
        assert [entry.status for entry in gcs.journal.entries("complete")] == [0, 404, 200]
        assert fetch(other) == {"m.bin": BIG}

    def test_upload_goes_on_after_a_partition(self, gcs, store, other):
        folder = store.folder(PREFIX)
        write(folder, "m.bin", BIG)
        gcs.latency_s = 0.05
        uploader = Uploader(store, folder, PREFIX, config=PACE)
        uploader.start()
        wait_until(lambda: len(gcs.journal.entries("upload_part")) >= 2)
        cut = gcs.partition("a")
        time.sleep(0.4)
        assert fetch(other) is None
        gcs.faults.remove(cut)
        gcs.latency_s = 0
        assert uploader.close(20) == ()
        assert fetch(other) == {"m.bin": BIG}
        assert len([entry for entry in gcs.journal.entries("insert") if entry.name.endswith("m.bin")]) == 1

    def test_bucket_out_of_reach_costs_a_warning_and_its_patience(self, gcs, store, caplog):
        gcs.partition("a")
        started = time.monotonic()
        assert upload(store, self.FILES, timeout=0.5) == ("checkpoints/model.safetensors", "result.json")
        assert time.monotonic() - started < 3
        assert "(checkpoints/model.safetensors, result.json)" in caplog.text

    def test_a_worker_that_is_told_to_go_leaves_within_its_grace(self, gcs, store):
        gcs.partition("a", "hang")
        folder = store.folder(PREFIX)
        write(folder, "m.bin", BIG)
        uploader = Uploader(store, folder, PREFIX, config=UploadConfig(scan_s=0.05))
        uploader.start()
        started = time.monotonic()
        assert uploader.close(600, leave=lambda: time.monotonic() > started + 0.3, grace=0.3) == ("m.bin",)
        assert time.monotonic() - started < 3

    def test_the_limit_of_an_upload_that_moves_counts_from_its_last_part(self, gcs, store, other):
        gcs.faults.add(Fault(action="delay", operation="upload_part", delay_s=0.4, times=None))
        folder, large = store.folder(PREFIX), os.urandom(24 * PART_UNIT)  # 2.4 s, four parts at once
        write(folder, "m.bin", large)
        assert Uploader(store, folder, PREFIX, config=PACE).close(1.2) == ("m.bin",)
        assert Uploader(store, folder, PREFIX, config=PACE).close(1.2, while_moving=True) == ()
        assert fetch(other) == {"m.bin": large}

    def test_an_upload_that_no_longer_moves_ends(self, gcs, store):
        gcs.faults.add(Fault(action="delay", operation="upload_part", delay_s=0.4, times=4))
        gcs.faults.add(Fault(action="hang", operation="upload_part", times=None))
        folder = store.folder(PREFIX)
        write(folder, "m.bin", BIG)
        uploader, began = Uploader(store, folder, PREFIX, config=PACE), time.monotonic()
        assert uploader.close(1.2, while_moving=True) == ("m.bin",)
        assert 1.2 < time.monotonic() - began < 5

    def test_small_files_are_sent_before_large_ones(self, gcs, store, other):
        gcs.faults.add(Fault(action="hang", operation="upload_part", times=None))
        assert upload(store, self.FILES, timeout=1) == ("checkpoints/model.safetensors",)
        gcs.faults.clear()
        assert fetch(other) == {"result.json": b"{}"}

    def test_access_denied_is_a_warning_that_says_what_to_do(self, gcs, store, caplog):
        gcs.faults.add(Fault(action="status", status=403, times=None))
        assert upload(store, {"a": b"x"}) == ("a",)
        assert "roles/storage.objectUser on gs://bucket" in caplog.text

    def test_one_trouble_is_told_once_however_long_it_lasts(self, gcs, store, caplog):
        gcs.faults.add(Fault(action="status", status=403, times=None))
        folder = store.folder(PREFIX)
        write(folder, "a", b"x")
        uploader = Uploader(store, folder, PREFIX, config=PACE)
        uploader.start()
        wait_until(lambda: len(gcs.journal.entries()) > 3)
        uploader.close(5)
        assert caplog.text.count("goes on later") == 1

    def test_damaged_bytes_are_fetched_again(self, gcs, store, other):
        upload(store, {"a": b"content"})
        gcs.faults.add(Fault(action="damage", operation="get", name="*/a"))
        assert fetch(other) == {"a": b"content"}

    def test_start_and_poll_do_not_wait_for_a_hanging_bucket(self, gcs, store):
        gcs.partition("a", "hang")
        folder = store.folder(PREFIX)
        write(folder, "a", b"x")
        started = time.monotonic()
        uploader = Uploader(store, folder, PREFIX, config=PACE)
        uploader.start()
        assert time.monotonic() - started < 0.2
        uploader.close(0)


KILLED = """
import sys
from pathlib import Path
from sweeps.storage.run_files.mirror import UploadConfig, Uploader
from sweeps.storage.gcs.store import GcsStore
store = GcsStore(sys.argv[1], endpoint=sys.argv[2])
uploader = Uploader(store, Path(sys.argv[3]), sys.argv[4], config=UploadConfig(scan_s=0.05, chunk_bytes=2**18))
uploader.start()
uploader.close(60)
"""


class TestHalfUploads:
    def _kill_after_parts(self, gcs, store, folder, parts):
        """Upload in a process of its own and kill it when so many parts were sent."""
        process = subprocess.Popen([sys.executable, "-c", KILLED, store.url, gcs.url, str(folder), PREFIX])
        wait_until(lambda: len(gcs.journal.entries("upload_part")) >= parts, 60)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def test_killed_upload_leaves_nothing_to_fetch(self, gcs, store, other):
        folder = store.folder(PREFIX)
        write(folder, "ckpt/a.bin", b"small")
        write(folder, "ckpt/b.bin", BIG)
        gcs.latency_s = 0.1
        self._kill_after_parts(gcs, store, folder, 2)
        gcs.latency_s = 0
        assert "ckpt/a.bin" in names(gcs, store)
        assert fetch(other) is None
        gcs.journal.clear()
        assert upload(store, {}) == ()
        assert sent(gcs) == ["ckpt/b.bin"]  # the other one is there: size and md5 say so
        assert fetch(other) == {"ckpt/a.bin": b"small", "ckpt/b.bin": BIG}

    def test_a_checkpoint_that_is_half_replaced_is_fetched_as_it_was(self, gcs, store, other):
        old = {"ckpt/model.bin": b"model 1", "ckpt/optimizer.bin": b"optimizer 1"}
        upload(store, old)
        gcs.faults.add(Fault(action="status", operation="insert", name="*optimizer*", times=None))
        new = {"ckpt/model.bin": b"model 2", "ckpt/optimizer.bin": b"optimizer 2"}
        assert upload(store, new, timeout=1) == tuple(new)
        assert fetch(other) == old
        gcs.faults.clear()
        assert upload(store, {}) == ()
        assert fetch(other) == new

    def test_failed_manifest_leaves_the_previous_one(self, gcs, store, other):
        upload(store, {"a": b"1"})
        gcs.faults.add(Fault(action="status", operation="insert", name="*manifest.json", times=None))
        assert upload(store, {"a": b"2"}, timeout=1) == ("a",)
        assert fetch(other) == {"a": b"1"}

    def test_what_is_superseded_is_removed_after_the_new_manifest(self, gcs, store, other):
        upload(store, {"ckpt/a": b"1", "b": b"1"})
        assert upload(store, {"ckpt/a": b"2"}) == ()
        assert len(names(gcs, store)) == 3
        assert fetch(other) == {"ckpt/a": b"2", "b": b"1"}

    def test_content_that_comes_back_is_kept(self, gcs, store, other):
        uploads, folder = rounds(store), store.folder(PREFIX)
        for data in (b"1", b"2", b"1", b"2", b"1"):
            write(folder, "a", data)
            uploads.round(final=True)
            assert fetch(other) == {"a": data}
        assert len(names(gcs, store)) == 2

    def test_content_that_returns_before_its_removal_is_kept(self, gcs, store, other):
        uploads, folder = rounds(store), store.folder(PREFIX)
        write(folder, "a", b"1")
        uploads.round(final=True)
        denied = gcs.faults.add(Fault(action="status", operation="delete", status=403, times=None))
        for data in (b"2", b"1"):
            write(folder, "a", data)
            with pytest.raises(StoreUnavailable, match="denied"):
                uploads.round(final=True)
        gcs.faults.remove(denied)
        uploads.round(final=True)
        assert fetch(other) == {"a": b"1"}
        assert len(names(gcs, store)) == 2

    def test_changing_set_never_appears_torn(self, gcs, store, other):
        uploads, folder = rounds(store), store.folder(PREFIX)
        for name in ("ck/a", "ck/b"):
            write(folder, name, b"1")
        gcs.faults.add(Fault(action="hang", operation="insert", name="*ck/a"))
        gcs.journal.clear()
        thread = threading.Thread(target=lambda: uploads.round(final=True))
        thread.start()
        wait_until(lambda: any(entry.fault == "hang" for entry in gcs.journal.entries()))
        (folder / "ck/b").write_bytes(b"2")
        thread.join()
        assert fetch(other) is None
        uploads.round(final=True)
        assert fetch(other) == {"ck/a": b"1", "ck/b": b"2"}

    def test_what_an_unwritten_manifest_names_is_not_overwritten(self, gcs, store, other):
        store.create("trials/000012.json", b"{}")  # else the refusal is for good
        uploads, folder = rounds(store), store.folder(PREFIX)
        denied = gcs.faults.add(
            Fault(action="status", operation="insert", name="*manifest.json", status=403, times=None)
        )
        for name in ("ck/a", "ck/b"):
            write(folder, name, b"1")
        with pytest.raises(StoreUnavailable, match="denied"):
            uploads.round(final=True)
        gcs.faults.remove(denied)
        for name in ("ck/a", "ck/b"):
            write(folder, name, b"2")
        gcs.faults.add(Fault(action="hang", operation="insert", name="*ck/b*"))
        gcs.journal.clear()
        thread = threading.Thread(target=lambda: uploads.round(final=True))
        thread.start()
        wait_until(lambda: any(entry.fault == "hang" for entry in gcs.journal.entries()))
        (folder / "ck/b").write_bytes(
            b"33"
        )  # so this set waits, and the manifest of the first one is written
        thread.join()
        assert fetch(other) == {"ck/a": b"1", "ck/b": b"1"}

    def test_folder_that_changes_is_fetched_as_it_is_then(self, gcs, store, other):
        uploads, folder = rounds(store), store.folder(PREFIX)
        for name in ("ck/1-a", "ck/1-b"):
            write(folder, name, b"old")
        uploads.round(final=True)
        gcs.faults.add(Fault(action="delay", operation="get", name="*ck/1-b", delay_s=1.0))
        found: list[dict[str, bytes] | None] = []
        thread = threading.Thread(
            target=lambda: found.append(fetch(GcsStore(store.url, endpoint=gcs.door("b"))))
        )
        thread.start()
        wait_until(lambda: any(e.name.endswith("ck/1-a") for e in gcs.journal.entries("get")))
        for name in ("ck/1-a", "ck/1-b"):
            (folder / name).unlink()
        write(folder, "ck/2-a", b"new")
        uploads.round(final=True)
        thread.join()
        assert found == [{"ck/2-a": b"new"}]

    def test_incomplete_download_leaves_nothing(self, gcs, store, other):
        upload(store, {"a": b"1", "b": b"2"})
        gcs.faults.add(Fault(action="status", operation="get", name="*/b", status=404, times=None))
        assert fetch(other) is None
        assert list(other.folder(PREFIX).iterdir()) == []

    def test_a_removed_object_makes_the_upload_a_half_one(self, gcs, store, other, caplog):
        upload(store, {"ckpt/a": b"1", "ckpt/b": b"2"})
        root = store.url.removeprefix("gs://bucket/")
        gcs.objects.delete("bucket", f"{root}/{PREFIX}/ckpt/b", {})
        assert fetch(other) is None
        assert "incomplete" in caplog.text
        assert list(other.folder(PREFIX).iterdir()) == []

    def test_overwritten_object_makes_the_upload_incomplete(self, gcs, store, other):
        upload(store, {"a": b"1"})
        _, version = store.read(f"{PREFIX}/a")
        store.replace(f"{PREFIX}/a", b"2", version)
        assert fetch(other) is None


class TestResuming:
    def test_a_second_uploader_sends_only_what_has_changed(self, gcs, store):
        upload(store, {"a": b"1", "big": BIG})
        gcs.journal.clear()
        assert upload(store, {"b": b"2"}) == ()
        assert sent(gcs) == ["b"]

    def test_where_nothing_has_changed_nothing_is_written(self, gcs, store):
        upload(store, {"a": b"1"})
        gcs.journal.clear()
        upload(store, {})
        assert gcs.journal.entries("insert") == []

    def test_second_uploader_with_an_empty_folder_removes_nothing(self, gcs, store, other):
        upload(store, {"a": b"1"})
        folder = other.folder(PREFIX)
        write(folder, "b", b"2")
        assert Uploader(other, folder, PREFIX, config=PACE).close(20) == ()
        assert fetch(other) == {"a": b"1", "b": b"2"}

    def test_two_uploaders_at_once_never_leave_a_false_manifest(self, gcs, store, other):
        first, second = rounds(store), rounds(other)
        write(store.folder(PREFIX), "a", b"1")
        write(other.folder(PREFIX), "a", b"2")
        first.round(final=True)
        second.round(final=True)
        write(store.folder(PREFIX), "a", b"3")
        with pytest.raises(Exception, match="another program"):
            first.round(final=True)
        assert fetch(GcsStore(store.url, endpoint=gcs.door("c"))) == {"a": b"2"}

    def test_files_that_were_fetched_before_are_not_fetched_again(self, gcs, store, other):
        upload(store, {"a": b"1", "b": b"22"})
        assert fetch(other) == {"a": b"1", "b": b"22"}
        (other.folder(PREFIX) / "b").write_bytes(b"2!")
        gcs.journal.clear()
        assert fetch(other) == {"a": b"1", "b": b"22"}
        fetched = [entry.name for entry in gcs.journal.entries("get") if "manifest" not in entry.name]
        assert [name.rpartition("/")[2] for name in fetched] == ["b"]


class TestARunningProgram:
    def test_a_file_is_not_sent_before_it_has_rested_for_a_scan(self, gcs, store):
        uploads, folder = rounds(store), store.folder(PREFIX)
        for size in (1, 2, 3):
            write(folder, "model.bin", b"x" * size)
            uploads.round()
            assert sent(gcs) == []
        uploads.round()
        assert sent(gcs) == ["model.bin"]

    def test_a_checkpoint_appears_as_a_whole_or_not_at_all(self, gcs, store, other):
        uploads, folder = rounds(store), store.folder(PREFIX)
        write(folder, "ckpt/step-1/model", b"1")
        uploads.round()
        write(folder, "ckpt/step-1/optimizer", b"2")
        uploads.round()
        assert fetch(other) is None
        uploads.round()
        assert fetch(other) == {"ckpt/step-1/model": b"1", "ckpt/step-1/optimizer": b"2"}

    def test_checkpoint_rotated_away_while_sent_arrives_complete(self, gcs, store, other):
        uploads, folder = rounds(store), store.folder(PREFIX)
        write(folder, "ckpt/a", b"small")
        write(folder, "ckpt/b", BIG)
        uploads.round()
        gcs.latency_s = 0.05
        thread = threading.Thread(target=uploads.round)
        thread.start()
        wait_until(lambda: len(gcs.journal.entries("upload_part")) >= 1)
        (folder / "ckpt/b").unlink()
        thread.join()
        gcs.latency_s = 0
        assert fetch(other) == {"ckpt/a": b"small", "ckpt/b": BIG}

    def test_file_written_while_sent_is_sent_again(self, gcs, store, other):
        uploads, folder = rounds(store), store.folder(PREFIX)
        write(folder, "m.bin", BIG)
        uploads.round()
        gcs.latency_s = 0.05
        thread = threading.Thread(target=uploads.round)
        thread.start()
        wait_until(lambda: len(gcs.journal.entries("upload_part")) >= 1)
        with (folder / "m.bin").open("r+b") as file:
            file.seek(4 * PART_UNIT)
            file.write(b"torn")
        thread.join()
        gcs.latency_s = 0
        assert fetch(other) is None
        uploads.round()
        uploads.round()
        assert fetch(other) == {"m.bin": (folder / "m.bin").read_bytes()}

    def test_a_checkpoint_stays_until_its_successor_is_there(self, gcs, store, other):
        uploads, folder = rounds(store), store.folder(PREFIX)
        write(folder, "ckpt/1/model", b"old")
        uploads.round(final=True)
        write(folder, "ckpt/2/model", BIG)
        (folder / "ckpt/1/model").unlink()
        uploads.round()  # neither has rested
        gcs.faults.add(Fault(action="delay", operation="complete", delay_s=2.0))
        thread = threading.Thread(target=uploads.round)
        gcs.journal.clear()
        thread.start()
        wait_until(lambda: len(gcs.journal.entries("upload_part")) >= 1)
        assert fetch(other) == {"ckpt/1/model": b"old"}
        with (folder / "ckpt/2/model").open("ab") as file:
            file.write(b"it is written to, so this upload does not count")
        thread.join()
        assert fetch(other) == {"ckpt/1/model": b"old"}
        uploads.round()
        uploads.round()
        assert list(fetch(GcsStore(store.url, endpoint=gcs.door("c")))) == ["ckpt/2/model"]

    def test_removed_checkpoint_goes_from_the_bucket(self, gcs, store, other):
        uploads, folder = rounds(store), store.folder(PREFIX)
        write(folder, "ckpt/step-1", b"1")
        uploads.round(final=True)
        write(folder, "ckpt/step-2", b"2")
        (folder / "ckpt/step-1").unlink()
        uploads.round(final=True)
        assert fetch(other) == {"ckpt/step-2": b"2"}
        assert names(gcs, store) == ["ckpt/step-2", "manifest.json"]

    def test_a_run_folder_that_was_cleaned_up_empties_no_bucket(self, store, other):
        uploads, folder = rounds(store), store.folder(PREFIX)
        write(folder, "a", b"1")
        uploads.round(final=True)
        (folder / "a").unlink()
        folder.rmdir()
        uploads.round(final=True)
        assert fetch(other) == {"a": b"1"}

    def test_growing_file_is_sent_at_intervals_and_at_the_end(self, gcs, store, other):
        folder = store.folder(PREFIX)
        uploads = FolderUpload(store, folder, PREFIX, Deadline(UploadConfig(growing_s=3600)))
        for step in range(4):
            with (folder / "metrics.jsonl").open("ab") as file:
                file.write(b"%d\n" % step)
            uploads.round()
        assert sent(gcs) == ["metrics.jsonl"]
        uploads.round(final=True)
        assert fetch(other) == {"metrics.jsonl": b"0\n1\n2\n3\n"}
        assert names(gcs, store) == ["manifest.json", "metrics.jsonl"]

    def test_a_log_that_takes_long_to_send_is_sent_rarely_and_at_the_end(self, gcs, store, other):
        """It is sent whole, while checkpoints wait."""
        folder = store.folder(PREFIX)
        uploads = FolderUpload(store, folder, PREFIX, Deadline(UploadConfig(growing_s=0.01)))
        gcs.faults.add(Fault(action="delay", operation="insert", name="*log.txt", delay_s=1.0, times=None))
        for line in range(4):
            with (folder / "log.txt").open("ab") as file:
                file.write(b"%d\n" % line)
            uploads.round()
            time.sleep(0.02)
        assert sent(gcs) == ["log.txt"]
        uploads.round(final=True)
        assert fetch(other) == {"log.txt": b"0\n1\n2\n3\n"}

    def test_a_log_that_an_outage_held_up_is_sent_again_soon(self, gcs, store, other, monkeypatch):
        monkeypatch.setattr("sweeps.storage.run_files.upload._LONGEST_REST_S", 0.1)
        folder = store.folder(PREFIX)
        uploads = FolderUpload(store, folder, PREFIX, Deadline(UploadConfig(growing_s=0.01)))
        gcs.faults.add(Fault(action="delay", operation="insert", name="*log.txt", delay_s=0.5))
        write(folder, "log.txt", b"0\n")
        uploads.round()
        write(folder, "log.txt", b"0\n1\n")
        time.sleep(0.15)
        uploads.round()
        assert fetch(other) == {"log.txt": b"0\n1\n"}

    def test_a_heartbeat_goes_at_the_pace_of_logs_and_at_the_end(self, gcs, store, other):
        """The trainer writes it every ten seconds, and every request is billed."""
        folder = store.folder(PREFIX)
        uploads = FolderUpload(store, folder, PREFIX, Deadline(UploadConfig(growing_s=3600)))
        for beat in range(4):
            write(folder, "heartbeat.json", b"%d" % beat)
            uploads.round()
            uploads.round()
        assert len(sent(gcs)) == 1
        assert fetch(other) == {"heartbeat.json": b"0"}
        uploads.round(final=True)
        assert fetch(other) == {"heartbeat.json": b"3"}

    def test_log_is_fetched_as_its_manifest_has_it(self, gcs, store, other):
        upload(store, {"log.txt": b"one\n", "a": b"1"})
        gcs.faults.add(Fault(action="status", operation="insert", name="*manifest.json", times=None))
        upload(store, {"log.txt": b"one\ntwo\n"}, timeout=1)
        assert store.read(f"{PREFIX}/log.txt")[0] == b"one\ntwo\n"
        assert fetch(other) == {"log.txt": b"one\n", "a": b"1"}

    def test_log_that_was_begun_anew_is_left_out(self, gcs, store, other):
        upload(store, {"log.txt": b"one\n", "a": b"1"})
        gcs.faults.add(Fault(action="status", operation="insert", name="*manifest.json", times=None))
        upload(store, {"log.txt": b"another\n"}, timeout=1)
        assert fetch(other) == {"a": b"1"}

    def test_a_file_named_like_the_manifest_is_kept_beside_it(self, store, other):
        upload(store, {"manifest.json": b'{"mine": 1}'})
        assert fetch(other) == {"manifest.json": b'{"mine": 1}'}


class TestPointers:
    OLD, NEW = Stamp(1, 10**9, 1), Stamp(1, 10**9, 2)
    MINUTE_LATER = Stamp(1, 70 * 10**9, 3)

    @pytest.fixture
    def uploads(self, store) -> FolderUpload:
        """Return an upload whose bucket has one checkpoint, and the folder the next one, too."""
        uploads, folder = rounds(store), store.folder(PREFIX)
        for number, data in (("100", b"old"), ("200", BIG)):
            write(folder, f"checkpoints/{number}/model", data)
            write(folder, "checkpoints/latest", number.encode())
            if number == "100":
                uploads.round(final=True)
        uploads.round()
        return uploads

    def test_checkpoint_appears_before_the_pointer_to_it(self, gcs, store, other, uploads):
        gcs.faults.add(Fault(action="delay", operation="complete", delay_s=2.0))
        gcs.journal.clear()
        thread = threading.Thread(target=uploads.round)
        thread.start()
        wait_until(lambda: len(gcs.journal.entries("upload_part")) >= 1)
        assert fetch(other) == {"checkpoints/100/model": b"old", "checkpoints/latest": b"100"}
        write(
            store.folder(PREFIX), "checkpoints/latest", b"300"
        )  # or it would never be there, if uploads are slow
        thread.join()
        assert fetch(GcsStore(store.url, endpoint=gcs.door("c"))) == {
            "checkpoints/100/model": b"old",
            "checkpoints/200/model": BIG,
            "checkpoints/latest": b"200",
        }

    def test_pointer_waits_where_its_checkpoint_is_written_meanwhile(self, gcs, store, other, uploads):
        gcs.latency_s = 0.05
        thread = threading.Thread(target=uploads.round)
        thread.start()
        wait_until(lambda: len(gcs.journal.entries("upload_part")) >= 1)
        with (store.folder(PREFIX) / "checkpoints/200/model").open("ab") as file:
            file.write(b"more")
        thread.join()
        gcs.latency_s = 0
        uploads.round()  # it has not rested
        assert fetch(other) == {"checkpoints/100/model": b"old", "checkpoints/latest": b"100"}
        uploads.round()
        assert fetch(GcsStore(store.url, endpoint=gcs.door("c")))["checkpoints/latest"] == b"200"

    def after(self, last: Stamp, *, moves: bool, restless: frozenset[str] = frozenset()) -> Set[str] | None:
        """Return the units that `latest` goes after, or None if it waits for another scan."""
        present = {"checkpoints/latest": self.OLD, "checkpoints/1/a": self.OLD, "checkpoints/2/a": last}
        before = present | {"checkpoints/2/a": Stamp(0, 0, 0)} if moves else present
        batches = due_batches(present, before, {}, restless=restless)
        return {batch.unit: batch.after for batch in batches}.get("checkpoints/")

    def test_pointer_waits_only_for_folders_of_its_time_that_come_to_rest(self):
        """Else what a program writes all the time would keep the pointer from the bucket for ever."""
        assert self.after(self.NEW, moves=False) == {"checkpoints/1/", "checkpoints/2/"}
        assert self.after(self.NEW, moves=True) is None
        assert self.after(self.MINUTE_LATER, moves=True) == {"checkpoints/1/"}
        assert self.after(self.NEW, moves=True, restless=frozenset({"checkpoints/2/"})) == {"checkpoints/1/"}


class TestInheritedCheckpoints:
    def inherit(self, store, files: dict[str, bytes]) -> FolderUpload:
        for name, data in files.items():
            write(store.folder(PREFIX), name, data)
        uploads = rounds(store)
        uploads.inherit()
        return uploads

    def test_all_wait_for_one_that_the_program_rewrites(self, store, other):
        """Attempts before this one have all of them."""
        uploads = self.inherit(store, {"checkpoints/best/model": b"10", "checkpoints/last/model": b"20"})
        for data in (b"21", b"22"):
            write(store.folder(PREFIX), "checkpoints/last/model", data)
            uploads.round()
            assert fetch(other) is None
        uploads.round()
        assert fetch(other) == {"checkpoints/best/model": b"10", "checkpoints/last/model": b"22"}

    def test_file_that_the_program_keeps_writing_holds_no_checkpoint_back(self, store, other):
        uploads = self.inherit(store, {"checkpoints/status": b"0", "checkpoints/10/model": b"10"})
        write(store.folder(PREFIX), "checkpoints/20/model", b"20")
        for beat in range(11):
            write(store.folder(PREFIX), "checkpoints/status", b"%d" % beat)
            uploads.round()
        assert fetch(other) is None
        write(store.folder(PREFIX), "checkpoints/status", b"11")
        uploads.round()
        assert fetch(other) == {"checkpoints/10/model": b"10", "checkpoints/20/model": b"20"}

    def test_all_that_is_deleted_holds_no_checkpoint_back(self, store, other):
        uploads = self.inherit(store, {"checkpoints/10/model": b"10"})
        write(store.folder(PREFIX), "checkpoints/20/model", b"20")
        (store.folder(PREFIX) / "checkpoints/10/model").unlink()
        uploads.round()
        uploads.round()
        assert fetch(other) == {"checkpoints/20/model": b"20"}

    def test_what_is_replaced_before_it_is_shown_leaves_no_object(self, gcs, store, other):
        store.create("trials/000012.json", b"{}")  # else the refusal is for good
        uploads = self.inherit(store, {"checkpoints/10/model": BIG, "checkpoints/latest": b"10"})
        denied = gcs.faults.add(Fault(action="status", operation="upload_part", status=403, times=None))
        uploads.round()
        for latest in (b"10", b"10\n", b"10\n"):  # the second time it has not rested
            if (store.folder(PREFIX) / "checkpoints/latest").read_bytes() != latest:
                write(store.folder(PREFIX), "checkpoints/latest", latest)
            with pytest.raises(StoreUnavailable, match="denied"):
                uploads.round()
            assert fetch(other) is None
        gcs.faults.remove(denied)
        uploads.round()
        assert fetch(other) == {"checkpoints/10/model": BIG, "checkpoints/latest": b"10\n"}
        assert len(names(gcs, store)) == 3


class TestNames:
    def test_links_out_of_the_folder_are_not_followed(self, tmp_path, store, other):
        (tmp_path / "secret").write_bytes(b"secret")
        folder = store.folder(PREFIX)
        (folder / "out").symlink_to(tmp_path / "secret")
        (folder / "up").symlink_to(tmp_path)
        (folder / "dangling").symlink_to(tmp_path / "nothing")
        (folder / "loop").symlink_to(folder / "loop")
        (folder / "pipe").parent.mkdir(exist_ok=True)
        os.mkfifo(folder / "pipe")
        (folder / "latest").symlink_to("a")
        assert upload(store, {"a": b"1"}) == ()
        assert fetch(other) == {"a": b"1", "latest": b"1"}

    def test_names_that_the_bucket_would_not_take_are_skipped(self, store, other):
        folder = store.folder(PREFIX)
        (folder / "new\nline").write_bytes(b"x")
        (folder / ("n" * 240)).write_bytes(b"x")
        (folder / os.fsdecode(b"\xff")).write_bytes(b"x")
        assert upload(store, {"a": b"1"}) == ()
        assert fetch(other) == {"a": b"1"}

    def test_hidden_files_are_kept_and_drafts_are_not(self, store, other):
        """Hydra writes the configuration of a run into `.hydra/`."""
        drafts = (".student.tmp", ".result.json.7.part", ".incoming/a", ".stage1_9.unusable.0a/a", ".nfs0001")
        upload(store, {".hydra/config.yaml": b"lr: 1", ".version": b"7"} | dict.fromkeys(drafts, b"half"))
        assert fetch(other) == {".hydra/config.yaml": b"lr: 1", ".version": b"7"}

    def test_hidden_files_that_may_hold_keys_stay_behind(self, store, other):
        private = (".env", "code/.git/config", ".ssh/id_ed25519", "a/.netrc")
        upload(store, {"a/b": b"1"} | dict.fromkeys(private, b"secret"))
        assert fetch(other) == {"a/b": b"1"}

    @pytest.mark.parametrize(
        "name",
        ["../evil", "/etc/evil", "a/../../evil", "a//b", "", "a/", "x\n", "./a"],
    )
    def test_a_manifest_with_a_hostile_name_is_refused_as_a_whole(self, store, caplog, name):
        upload(store, {"a": b"1"})
        data, version = store.read(f"{PREFIX}/manifest.json")
        document = json.loads(data)
        document["files"][name] = document["files"]["a"]
        store.replace(f"{PREFIX}/manifest.json", json.dumps(document).encode(), version)
        assert fetch(store) is None
        assert "ignored" in caplog.text

    @pytest.mark.parametrize(
        "data",
        [b"", b"{", b"[]", b"null", b'{"schema": 1}', b'{"schema": 2, "files": {}}', b'{"schema": 1, "files": []}',
         b'{"schema": 1, "files": {"a": 1}}', b'{"schema": 1, "files": {"a": {}}}', b"\xff\xfe", b"\x80\x04K\x01."],
        ids=["empty", "torn", "list", "null", "no-files", "newer", "files-list", "number", "no-fields", "bytes", "pickle"],
    )  # fmt: skip
    def test_damaged_manifest_is_ignored_and_replaced(self, store, other, data):
        store.create(f"{PREFIX}/manifest.json", data)
        assert fetch(other) is None
        assert upload(store, {"a": b"1"}) == ()
        assert fetch(other) == {"a": b"1"}

    def test_a_link_in_the_target_folder_leads_nothing_out_of_it(self, tmp_path, store, other):
        upload(store, {"sub/a": b"1"})
        (tmp_path / "elsewhere").mkdir()
        (other.folder(PREFIX) / "sub").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(Exception, match="leads out of"):
            fetch(other)
        assert list((tmp_path / "elsewhere").iterdir()) == []

    def test_local_store_refuses_another_folder(self, tmp_path):
        local = LocalStore(tmp_path / "store")
        with pytest.raises(ValueError, match="lie in"):
            Uploader(local, tmp_path, PREFIX)


class TestTheRipe:
    ONE, TWO = Stamp(1, 1, 1), Stamp(2, 2, 2)

    def changed(self, present, before, safe=None, **options):
        return [batch.changed for batch in due_batches(present, before, safe or {}, **options)]

    def test_only_files_of_one_folder_wait_for_each_other(self):
        before = {"a": self.ONE, "ck/a": self.ONE}
        assert self.changed(before | {"ck/b": self.ONE}, before) == [("a",)]

    def test_a_folder_waits_for_all_levels_below_it(self):
        before = {"ck/1/a": self.ONE}
        assert self.changed(before | {"ck/1/b/c": self.ONE}, before) == []
        assert self.changed(before | {"ck/1/b/c": self.ONE}, before, final=True) == [("ck/1/a", "ck/1/b/c")]

    def test_a_checkpoint_does_not_wait_for_the_next_one(self):
        """Or a run that writes one every few seconds would never have any of them in the bucket."""
        before = {"ck/1/a": self.ONE, "ck/latest": self.ONE}
        present = before | {"ck/2/a": self.ONE, "ck/latest": self.TWO}
        assert self.changed(present, before) == [("ck/1/a",)]

    def test_what_is_only_gone_goes_last(self):
        present, safe = {"ck/2/a": Stamp(9, 1, 1), "b": self.ONE}, {"ck/1/a": self.ONE}
        batches = due_batches(present, present, safe)
        assert [(batch.changed, batch.removed) for batch in batches] == [
            (("b",), ()),
            (("ck/2/a",), ()),
            ((), ("ck/1/a",)),
        ]

    def test_a_growing_file_neither_waits_nor_lets_others_wait(self):
        before = {"ck/a": self.ONE, "ck/log.txt": self.ONE}
        assert self.changed(before | {"ck/log.txt": self.TWO}, before) == [("ck/a",), ("ck/log.txt",)]

    def test_the_fewest_bytes_go_first(self):
        present = {"large": Stamp(9, 1, 1), "small": Stamp(1, 1, 1), "middle": Stamp(5, 1, 1)}
        assert self.changed(present, present) == [("small",), ("middle",), ("large",)]

    def test_what_is_safe_and_the_same_is_not_sent(self):
        assert self.changed({"a": self.ONE}, {"a": self.ONE}, {"a": self.ONE}) == []

    def test_a_scan_of_nothing_finds_nothing(self, tmp_path):
        assert scan(tmp_path / "nothing", PREFIX) == {}


class TestTheManifest:
    # Frozen: version 1 as it was first written. It must be read for ever.
    V1 = b"""{"schema": 1, "files": {"ck/model.bin": {"object": "ck/model.bin.6b86b273ff34",
      "generation": "1700000000000001", "size": 1, "growing": false, "md5": "xMpCOKC5I4INzFCab3WEmw==",
      "sha256": "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"}}}"""

    def test_version_1_is_read(self):
        digest = Digest(
            size=1,
            sha256="6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b",
            md5="xMpCOKC5I4INzFCab3WEmw==",
        )
        assert manifest.decode(self.V1) == {
            "ck/model.bin": Stored(
                object=manifest.object_name("ck/model.bin", digest, taken=True),
                generation="1700000000000001",
                size=digest.size,
                sha256=digest.sha256,
                md5=digest.md5,
                growing=False,
            )
        }

    def test_what_is_written_is_read_back(self):
        files = manifest.decode(self.V1)
        assert manifest.decode(manifest.encode(files)) == files


class TestThePace:
    @pytest.mark.parametrize(
        "wrong", [{"scan_s": 0}, {"growing_s": -1}, {"patience_s": float("inf")}, {"chunk_bytes": 1000}, {"longest_wait_s": float("nan")}],
        ids=str,
    )  # fmt: skip
    def test_what_cannot_work_is_refused(self, wrong):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            UploadConfig(**wrong)
