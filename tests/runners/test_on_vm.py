"""The supervisor on the VM: its exit status tells how the worker ended."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from runners.on_vm import main


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (42, 2), (7, 1)])
def test_the_workers_end_is_the_supervisors(tmp_path: Path, monkeypatch, status, expected):
    monkeypatch.setattr("runners.workers.signals.StopSignal.listen", lambda self: None)
    log = tmp_path / "worker.log"
    argv = ["--log", str(log), "--restarts", "0", "--grace", "5", "--"]
    assert main([*argv, "bash", "-c", 'echo "$@"; exit "$1"', "--", str(status), "--grace"]) == expected
    assert log.read_text() == f"{status} --grace\n"


def test_told_to_go_it_tells_the_worker_and_waits_for_it(tmp_path: Path):
    log = tmp_path / "worker.log"
    worker = "trap 'echo handed back; exit 75' TERM; echo up; while :; do sleep 0.02; done"
    argv = ["--log", str(log), "--restarts", "0", "--grace", "20", "--", "bash", "-c", worker]
    with subprocess.Popen(
        [sys.executable, "-m", "runners.on_vm", *argv], stderr=subprocess.PIPE
    ) as supervisor:
        deadline = time.monotonic() + 60
        while not (log.exists() and log.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
        supervisor.terminate()
        assert supervisor.wait(60) == 75
    assert log.read_text() == "up\nhanded back\n"
