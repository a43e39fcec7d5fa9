"""Pipes, sockets, devices and folders in place of a snapshot's files: damaged at once, never a wait."""

from __future__ import annotations

from pathlib import Path

import pytest
from strange import KINDS, stand_in

from sweeps.storage.local import LocalStore
from sweeps.storage.run_files.exchange import Deadline, UploadConfig
from sweeps.storage.run_files.fetch import fetch_files
from sweeps.transfer import copying, stored_stages
from sweeps.worker.resuming import checkpoint_progress

pytestmark = pytest.mark.timeout(20)

KEY = "ab" * 32
PREFIX = stored_stages.prefix(KEY)


@pytest.mark.parametrize("link", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_odd_file_of_a_stored_stage_is_damaged(tmp_path: Path, kind: str, link: bool):
    store, ended = LocalStore(tmp_path / "sweep"), tmp_path / "ended"
    ended.mkdir()
    (ended / "weights.bin").write_text("w" * 100)
    deadline = Deadline(UploadConfig(patience_s=1.0))
    found = copying.publish(store, PREFIX, ended, "000001-1", link=False, deadline=deadline)
    assert found is not None
    stand_in(kind, tmp_path / "sweep" / PREFIX / "000001-1" / "weights.bin")
    with pytest.raises(copying.Damaged, match=r"weights\.bin"):
        copying.fetch(store, PREFIX, found, tmp_path / "into", link=link, deadline=deadline)
    (stage,) = stored_stages.stored_stages(store)
    assert "weights.bin" in stored_stages.damaged_bytes(store, stage)


@pytest.mark.parametrize("kind", KINDS)
def test_odd_pointer_to_a_checkpoint_is_none(tmp_path: Path, kind: str):
    stand_in(kind, tmp_path / "checkpoints" / "latest")
    assert checkpoint_progress(tmp_path, ["one"]) == (0, 0)


@pytest.mark.parametrize("latest", ["00000030", "", "../00000030", None])
def test_dangling_pointer_is_passed_over_for_the_newest_checkpoint(tmp_path: Path, latest: str | None):
    checkpoints = tmp_path / "checkpoints"
    for name, text in {"00000010": "{}", "00000020": '{"stage": "one", "over": false, "step": 20}', ".00000040": "{}",
                       "00000025": "torn", "best": "{}"}.items():  # fmt: skip
        (checkpoints / name).mkdir(parents=True)
        (checkpoints / name / "state.json").write_text(text)
    (checkpoints / "00000050").mkdir()
    if latest is not None:
        (checkpoints / "latest").write_text(latest)
    assert checkpoint_progress(tmp_path, ["one"]) == (0, 20)


def test_pipe_after_the_scan_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = LocalStore(tmp_path / "sweep")
    run = store.folder("runs/000001/attempt-1")
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "a").write_text("a")
    from sweeps.storage.run_files import fetch

    scanned = fetch.scan(run, "runs/000001/attempt-1")
    stand_in("pipe", run / "checkpoints" / "a")
    monkeypatch.setattr(fetch, "scan", lambda *_: scanned)
    assert fetch_files(store, "runs/000001/attempt-1", tmp_path / "into", below="checkpoints/") == ()
