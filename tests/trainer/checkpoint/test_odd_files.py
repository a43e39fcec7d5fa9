"""Pipes, sockets, devices and folders in place of the trainer's own files: refused at once, never a wait."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeps.text.regular_file import open_regular, read_regular
from trainer import cache
from trainer.cache import file_digest
from trainer.checkpoint.manifest import STATE_FILE, UnusableError, verified
from trainer.errors import TrainerError
from trainer.models.student_folder import DOCUMENT, load

pytestmark = pytest.mark.timeout(60)


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(path.parent)  # a socket's path may be 107 bytes long
        listener.bind(path.name)


ODD: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "socket": bind,
}


@pytest.fixture(params=ODD)
def odd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    return ODD[request.param]


def test_odd_file_is_not_opened(tmp_path, odd):
    odd(tmp_path / "x")
    for read in (open_regular, read_regular, file_digest):
        with pytest.raises(OSError):
            read(tmp_path / "x")


def test_odd_state_of_a_checkpoint_is_unusable(tmp_path, odd):
    odd(tmp_path / STATE_FILE)
    with pytest.raises(UnusableError):
        verified(tmp_path)


def test_odd_manifest_of_an_artifact_is_built_anew(tmp_path, odd, monkeypatch):
    monkeypatch.setenv(cache.ROOT_VARIABLE, str(tmp_path / "cache"))
    folder = cache.artifact("things", {"n": 1}, lambda work: (work / "x").write_text("built"))
    (folder / cache.MANIFEST).unlink()
    odd(folder / cache.MANIFEST)
    anew = cache.artifact("things", {"n": 1}, lambda work: (work / "x").write_text("anew"))
    assert (anew / "x").read_text() == "anew"


def test_odd_document_of_a_student_is_refused(tmp_path, odd):
    odd(tmp_path / DOCUMENT)
    with pytest.raises(TrainerError, match="cannot be read"):
        load(tmp_path)
