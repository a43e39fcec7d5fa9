"""A shared run that is told to go, or killed, goes on with as many processes as there are then."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from shared_runs import Started, assert_the_same, lines, outcome, take_part_until_measured
from streamed_parquet import streamed, write_parts

pytestmark = pytest.mark.timeout(600)

Start = Callable[..., Started]
Alone = Callable[..., Path]

LONG = (
    *("stage2.max_steps=24", "stage2.schedule.decay_fraction=0.9", "stage2.optimizer.lr=1e-4"),
    "eval.at=[0.5,1.0]",  # FSDP's weights are whole for that, and in parts again for a checkpoint
)


def wait_for_line(started: Started, folder: Path, count: int) -> None:
    deadline = time.monotonic() + 90
    while not (folder / "metrics.jsonl").exists() or len(lines(folder)) < count:
        assert all(process.is_alive() for process in started.processes), started.output(0) + started.output(1)
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_one_process_goes_on_where_two_were_told_to_go(
    parallel: str, start: Start, alone: Alone, tmp_path: Path
) -> None:
    """One of them was told, and the other ends after the same step, with the checkpoint written."""
    folder = tmp_path / "run"
    started = start(folder, *LONG, f"device.parallel={parallel}")
    wait_for_line(started, folder, 9)
    os.kill(started.processes[1].pid or 0, signal.SIGTERM)
    assert started.end() == [75, 75], started.output(0) + started.output(1)
    message = started.output(0).splitlines()[-1]
    (kept,) = (int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdecimal())
    assert message.startswith(f"trainer: stopped by SIGTERM after step {kept - 6} of stage2; ")
    assert started.output(1) == ""
    alone(folder, *LONG)
    assert_the_same(folder, alone(tmp_path / "whole", *LONG))


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_go_on_where_two_were_killed(
    parallel: str, start: Start, alone: Alone, tmp_path: Path
) -> None:
    folder, overrides = tmp_path / "run", (*LONG, f"device.parallel={parallel}", "checkpoint.every_steps=4")
    started = start(folder, *overrides)
    wait_for_line(started, folder, 15)
    for process in started.processes:
        process.kill()
    started.end()
    again = start(folder, *overrides)
    assert again.end() == [0, 0], again.output(0) + again.output(1)
    first, second = again.output(0).splitlines()[:2]
    assert first.startswith("preflight: ")
    assert second.startswith("going on after ")
    assert_the_same(folder, alone(tmp_path / "whole", *LONG))


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_killed_run_on_streamed_text_goes_on_as_if_nothing_had_happened(
    parallel: str, start: Start, alone: Alone, small: tuple[str, ...], tmp_path: Path
) -> None:
    """On two processes bit for bit, and on one: each had lanes of its own."""
    write_parts(tmp_path)
    small = streamed(small, tmp_path)
    overrides = (*LONG, f"device.parallel={parallel}", "checkpoint.every_steps=4", "save_model=true")
    folder, unbroken, one = (tmp_path / name for name in ("run", "unbroken", "one"))
    whole = start(unbroken, *overrides, common=small)
    assert whole.end() == [0, 0], whole.output(0) + whole.output(1)
    started = start(folder, *overrides, common=small)
    wait_for_line(started, folder, 15)
    for process in started.processes:
        process.kill()
    started.end()
    shutil.copytree(folder, one)
    again = start(folder, *overrides, common=small)
    assert again.end() == [0, 0], again.output(0) + again.output(1)
    assert again.output(0).splitlines()[1].startswith("going on after ")
    assert outcome(folder) == outcome(unbroken)
    assert_the_same(alone(one, *LONG, "save_model=true", common=small), unbroken)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parallel", "when"),
    [("fsdp", "the final evaluation"), ("fsdp", "the start of stage2"), ("ddp", "the final evaluation")],
)
def test_preempted_evaluation_keeps_the_training(
    parallel: str, when: str, start: Start, tmp_path: Path
) -> None:
    """Between two stages FSDP's parameters are whole, in memory that goes once somebody asks for their parts."""
    folder, overrides = tmp_path / "run", (f"device.parallel={parallel}",)
    started = start(folder, *overrides, target=functools.partial(take_part_until_measured, when))
    assert started.end() == [75, 75], started.output(0) + started.output(1)
    assert started.output(0).splitlines()[-1].startswith(f"trainer: stopped by SIGTERM after {when}; ")
    again = start(folder, *overrides)
    assert again.end() == [0, 0], again.output(0) + again.output(1)
    assert "after step 6 of stage" in again.output(0)
    unbroken = start(tmp_path / "unbroken", *overrides)
    assert unbroken.end() == [0, 0], unbroken.output(0) + unbroken.output(1)
    assert_the_same(folder, tmp_path / "unbroken")
