"""A run that two processes share is the run of one: the same batches, the same losses to rounding."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from shared_runs import TIMEOUT_S, Started, assert_the_same, metrics, take_part
from trainer_precision import FLOAT32

pytestmark = pytest.mark.timeout(600)  # several processes, each of which loads torch

Start = Callable[..., Started]
Alone = Callable[..., Path]

ALL_STAGES = (
    *FLOAT32,
    "stage1_9.saliency.enabled=true",
    "stage1_9.saliency.update_interval=2",
    "stage1_9.micro_batch_size=1",
    "stage3.max_steps=3",
    "stage3.batch_size=4",
    "stage3.schedule.warmup_steps=1",
    "eval.batches=3",  # not a multiple of the processes
    "eval.at=[0.5,1.0]",
    "eval.part_batches=1",  # one process has none of it
)


@pytest.mark.parametrize("parallel", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp"])
def test_two_processes_come_to_what_one_comes_to(
    parallel: str, start: Start, alone: Alone, tmp_path: Path
) -> None:
    recompute = f"device.recompute={str(parallel == 'fsdp').lower()}"  # changes no bit in one process
    how = (
        ("device.parallel=fsdp", "device.teacher=sharded") if parallel == "fsdp" else ("device.parallel=ddp",)
    )
    started = start(tmp_path / "two", *ALL_STAGES, recompute, *how)
    expected = alone(tmp_path / "one", *ALL_STAGES)
    assert started.end() == [0, 0], started.output(1)
    assert_the_same(tmp_path / "two", expected)
    assert started.output(0).count("final_loss") == 1
    assert started.output(1) == ""  # one of them speaks


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("device.parallel=ddp", "device.recompute=true"),
        ("device.parallel=ddp", "stage2.optimizer.type=muonclip", "stage2.optimizer.muonclip.tau=0.001"),
        ("device.parallel=ddp", "recovery.max_steps=4", "recovery.batch_size=4", *FLOAT32),
        ("device.parallel=fsdp", "stage2.optimizer.type=apollo", "stage2.optimizer.apollo.rank=4"),
        ("device.parallel=fsdp", "stage2.optimizer.type=adamw"),
        ("device.parallel=fsdp", "stage2.optimizer.type=muonclip", "stage2.optimizer.muonclip.tau=0.001"),
        ("device.parallel=fsdp", "average.type=ema", "average.decay=0.6", *FLOAT32),
    ],
    ids=lambda overrides: " ".join(overrides[:2]),
)
def test_whatever_the_settings(
    overrides: tuple[str, ...], start: Start, alone: Alone, tmp_path: Path
) -> None:
    if any(each.startswith("recovery.") for each in overrides):
        pytest.importorskip("peft")
        overrides = (*overrides, "recovery.schedule.warmup_steps=1")
    expected = alone(tmp_path / "one", *overrides[1:])
    started = start(tmp_path / "two", *overrides)
    assert started.end() == [0, 0], started.output(1)
    assert_the_same(tmp_path / "two", expected)


def test_all_processes_diverge_at_the_same_step(start: Start, tmp_path: Path) -> None:
    started = start(tmp_path / "two", "stage2.optimizer.lr=1e30", "device.parallel=ddp")
    assert started.end() == [70, 70], started.output(1)
    assert started.output(0).splitlines()[-1].startswith("trainer: diverged: ")
    assert started.output(1) == ""


@pytest.mark.parametrize("how", ["whole", pytest.param("sharded", marks=pytest.mark.slow)])
def test_nobody_waits_for_the_hooks_of_the_first(how: str, start: Start, tmp_path: Path) -> None:
    """They may take longer than a process waits for another."""
    folder = tmp_path / "run"
    kept = ("save_model=true", "checkpoint.every_steps=1", f"checkpoint.format={how}")
    started = start(folder, *kept, "device.parallel=ddp", "hooks.names=['shared_runs:exam']")
    first, second = started.processes
    second.join(TIMEOUT_S)
    assert (first.exitcode, second.exitcode) == (None, 0), started.output(0) + started.output(1)
    (folder / "go on").touch()
    assert started.end() == [0, 0], started.output(0) + started.output(1)
    assert metrics(folder)["exam_letters"] > 0
    assert not (folder / "checkpoints").exists()
    assert (started.output(0).count("warning"), started.output(1)) == (0, "")


def test_a_signal_ends_the_hooks_of_the_first(start: Start, tmp_path: Path) -> None:
    """A machine that is to be preempted does not last as long as a hook; the next one calls it again."""
    folder = tmp_path / "run"
    hooked = ("device.parallel=ddp", "hooks.names=['shared_runs:exam']")
    started = start(folder, *hooked)
    first, second = started.processes
    second.join(TIMEOUT_S)
    until = time.monotonic() + TIMEOUT_S
    while not (folder / "exam begun").exists() and time.monotonic() < until:
        time.sleep(0.1)
    first.terminate()
    assert started.end() == [75, 0], started.output(0) + started.output(1)
    said = started.output(0).splitlines()[-1]
    assert said == "trainer: stopped by SIGTERM; the same command goes on from its checkpoint"
    loss = metrics(folder)["final_loss"]
    (folder / "go on").touch()
    resumed = start(folder, *hooked)
    assert resumed.end() == [0, 0], resumed.output(0) + resumed.output(1)
    assert (metrics(folder)["exam_letters"] > 0, metrics(folder)["final_loss"]) == (True, loss)
    assert not (folder / "checkpoints").exists()


def test_a_run_that_is_not_to_be_shared_is_refused_by_each(start: Start, tmp_path: Path) -> None:
    started = start(tmp_path / "two")
    assert started.end() == [2, 2]
    assert started.output(0).startswith("trainer: error: device.parallel: ")
    # A scheduler may have set its variables for something else, and no first process be there.
    assert started.output(1).startswith("trainer: process 1: error: device.parallel: ")
    assert not (tmp_path / "two").exists()


def take_part_with_more_text(argv: list[str], environment: dict[str, str], output: Path) -> None:
    """One process of a run, with more text than those of lower rank, as of another Python or unlike files."""
    take_part([*argv, f"data.max_bytes={300_000 + 50_000 * int(environment['RANK'])}"], environment, output)


def test_processes_that_read_different_texts_are_refused(start: Start, tmp_path: Path) -> None:
    started = start(tmp_path / "two", "device.parallel=ddp", target=take_part_with_more_text)
    assert started.end() == [1, 1], started.output(0)
    for rank, who in enumerate(("", "process 1: ")):
        last = started.output(rank).splitlines()[-1]
        assert last.startswith(
            f"trainer: {who}error: process 1 reads another text or tokenizer than process 0"
        )
        assert "Traceback" not in started.output(rank)
