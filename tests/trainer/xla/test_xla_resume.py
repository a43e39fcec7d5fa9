"""A run that ends in its middle goes on, on XLA and from one kind of device to the other; the whole program in
this process, so that graphs are compiled once for all of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from four_chips import in_four

from trainer import __main__ as program
from trainer.api import METRICS_FILE, MODEL_FOLDER, RESULT_FILE, check
from trainer.errors import PreemptedError
from trainer.models.student_folder import load
from trainer.training.preemption import StopSignal
from trainer.training.train_step import TrainStep

pytestmark = pytest.mark.xla

RUN = (
    "device=auto",  # the same configuration on both kinds of device, as a checkpoint demands
    "device.dtype=float32",
    "stage1_9.max_steps=0",
    "checkpoint.every_steps=2",
    "model.layers=1",
    "stage1.subln=ones",
    # Of all optimizers the one with the most to bring back; it draws a projection in the step after the checkpoint.
    "optimizer@stage2.optimizer=apollo",
    "stage2.optimizer.apollo.update_interval=4",
    "log_every=4",  # on XLA: what steps came to is read after the first, the fourth and the last
)
# After step 3, between two checkpoints; without one of its matrices Apollo has other projections.
FREEZE = (
    "auto_freeze.enabled=true",
    "auto_freeze.parameters=['*.norm.weight','*.up_proj.weight']",
    "auto_freeze.every_steps=1",
    "auto_freeze.start_step=2",
    "auto_freeze.patience=1",
    "auto_freeze.threshold=1e9",
)
STEPS, BEFORE_FREEZE, END = 6, 3, 5
# As in test_xla_steps; between two runs on XLA nothing differs.
TOLERANCE = 2e-3

Attempt = Callable[..., list[float]]


class KilledError(BaseException):
    """Where a real process would get SIGKILL: nothing may be done about it."""


def losses(metrics: str) -> list[float]:
    return [json.loads(line)["loss"] for line in metrics.splitlines()]


def kill() -> None:
    raise KilledError


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]


@pytest.fixture
def attempt(small: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> Iterator[Attempt]:
    """`attempt(folder, "xla", end=kill)`: a run, ended in its step `at`; returns all losses so far."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    step = TrainStep.__call__

    def run(
        folder: Path, kind: str, *overrides: str, end: Callable[[], None] | None = None, at: int = END
    ) -> list[float]:
        def ending(self: TrainStep, batch: object, *, number: int) -> object:
            if end is not None and self.plan.name == "stage2" and number == at:
                end()
            return step(self, batch, number=number)  # type: ignore[arg-type]

        monkeypatch.setattr("trainer.devices.device.tpu_host.uses_xla", lambda type_: kind == "xla")
        monkeypatch.setattr(TrainStep, "__call__", ending)
        stop = StopSignal()
        stop.install()
        kept = [override for override in small if not override.startswith("device=")]
        try:
            program.train_in(folder, check([*kept, *RUN, *overrides, f"run_dir={folder}"]), stop)
        except (KilledError, PreemptedError):
            assert end is not None
        lines = lines_of(folder)
        assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
        frozen = [line["step"] for line in lines if line.get("auto_freeze_frozen")]
        assert frozen == ([BEFORE_FREEZE] if FREEZE[0] in overrides else [])[: len(lines) // BEFORE_FREEZE]
        return [line["loss"] for line in lines]

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_run_resumes_on_xla_and_across_devices(attempt: Attempt, tmp_path: Path) -> None:
    def run(folder: str, kind: str, *more: str, **how: Any) -> list[float]:
        losses = attempt(tmp_path / folder, kind, *FREEZE, *more, **how)
        # The first of them compiles both steps: what goes on after it makes no other one.
        compiled = {line["step"] for line in lines_of(tmp_path / folder) if "compile_seconds" in line}
        assert compiled <= {1, BEFORE_FREEZE + 1}
        return losses

    cpu, xla = run("cpu", "cpu"), run("xla", "xla", "save_model=true")
    assert len(cpu) == STEPS
    assert xla == pytest.approx(cpu, rel=TOLERANCE)

    # Killed: the checkpoint after step 4 is the last, and the lines of step 5 are lost.
    run("killed", "xla", end=kill)
    assert run("killed", "xla") == xla
    # Preempted: step 5 is finished, read and saved.
    assert len(run("preempted", "xla", end=terminate)) == END
    assert run("preempted", "xla") == xla

    # Killed before the freeze, of which checkpoint 2 knows one look.
    run("earlier", "xla", end=kill, at=BEFORE_FREEZE)
    shutil.copytree(tmp_path / "earlier", tmp_path / "earlier to cpu")
    assert run("earlier", "xla") == xla
    assert run("earlier to cpu", "cpu") == pytest.approx(cpu, rel=TOLERANCE)

    for first, second in (("cpu", "xla"), ("xla", "cpu")):
        folder = f"{first} to {second}"
        run(folder, first, end=kill)
        assert run(folder, second) == pytest.approx(cpu, rel=TOLERANCE), folder

    results = {
        kind: json.loads((tmp_path / kind / RESULT_FILE).read_text())["metrics"] for kind in ("cpu", "xla")
    }
    assert results["xla"]["final_loss"] == pytest.approx(results["cpu"]["final_loss"], rel=TOLERANCE)
    # What is compiled once and for all is no part of the training's time, and is reported apart.
    assert results["cpu"]["compile_seconds"] == 0
    steps = sum(line.get("compile_seconds", 0) for line in lines_of(tmp_path / "xla"))
    assert results["xla"]["compile_seconds"] > steps + 0.1  # the student and the evaluations are in it, too
    assert results["xla"]["tokens_per_second"] == pytest.approx(
        results["xla"]["tokens"] / results["xla"]["train_seconds"]
    )
    saved = load(tmp_path / "xla" / MODEL_FOLDER).model
    assert {parameter.device.type for parameter in saved.parameters()} == {"cpu"}


def test_run_of_a_mesh_of_chips_resumes_on_one_and_a_cpu(
    attempt: Attempt, small: tuple[str, ...], tmp_path: Path
) -> None:
    begun = [override for override in small if not override.startswith("device=")]
    four = in_four(tmp_path, run=[*begun, *RUN, "save_model=true"])
    # Sharded again: restored tensors have the same sharding, so that steps have the same graph.
    assert set(four["compiled"]) == {0}
    full, again = ((tmp_path / folder / METRICS_FILE).read_text() for folder in ("full", "again"))
    assert losses(again) == losses(full)

    cpu = attempt(tmp_path / "cpu", "cpu", "save_model=true")
    for kind in ("xla", "cpu"):
        shutil.copytree(tmp_path / "middle", tmp_path / f"to {kind}")
        assert attempt(tmp_path / f"to {kind}", kind) == pytest.approx(cpu, rel=TOLERANCE), kind

    ours, theirs = (
        json.loads((tmp_path / folder / RESULT_FILE).read_text())["metrics"]["final_loss"]
        for folder in ("full", "cpu")
    )
    assert ours == pytest.approx(theirs, rel=TOLERANCE)
    saved, expected = (load(tmp_path / folder / MODEL_FOLDER).model for folder in ("full", "cpu"))
    for ours, theirs in zip(saved.parameters(), expected.parameters(), strict=True):
        assert ours.shape == theirs.shape
