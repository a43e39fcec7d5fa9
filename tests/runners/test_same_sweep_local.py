"""The sweep that Slurm and Ray go through, on this machine, with one worker killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from changing_folders import find
from same_sweep import assert_done, create, done, variables, wait_for

from runners.pools import pool_file


@pytest.mark.slow
def test_a_killed_worker_leaves_every_trial_done_once(tmp_path: Path) -> None:
    experiment = create(tmp_path)
    extra = variables(tmp_path) | {"CALL_SECONDS": "0.2"}
    environment = [word for name, value in extra.items() for word in ("--env", f"{name}={value}")]
    argv = [
        sys.executable,
        "-m",
        "sweeps",
        "launch",
        "local",
        "--devices",
        "none",
        "--workers",
        "3",
        *environment,
    ]
    with subprocess.Popen(
        [*argv, "--storage", experiment.store.url], env={**os.environ, **extra}
    ) as launched:
        wait_for(lambda: done(experiment) >= 3, "no trial was done")
        (file,) = find(tmp_path, f"**/{pool_file.FILE}")
        known = pool_file.read(file.parent)
        assert known is not None
        os.kill(known.workers[0].pid, signal.SIGKILL)
        assert launched.wait(100) == 0
    assert_done(experiment, tmp_path, lost=1)
