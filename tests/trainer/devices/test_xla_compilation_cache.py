"""A folder of compiled graphs and its copy in a bucket give each other what they lack. fsspec's memory plays
the bucket."""

from __future__ import annotations

import logging
import os
import threading
import uuid
from pathlib import Path

import fsspec
import pytest

from trainer.devices.background_calls import THREAD_NAME, anything_hangs
from trainer.devices.xla_compilation_cache import GraphMirror


@pytest.fixture
def url() -> str:
    return f"memory://bucket-{uuid.uuid4().hex}/graphs"


def machine(tmp_path: Path, name: str, **files: bytes) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    for file, content in files.items():
        (folder / file).write_bytes(content)
    return folder


def mirror_of(url: str, folder: Path) -> GraphMirror:
    """One that does not wait for files to settle."""
    return GraphMirror(url, folder, settled_s=0.0)


def uploaded(url: str) -> list[str]:
    bucket, root = fsspec.core.url_to_fs(url)
    return sorted(path.rpartition("/")[2] for path in bucket.ls(root, detail=False))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_machines_share_compiled_graphs(tmp_path: Path, url: str) -> None:
    one, two = machine(tmp_path, "one", a=b"A"), machine(tmp_path, "two", b=b"B")
    first, second = mirror_of(url, one), mirror_of(url, two)
    first.download()  # there is nothing yet
    first.upload()
    second.download()
    assert contents(two) == {"a": b"A", "b": b"B"}
    (two / "c").write_bytes(b"C")
    second.upload()
    third = machine(tmp_path, "three")
    mirror_of(url, third).download()
    assert contents(third) == {"a": b"A", "b": b"B", "c": b"C"}


def test_no_request_without_new_files(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = mirror_of(url, machine(tmp_path, "one", a=b"A"))
    mirror.upload()
    monkeypatch.setattr(mirror, "_bucket", lambda: pytest.fail("the bucket was asked"))
    mirror.upload()


def test_a_file_that_may_still_be_written_is_sent_later(tmp_path: Path, url: str) -> None:
    one = machine(tmp_path, "one", a=b"A")
    mirror = GraphMirror(url, one)
    mirror.upload()
    bucket, root = fsspec.core.url_to_fs(url)
    assert not bucket.exists(f"{root}/a")
    os.utime(one / "a", (0, 0))
    mirror.upload()
    assert bucket.exists(f"{root}/a")


def test_last_compilation_is_uploaded_once_settled(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, slept = machine(tmp_path, "one", a=b"A", b=b"B"), list[float]()
    os.utime(one / "a", (0, 0))
    mirror = GraphMirror(url, one, settled_s=100.0)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert uploaded(url) == ["a"]  # that is there already, should the machine go
        os.utime(one / "b", (0, 0))

    monkeypatch.setattr("trainer.devices.xla_compilation_cache.time.sleep", sleep)
    mirror.close(10.0)
    assert uploaded(url) == ["a", "b"]
    assert slept == [pytest.approx(100, abs=5)]
    mirror.close(10.0)  # nothing new, and nothing to wait for
    assert len(slept) == 1


def test_hanging_bucket_is_abandoned_at_the_end(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mirror, over = mirror_of(url, machine(tmp_path, "one", a=b"A")), threading.Event()

    def hang() -> None:
        over.wait(30.0)
        raise OSError("gone")

    monkeypatch.setattr(mirror, "_bucket", hang)
    with caplog.at_level(logging.WARNING):
        mirror.close(0.05)
        assert anything_hangs()  # so the process leaves without waiting for that thread
        (record,) = caplog.records
        assert f"{url}: 0.05 s" in record.getMessage()
        over.set()
        for thread in threading.enumerate():
            if thread.name == THREAD_NAME:
                thread.join(30.0)


def test_partial_files_are_neither_uploaded_nor_kept(tmp_path: Path, url: str) -> None:
    one = machine(tmp_path, "one", a=b"A")
    (one / ".b.tmp").write_bytes(b"half")
    mirror_of(url, one).upload()
    assert uploaded(url) == ["a"]


def test_failing_bucket_warns_once_and_ends_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mirror = mirror_of("nosuchscheme://bucket", machine(tmp_path, "one", a=b"A"))
    with caplog.at_level(logging.WARNING):
        mirror.download()
        mirror.upload()
        mirror.upload()
        mirror.close(10.0)
    assert len(caplog.records) == 1
    assert "nosuchscheme://bucket" in caplog.text
