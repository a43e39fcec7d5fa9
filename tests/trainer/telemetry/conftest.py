"""Whole runs in this process, as `python -m trainer` makes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trainer import __main__ as program
from trainer.api import check
from trainer.pipeline import Outcome
from trainer.training.preemption import StopSignal


@pytest.fixture
def run_in(small: tuple[str, ...]) -> Callable[..., Outcome]:
    """`run_in(folder, *overrides)`: a small run with all its files."""

    def run(folder: Path, *overrides: str) -> Outcome:
        return program.train_in(folder, check([*small, *overrides, f"run_dir={folder}"]), StopSignal())

    return run
