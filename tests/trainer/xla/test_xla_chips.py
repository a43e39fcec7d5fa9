"""Several chips share each batch in one process, and train as one of them does. XLA's CPU plays four."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from stage_runs import run_stage

from trainer.api import ConfigError, check
from trainer.device import open_device
from trainer.optim.fit import require_device

pytestmark = pytest.mark.xla

BATCH = ("stage2.batch_size=8", "stage2.micro_batch_size=4")
# How a process sees its devices is settled when it starts, so the chips have one of their own.
IN_FOUR = """
import json, sys
import conftest
from stage_runs import run_stage
ran = run_stage("stage2", "xla", *sys.argv[1:])
print(json.dumps([ran.parts, ran.compiled[2:], ran.launched[1:], ran.chips, ran.rows]))
"""


def test_one_chip_and_four_have_the_same_losses_of_the_same_batches_and_four_have_a_quarter_each() -> None:
    command = [sys.executable, "-c", IN_FOUR, *BATCH, "device.num_chips=4"]
    folder = str(Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    parts, compiled, launched, chips, rows = json.loads(done.stdout.splitlines()[-1])
    one = run_stage("stage2", "xla", *BATCH)
    assert (chips, rows, one.chips) == (4, [[1, 16]] * 4, 1)
    assert parts["loss"] == pytest.approx(one.parts["loss"], rel=1e-4)
    assert compiled == [0] * 5
    assert launched == [1] * 6


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (("device.compile=true",), r"device\.compile: XLA compiles by itself"),
        (("device.parallel=ddp",), r"device\.parallel: the chips of a TPU share a run in one process"),
        (("optimizer@stage2.optimizer=adamw_8bit",), r"stage2\.optimizer\.type: adamw_8bit has no kernels"),
        (
            ("stage3.max_steps=6", "stage3.attention_weight=1.0", "device.recompute=true"),
            r"device\.recompute: recomputation on XLA hides",
        ),
    ],
)
def test_what_xla_cannot_do_is_refused_in_one_line(overrides: tuple[str, ...], problem: str) -> None:
    config = check(["device=xla", *overrides])
    with pytest.raises(ConfigError, match=f"^{problem}"):
        require_device(config, open_device(config.device))
