"""Runs in this process, ended at a step of choice, and gone on with in the same folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kept_runs import SHORT, Attempt, Publish, Uninterrupted, outcome_of, terminate

from trainer import __main__ as program
from trainer import pipeline
from trainer.api import check, stage_keys, stage_trunks
from trainer.layout import SNAPSHOTS_FOLDER
from trainer.outcome import Outcome
from trainer.telemetry.run import Telemetry
from trainer.training.preemption import StopSignal
from trainer.training.train_step import TrainStep


@pytest.fixture
def attempt(small: tuple[str, ...], keep_signals: None, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    """`attempt(folder, *overrides, end=kill, at=7)`: a run in a folder, ended after so many steps in all."""
    taken = 0
    how: tuple[Callable[[], None] | None, int] = (None, 0)
    watch = Telemetry.watch

    def watching(self: Telemetry, step: object) -> None:
        nonlocal taken
        watch(self, step)  # type: ignore[arg-type]
        taken += 1
        if how[0] and taken == how[1]:
            how[0]()

    monkeypatch.setattr(Telemetry, "watch", watching)

    def attempt(folder: Path, *overrides: str, end: Callable[[], None] | None = None, at: int = 0) -> Outcome:
        nonlocal taken, how
        taken, how = 0, (end, at)
        stop = StopSignal()
        stop.install()
        given = [*small, *overrides, f"run_dir={folder}"]
        return program.train_in(
            folder, check(given), stop, keys=stage_keys(given), trunks=stage_trunks(given)
        )

    return attempt


@pytest.fixture
def uninterrupted(
    attempt: Attempt,
    small: tuple[str, ...],
    remembered: Callable[[str, Callable[[], str]], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Uninterrupted:
    """`uninterrupted(*overrides)`: the outcome of the run without an interruption. Each is run once in the session."""

    def run(overrides: tuple[str, ...]) -> str:
        folder = tmp_path_factory.mktemp("uninterrupted")
        return outcome_of(attempt(folder, *overrides), folder)

    return lambda *overrides: remembered(f"uninterrupted {(*small, *overrides)}", lambda: run(overrides))


@pytest.fixture
def publish(
    attempt: Attempt,
    remembered: Callable[[str, Callable[[], str]], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Publish:
    """See `Publish`. Each is computed once in the session."""

    def publish(folder: Path, *overrides: str) -> Path:
        def run() -> str:
            source = tmp_path_factory.mktemp("publisher")
            attempt(
                source, *SHORT, *overrides, "stage2.max_steps=0", "stage3.max_steps=0", "snapshots.write=true"
            )
            return str(source / SNAPSHOTS_FOLDER)

        source = Path(remembered(f"published {overrides}", run))
        return Path(shutil.copytree(source, folder / SNAPSHOTS_FOLDER)) / "stage1_9"

    return publish


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stage of each step that is computed from now on."""
    stages: list[str] = []
    step = TrainStep.__call__

    def counting(self: TrainStep, *args: object, **named: object) -> object:
        stages.append(self.plan.name)
        return step(self, *args, **named)

    monkeypatch.setattr(TrainStep, "__call__", counting)
    return stages


@pytest.fixture
def signal_in_evaluation(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """`signal_in_evaluation(stage)`: the first evaluation of that name is told to end; return those that were."""

    def ending(where: str) -> list[str]:
        measure, signalled = pipeline.held_out_loss, list[str]()

        def measuring(*arguments: Any, stage: str, **options: Any) -> object:
            if stage == where and not signalled:
                signalled.append(stage)
                terminate()
            return measure(*arguments, stage=stage, **options)

        monkeypatch.setattr(pipeline, "held_out_loss", measuring)
        return signalled

    return ending
