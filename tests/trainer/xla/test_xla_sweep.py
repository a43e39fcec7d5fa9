"""A sweep whose trials are trained through XLA, by the commands that a person types. Two processes of the
trainer, the smallest that there are."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Ran

pytestmark = pytest.mark.xla

SPACE = """
name: on-xla
objectives: [{metric: final_loss, goal: minimize}]
program:
  trainer:
    overrides:
      - device=xla
      - device.threads=1
      - device.dtype=float32
      - model.hidden_size=16
      - model.intermediate_size=32
      - model.layers=1
      - model.heads=1
      - model.teacher.max_steps=2
      - model.teacher.batch_size=2
      - model.teacher.schedule.warmup_steps=1
      - data.max_bytes=300000
      - data.held_out_fraction=0.2
      - data.vocab_size=300
      - data.sequence_length=16
      - stage1.subln=ones
      - stage1_9.max_steps=0
      - stage2.max_steps=4
      - stage2.batch_size=2
      - stage2.schedule.warmup_steps=1
      - stage2.lambda_warmup.warmup_steps=2
      - eval.batches=2
      - eval.batch_size=2
parameters:
  stage2.optimizer.lr: {min: 1.0e-3, max: 1.2e-2, distribution: log_uniform_values}
search: {method: bayes, sobol: 2, seed: 0}
run_cap: 2
"""


@pytest.mark.timeout(900)
def test_a_sweep_runs_on_xla_from_end_to_end(tmp_path: Path, sweep: Callable[..., Ran]) -> None:
    """The worker is a process of its own, and so are its trainers; the other commands need none."""
    (tmp_path / "space.yaml").write_text(SPACE)
    storage = ("--storage", str(tmp_path / "store"))
    assert sweep("init", str(tmp_path / "space.yaml"), *storage).status == 0
    command = [sys.executable, "-m", "sweeps", "worker", "--exit-when-idle", *storage]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ})
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert sweep("export", str(tmp_path / "trials.csv"), *storage).status == 0
    with (tmp_path / "trials.csv").open() as table:
        trials = list(csv.DictReader(table))
    assert [trial["status"] for trial in trials] == ["completed"] * 2
    assert len({trial["final_loss"] for trial in trials}) == 2
    assert all(float(trial["compile_seconds"]) > 0 for trial in trials)
