"""A folder of compiled graphs and its copy in a bucket give each other what they lack. fsspec's memory plays
the bucket."""

from __future__ import annotations

import logging
import os
import uuid
from pathlib import Path

import fsspec
import pytest

from trainer.graph_mirror import GraphMirror


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


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_machine_finds_what_others_compiled_and_gives_what_it_compiled_itself(
    tmp_path: Path, url: str
) -> None:
    one, two = machine(tmp_path, "one", a=b"A"), machine(tmp_path, "two", b=b"B")
    first, second = mirror_of(url, one), mirror_of(url, two)
    first.bring()  # there is nothing yet
    first.send()
    second.bring()
    assert contents(two) == {"a": b"A", "b": b"B"}
    (two / "c").write_bytes(b"C")
    second.send()
    third = machine(tmp_path, "three")
    mirror_of(url, third).bring()
    assert contents(third) == {"a": b"A", "b": b"B", "c": b"C"}


def test_nothing_is_asked_of_the_bucket_where_nothing_is_new(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = mirror_of(url, machine(tmp_path, "one", a=b"A"))
    mirror.send()
    monkeypatch.setattr(mirror, "_bucket", lambda: pytest.fail("the bucket was asked"))
    mirror.send()


def test_a_file_that_may_still_be_written_is_sent_later(tmp_path: Path, url: str) -> None:
    one = machine(tmp_path, "one", a=b"A")
    mirror = GraphMirror(url, one)
    mirror.send()
    bucket, root = fsspec.core.url_to_fs(url)
    assert not bucket.exists(f"{root}/a")
    os.utime(one / "a", (0, 0))
    mirror.send()
    assert bucket.exists(f"{root}/a")


def test_a_file_that_is_not_whole_is_neither_sent_nor_left(tmp_path: Path, url: str) -> None:
    one = machine(tmp_path, "one", a=b"A")
    (one / ".b.tmp").write_bytes(b"half")
    mirror_of(url, one).send()
    bucket, root = fsspec.core.url_to_fs(url)
    assert [path.rpartition("/")[2] for path in bucket.ls(root, detail=False)] == ["a"]


def test_a_bucket_that_fails_is_told_once_and_costs_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mirror = mirror_of("nosuchscheme://bucket", machine(tmp_path, "one", a=b"A"))
    with caplog.at_level(logging.WARNING):
        mirror.bring()
        mirror.send()
        mirror.send()
    assert len(caplog.records) == 1
    assert "compiled graphs are not shared through nosuchscheme://bucket" in caplog.text
