"""Sweep for local, slurm and ray, with a worker or node killed in the middle: twenty trials of a function.

On any engine it ends with the same trials, each completed exactly once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sweeps.experiment import Experiment
from sweeps.space.definition import Choice, Lease, Objective, Program, Range, Search, Space
from sweeps.storage.local import LocalStore
from sweeps.trials.record import Trial

TRIALS = 20
CALL_SECONDS = 0.7
ROOT = Path(__file__).parents[2]
SHARED = (
    *("model.hidden_size=32", "model.intermediate_size=48", "model.layers=2", "model.heads=2"),
    *("model.teacher.max_steps=4", "model.teacher.batch_size=4", "model.teacher.schedule.warmup_steps=1"),
    *(
        "data.max_bytes=300000",
        "data.held_out_fraction=0.2",
        "data.vocab_size=300",
        "data.sequence_length=16",
    ),
    *("stage1.calibration_batches=1", "stage1_9.max_steps=0", "stage2.batch_size=4"),
    *("eval.batches=2", "eval.batch_size=4", "device=cpu", "device.threads=1", "device.parallel=fsdp"),
    "checkpoint.every_steps=10",
)
FUNCTIONS = ROOT / "tests" / "sweeps" / "functions"

SPACE = Space(
    name="same",
    objectives=(Objective(metric="loss"),),
    parameters=(  # a grid needs no Ax
        Choice(name="x", values=(0.0, 0.25, 0.5, 0.75, 1.0)),
        Choice(name="n", values=(1, 2, 3, 4)),
    ),
    program=Program(kind="function", function="objectives_for_tests:recorded"),
    search=Search(method="grid"),
    run_cap=TRIALS,
    lease=Lease(heartbeat_s=0.5, expire_s=4, max_attempts=5),
)


def create(folder: Path, program: Program | None = None) -> Experiment:
    """Create the sweep in a folder, without a trial."""
    space = replace(SPACE, program=program or SPACE.program)
    return Experiment.create(LocalStore(folder / "store" / "same"), space)


def create_shared(folder: Path, steps: int = 60) -> Experiment:
    """Create a sweep of one trial, a small training run that two hosts share."""
    space = replace(
        SPACE,
        name="shared",
        objectives=(Objective(metric="final_loss"),),
        parameters=(Range(name="stage2.optimizer.lr", min=1e-3, max=8e-3, kind="float"),),
        program=Program(kind="trainer", overrides=(*SHARED, f"stage2.max_steps={steps}"), nodes=2),
        search=Search(method="random"),
        run_cap=1,
    )
    return Experiment.create(LocalStore(folder / "store" / "shared"), space)


def listening(folder: Path) -> Program:
    """Return a program that never ends, and writes a line to `signals` when it gets SIGTERM, like a trainer."""
    script = folder / "listens.sh"
    script.write_text(f"trap 'echo $$ >> {folder}/signals; exit 75' TERM\nwhile :; do sleep 0.1; done\n")
    return Program(kind="command", command=("bash", str(script), "${overrides}"))


def variables(folder: Path) -> dict[str, str]:
    """Return the workers' environment: our packages, the objective, and where it writes its lines."""
    return {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(FUNCTIONS)]),
        "CALLS": str(folder / "calls"),
        "CALL_SECONDS": str(CALL_SECONDS),
        "OMP_NUM_THREADS": "1",
    }


def wait_for(condition: Callable[[], object], what: str, seconds: float = 120.0) -> None:
    """Poll five times a second. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.2)


def done(experiment: Experiment) -> int:
    """Return the number of completed trials."""
    return sum(record.status == "completed" for record in experiment.trials())


def assert_done(experiment: Experiment, folder: Path, *, lost: int) -> list[Trial]:
    """Assert that every trial is completed once, and return them.

    Args:
        experiment: the sweep.
        folder: as in `create`.
        lost: attempts that may have finished but were killed before they could report it.
    """
    records = experiment.trials()
    assert [record.trial for record in records] == list(range(TRIALS))
    assert {record.status for record in records} == {"completed"}
    expected = sorted(f"{record.parameters['x']!r} {record.parameters['n']!r}" for record in records)
    calls = (folder / "calls").read_text().splitlines()
    assert sorted(set(calls)) == sorted(set(expected))
    assert TRIALS <= len(calls) <= TRIALS + lost
    return records
