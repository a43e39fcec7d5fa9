"""When a checkpoint is written, how many stay, and that training neither waits for one nor ends with one."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from kept_runs import names

from trainer.checkpoint import writer
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.checkpoint.layout import newest
from trainer.checkpoint.manifest import WEIGHTS, verified
from trainer.checkpoint.parts import MODEL
from trainer.checkpoint.policy import Parts
from trainer.checkpoint.state import State
from trainer.config import CheckpointConfig
from trainer.errors import TrainerError


class Weight:
    """A part with one tensor, which tells its step."""

    def __init__(self) -> None:
        self.tensor = torch.zeros(1000)

    def state(self) -> State:
        return State(tensors={"weight": self.tensor})

    def restore(self, state: State) -> None:
        self.tensor.copy_(state.tensors["weight"])


class Run:
    """Steps that a test takes itself."""

    def __init__(self, folder: Path, found: object = None, **config: float) -> None:
        self.folder, self.warnings = folder, list[str]()
        (folder / "metrics.jsonl").touch()
        given = {
            "every_steps": 0,
            "every_seconds": 0.0,
            "keep": 2,
            "format": "auto",
            "notice_seconds": 0,
        } | config
        self.checkpoints = Checkpoints(
            folder / "checkpoints",
            metrics=folder / "metrics.jsonl",
            config=CheckpointConfig(**given),
            config_sha256="0",
            found=found,
            peak_memory=lambda: 0,
            warn=self.warnings.append,
        )
        self.weight = Weight()

    def steps(self, count: int, each: Callable[[int], None] = lambda step: None) -> None:
        parts = Parts(lasting={MODEL: self.weight}, passing={}, trace=Weight())
        with self.checkpoints, self.checkpoints.stage("stage", count, lambda: parts) as kept:
            for step in range(kept.done + 1, count + 1):
                self.weight.tensor.fill_(step)
                with (self.folder / "metrics.jsonl").open("a") as lines:
                    lines.write(f"{step}\n")
                kept.after(step, {"lr": 0.1})
                each(step)

    def wait(self, step: int = 0) -> None:
        while self.checkpoints.busy:
            time.sleep(0.001)


@pytest.fixture(autouse=True)
def _no_power_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Writing takes until the event is set."""
    go, really = threading.Event(), writer.write

    def waiting(root: Path, snapshot: writer.Snapshot) -> Path:
        assert go.wait(20)
        return really(root, snapshot)

    monkeypatch.setattr(writer, "write", waiting)
    yield go
    go.set()


@pytest.mark.parametrize(
    ("every", "keep", "expected"),
    [(0, 2, []), (5, 2, [5, 10]), (3, 1, [12]), (3, 3, [6, 9, 12]), (12, 2, [12]), (13, 2, [])],
)
def test_every_so_many_steps_and_only_the_newest_stay(every, keep, expected, tmp_path: Path) -> None:
    run = Run(tmp_path, every_steps=every, keep=keep)
    run.steps(12, each=run.wait)
    assert [int(name) for name in names(tmp_path)] == expected
    latest = tmp_path / "checkpoints" / "latest"
    assert (latest.read_text() if expected else "") == (f"{expected[-1]:08d}\n" if expected else "")
    assert all(not path.name.startswith(".") for path in tmp_path.rglob("*"))


def test_every_so_many_seconds_since_the_last_one(tmp_path: Path, monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    run = Run(tmp_path, every_seconds=10.0, keep=9)

    def step(number: int) -> None:
        run.wait()
        now[0] += 4.0

    run.steps(8, each=step)
    assert [int(name) for name in names(tmp_path)] == [4, 7]  # after 12 and after 24 seconds


def test_training_does_not_wait_for_the_writer(slow, tmp_path: Path) -> None:
    run = Run(tmp_path, every_steps=2, keep=9)

    def step(number: int) -> None:
        if number == 5:
            assert names(tmp_path) == []  # that of step 2 is still being written, that of step 4 is owed
            slow.set()
            run.wait()

    run.steps(7, each=step)
    assert [int(name) for name in names(tmp_path)] == [2, 6]
    for name, value in (("00000002", 2), ("00000006", 6)):  # the copy is the step's, not the writing's
        folder = tmp_path / "checkpoints" / name
        assert verified(folder).step == value
        assert set(load(folder)) == {float(value)}
        assert (folder / "metrics.copy").read_text().splitlines() == [str(n + 1) for n in range(value)]


def load(folder: Path) -> list[float]:
    from safetensors.torch import load_file

    return load_file(folder / WEIGHTS)["weight"].tolist()


def fail_at(monkeypatch: pytest.MonkeyPatch, *calls: int) -> None:
    """The disk is full at these calls of the one function that writes tensors."""
    made, really = [0], writer.save_file

    def full(tensors: object, path: Path) -> None:
        made[0] += 1
        if made[0] in calls:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        really(tensors, path)

    monkeypatch.setattr(writer, "save_file", full)


def test_full_disk_with_an_older_checkpoint_goes_on(tmp_path, monkeypatch) -> None:
    fail_at(monkeypatch, 3, 4, 5)  # the second to the fourth: two files of the first are written before
    run = Run(tmp_path, every_steps=2, keep=9)
    run.steps(10, each=run.wait)
    assert [int(name) for name in names(tmp_path)] == [2, 10]
    (warning,) = run.warnings
    assert warning.startswith("the checkpoint after 4 steps ")
    assert "(No space left on device)" in warning
    assert warning.endswith("after 2 steps")
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3


def test_full_disk_without_a_checkpoint_ends_the_run(tmp_path, monkeypatch) -> None:
    fail_at(monkeypatch, *range(100))
    run, reached = Run(tmp_path, every_steps=2), list[int]()

    def step(number: int) -> None:
        reached.append(number)
        run.wait()

    with pytest.raises(TrainerError, match=r"\(No space left on device\) and none stands"):
        run.steps(6, each=step)
    assert reached == [1, 2]
    assert names(tmp_path) == []
    assert run.warnings == []


def test_a_folder_that_cannot_be_made_is_told_as_well(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    run = Run(tmp_path, every_steps=2)
    run.steps(2)
    assert "(Not a directory)" in run.warnings[0]


def test_resumed_run_counts_steps_and_keeps_on(tmp_path: Path) -> None:
    run = Run(tmp_path, every_steps=4, keep=2)
    run.steps(9, each=run.wait)
    resumed = Run(tmp_path, found=newest(tmp_path / "checkpoints", "0", pytest.fail), every_steps=5, keep=2)
    steps = list[int]()
    resumed.steps(12, each=lambda step: (steps.append(step), resumed.wait()))
    assert steps == [9, 10, 11, 12]
    assert [int(name) for name in names(tmp_path)] == [8, 10]
    assert resumed.weight.tensor[0] == 12


def test_state_that_does_not_fit_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    from trainer.checkpoint.parts import Weights

    run = Run(tmp_path, every_steps=1)
    run.steps(2, each=run.wait)
    resumed = Run(tmp_path, found=newest(tmp_path / "checkpoints", "0", pytest.fail))
    resumed.weight = Weights(torch.nn.Linear(2, 2))
    with pytest.raises(TrainerError, match=r"\(model: .*checkpoints/"):
        resumed.steps(3)
