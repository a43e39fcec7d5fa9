"""Shared runs as people and workers start them: through torchrun, and through the launcher of a sweep."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from shared_runs import assert_the_same, lines

from sweeps.programs import process
from trainer import api

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

Alone = Callable[..., Path]
ENVIRONMENT = {"PYTHONPATH": str(Path(api.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


def test_torchrun(small: tuple[str, ...], alone: Alone, tmp_path: Path) -> None:
    overrides = [*small, "device.parallel=ddp", f"run_dir={tmp_path / 'two'}"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "-m", "trainer", *overrides],
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert_the_same(tmp_path / "two", alone(tmp_path / "one"))


def test_a_worker_stops_a_shared_trial_and_goes_on_with_it(
    small: tuple[str, ...], alone: Alone, tmp_path: Path
) -> None:
    folder, log = tmp_path / "run", tmp_path / "log.txt"
    longer = ("stage2.max_steps=24", "stage2.optimizer.lr=1e-4")
    command = api.command([*small, *longer, "device.parallel=fsdp"], folder, processes=2)

    def some_steps_are_done() -> bool:
        return (folder / api.METRICS_FILE).exists() and len(lines(folder)) > 8

    def run(should_stop: Callable[[], bool]) -> int:
        return process.run(command, log_file=log, env=ENVIRONMENT, should_stop=should_stop, grace_s=300)

    assert run(some_steps_are_done) == 75, log.read_text()
    assert run(lambda: False) == 0, log.read_text()
    assert "going on after step " in log.read_text()
    assert_the_same(folder, alone(tmp_path / "whole", *longer))
