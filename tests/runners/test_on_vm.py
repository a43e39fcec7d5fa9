"""The keeper on the VM: its exit status says what became of the worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.on_vm import main


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (42, 2), (7, 1)])
def test_the_workers_end_is_the_keepers(tmp_path: Path, monkeypatch, status, expected):
    monkeypatch.setattr("runners.signals.Told.listen", lambda self: None)
    log = tmp_path / "worker.log"
    argv = ["--log", str(log), "--restarts", "0", "--grace", "5", "--"]
    assert main([*argv, "bash", "-c", 'echo "$@"; exit "$1"', "--", str(status), "--grace"]) == expected
    assert log.read_text() == f"{status} --grace\n"
