"""A file or an answer that is nested without end is as damaged as any other, in every package: never a RecursionError.

That no other reader of JSON comes in is for ruff to see (TID251 in pyproject.toml).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from analysis import table
from analysis.errors import TableError
from runners.errors import EngineFailed, RunnerError
from runners.kubernetes.options import KubernetesOptions
from runners.kubernetes.runner import Kubectl
from runners.pools import launched, pool_file
from trainer import cache
from trainer.checkpoint import manifest
from trainer.teachers.cached import index
from trainer.teachers.http import protocol

BAD = {
    "deep": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "deep-list": b"[" * 5000 + b"]" * 5000,
    "cut-short": b'{"a": ',
    "half-of-a-pair": b'{"\\ud800": 1}',
    "not-utf-8": b"\xff\xfe",
}


@pytest.fixture(params=BAD)
def bad(request: pytest.FixtureRequest) -> bytes:
    return BAD[request.param]


@pytest.mark.parametrize(
    ("read", "file", "error"),
    [
        pytest.param(launched.read, launched.FILE, RunnerError, id="launched"),
        pytest.param(lambda folder: table.read(folder / "t.json"), "t.json", TableError, id="table"),
    ],
)
def test_a_damaged_file_is_named(
    tmp_path: Path, bad: bytes, read: Callable[[Path], object], file: str, error: type[Exception]
) -> None:
    (tmp_path / file).write_bytes(bad)
    with pytest.raises(error, match=file) as caught:
        read(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_damaged_pool_file_is_no_pool(tmp_path: Path, bad: bytes) -> None:
    (tmp_path / pool_file.FILE).write_bytes(bad)
    assert pool_file.read(tmp_path) is None


def test_a_damaged_manifest_of_a_checkpoint_is_unusable(bad: bytes) -> None:
    with pytest.raises(manifest.UnusableError):
        manifest.decode(bad)


def test_a_damaged_index_of_a_teacher_cache_is_unreadable(bad: bytes) -> None:
    with pytest.raises(index.UnreadableError):
        index.decode(bad)


def test_a_damaged_artifact_is_built_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: bytes
) -> None:
    monkeypatch.setenv("STAGESWEEP_CACHE", str(tmp_path))
    folder = cache.artifact("things", {"n": 1}, lambda work: (work / "x").write_text("built"))
    (folder / cache.MANIFEST).write_bytes(bad)
    (folder / "x").write_text("damaged, too")
    assert (
        cache.artifact("things", {"n": 1}, lambda work: (work / "x").write_text("anew")) / "x"
    ).read_text() == "anew"


def test_an_answer_of_a_teacher_is_shown_as_it_is(bad: bytes) -> None:
    assert protocol.problem(bad) in (bad.decode(errors="replace"), "")


def test_an_answer_of_kubectl_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: bytes
) -> None:
    (tmp_path / "answer").write_bytes(bad)
    (tmp_path / "kubectl").write_text(f"#!/bin/sh\ncat {tmp_path}/answer\n")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(EngineFailed, match=r"kubectl get .*not JSON"):
        Kubectl(KubernetesOptions()).get("pods")
