"""How the tests of checkpoints end a run, and what they compare it by."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest
from trainer_outcomes import lines_without_times, weights_digest, without_times

from trainer.api import METRICS_FILE, RESULT_FILE
from trainer.pipeline import Outcome


class Attempt(Protocol):
    """A run in a folder; `end` is called after so many steps of this attempt."""

    def __call__(self, folder: Path, *overrides: str, end: object = None, at: int = 0) -> Outcome: ...


Uninterrupted = Callable[..., str]
"""The outcome of a run with these overrides, without an interruption."""


Publish = Callable[..., Path]
"""`publish(folder, *overrides)`: a run's folder gets the snapshot of a run that had another Stage 2."""

SHORT = (
    *("stage1_9.max_steps=3", "stage2.max_steps=3", "stage2.lambda_warmup.warmup_steps=2"),
    *("eval.at=[0.5,1.0]", "stage2.optimizer.lr=0.002"),
)
"""Two stages of a snapshot's tests."""


class KilledError(BaseException):
    """What a test raises where a real process would get SIGKILL: nothing may be done about it."""


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def kill() -> None:
    raise KilledError


def flip(file: Path) -> None:
    """Change a bit near the end."""
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)


def outcome_of(outcome: Outcome, folder: Path) -> str:
    """All that two runs must have in common, bit for bit."""
    return json.dumps(
        [weights_digest(outcome), without_times(outcome), lines_without_times(folder / METRICS_FILE)],
        indent=1,
    )


def stages_of(folder: Path) -> list[dict]:
    """The stages in a run's result."""
    found: list[dict] = json.loads((folder / RESULT_FILE).read_text())["stages"]
    return found


def warnings_in(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if "snapshot" in line]


def names(folder: Path) -> list[str]:
    """The checkpoints of a run, oldest first."""
    root = folder / "checkpoints"
    return sorted(path.name for path in root.iterdir() if path.name.isdecimal()) if root.is_dir() else []
