"""heartbeat.json: written while a step is stuck, whole at any time, and telling a compile from a hang."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from telemetry_steps import CPU, begun, step

from trainer.api import check
from trainer.telemetry.heartbeat import Heartbeat
from trainer.telemetry.run import Telemetry
from trainer.training.evaluation import HeldOutPoint

FAST_S = 0.02


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def wait_for(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """What is in the file once it is as wanted."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if path.exists() and wanted(found := read(path)):
            return found
        time.sleep(0.005)
    raise AssertionError(f"never: {read(path)}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "heartbeat.json"


def watched(path: Path, heartbeat: Heartbeat) -> Telemetry:
    return Telemetry(path.with_name("metrics.jsonl"), every=1, heartbeat=heartbeat, out=None)


def test_it_goes_on_while_the_main_thread_is_stuck(path: Path) -> None:
    with watched(path, Heartbeat(path, device=CPU, every_s=FAST_S)) as telemetry:
        begun(telemetry, 9)
        telemetry.watch(step(1, 9))
        first = wait_for(path, lambda found: found.get("step") == 2)
        time.sleep(5 * FAST_S)  # the step that hangs
        later = wait_for(path, lambda found: found["phase_seconds"] > 4 * FAST_S)
    assert (later["phase"], later["stage"], later["step"], later["of"]) == ("training", "stage2", 2, 9)
    assert later["detail"] == "step 2 of 9 in stage2"
    assert later["written_unix_seconds"] > first["written_unix_seconds"]
    assert later["typical_step_seconds"] == 0.5
    assert 10 < later["memory_mib"] <= later["peak_memory_mib"]
    assert later["pid"] == os.getpid()


def test_first_step_of_a_compiled_stage_is_compiling(path: Path) -> None:
    compiled = dataclasses.replace(CPU, compile=True)
    with watched(path, Heartbeat(path, device=compiled, every_s=FAST_S)) as telemetry:
        assert wait_for(path, lambda found: True)["phase"] == "loading"
        telemetry.preparing("teacher", 0.4)
        assert wait_for(path, lambda found: found["detail"] != "")["detail"] == "teacher, 40% of it done"
        begun(telemetry, 2, device=compiled)
        assert wait_for(path, lambda found: found["phase"] != "loading")["phase"] == "compiling"
        telemetry.watch(step(1, 2))
        assert wait_for(path, lambda found: found["phase"] != "compiling")["step"] == 2


def test_has_the_held_out_loss_of_an_earlier_attempt(path: Path) -> None:
    measured = HeldOutPoint(stage="stage2", step=1, of=2, loss=3.25, sequences=8, seconds=0.1)
    first = Heartbeat(path, device=CPU, every_s=FAST_S)
    with watched(path, first) as telemetry:
        begun(telemetry, 2)
        assert first.document()["held_out_loss"] is None
        telemetry.record_held_out(measured)
        assert wait_for(path, lambda found: found["held_out_loss"] is not None)["held_out_loss"] == 3.25
    second = Heartbeat(path, device=CPU, every_s=FAST_S)
    with Telemetry(
        path.with_name("metrics.jsonl"), every=1, append=True, heartbeat=second, out=None
    ) as later:
        assert second.document()["held_out_loss"] == 3.25
        begun(later, 2)
        later.record_held_out(dataclasses.replace(measured, step=2, loss=3.0))
        assert second.document()["held_out_loss"] == 3.0


def test_evaluation_is_a_phase_of_its_own(path: Path) -> None:
    with watched(path, Heartbeat(path, device=CPU, every_s=FAST_S)) as telemetry:
        begun(telemetry, 9)
        telemetry.watch(step(3, 9))
        with telemetry.during("evaluating", "the final evaluation"):
            found = wait_for(path, lambda found: found["phase"] == "evaluating")
            assert (found["detail"], "step" in found) == ("the final evaluation", False)
        assert wait_for(path, lambda found: found["phase"] == "training")["step"] == 4


@pytest.mark.parametrize(("error", "status"), [(None, 0), (ValueError("x"), 1)])
def test_close_writes_the_status_and_ends_the_thread(
    error: Exception | None, status: int, path: Path
) -> None:
    try:
        with watched(path, Heartbeat(path, device=CPU, every_s=3600)):
            if error:
                raise error
    except ValueError:
        pass
    found = read(path)
    assert (found["phase"], found["detail"]) == ("ended", f"exit status {status}")
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}
    assert [file.name for file in path.parent.iterdir() if file.name.startswith(".")] == []


def test_the_file_is_whole_at_any_time(path: Path) -> None:
    """Read a thousand times while it is written as fast as can be."""
    heart = Heartbeat(path, device=CPU, every_s=1e-4)
    heart.start()
    wait_for(path, lambda found: True)
    try:
        assert {read(path)["schema"] for _ in range(1000)} == {1}
    finally:
        heart.close(0)


def test_failing_disk_warns_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    heart = Heartbeat(tmp_path / "gone" / "heartbeat.json", device=CPU, every_s=1e-3)
    heart.start()
    time.sleep(0.05)
    heart.close(0)
    assert err.getvalue().count("\n") == 1
    assert "heartbeat.json' cannot be written: " in err.getvalue()


def test_the_interval_is_the_configurations(run_in: Callable[..., None], tmp_path: Path) -> None:
    assert check([]).telemetry.heartbeat_seconds == 10.0
    run_in(tmp_path, "telemetry.heartbeat_seconds=0.25")
    found = read(tmp_path / "heartbeat.json")
    assert (found["every_seconds"], found["phase"], found["detail"]) == (0.25, "ended", "exit status 0")
