"""Weights & Biases: one run per training run, tagged with its stages. Opened by `__main__`.

Telemetry is never a reason to fail a run: whatever wandb raises is told once on stderr, and training goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.config import Config
from trainer.console import Lines
from trainer.redaction import without_secrets


class WandbRun:
    """A run that is on, or that has failed and does nothing any more."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def tag(self, stage: str) -> None:
        """Adds the stage to the run's tags."""

        def add() -> None:
            self._run.tags = (*(self._run.tags or ()), stage)

        self._try(add)

    def log(self, line: Mapping[str, float | str]) -> None:
        """One line of metrics, each named `stage/metric`."""
        values = {f"{line['stage']}/{k}": v for k, v in line.items() if k != "stage"}
        self._try(lambda: self._run.log(values))

    def summarise(self, metrics: Mapping[str, Any]) -> None:
        """The final metrics, into the run's summary."""
        self._try(lambda: self._run.summary.update({k: v for k, v in metrics.items() if v is not None}))

    def close(self, status: int) -> None:
        """Marks the run finished, or failed where `status` is not 0."""
        self._try(lambda: self._run.finish(exit_code=status))
        self._run = None

    def _try(self, act: Callable[[], object]) -> None:
        if self._run is None:
            return
        try:
            act()
        except Exception as error:  # noqa: BLE001 - whatever wandb raises, the run is worth more
            self._run = None
            _complain(error)


def open_wandb(config: Config, folder: Path) -> WandbRun | None:
    """The run that the configuration asks for; None if it is disabled or cannot be started."""
    if config.wandb.mode == "disabled":
        return None
    try:
        import wandb

        shown = without_secrets(asdict(config))
        told = shown["wandb"]
        run = wandb.init(
            mode=config.wandb.mode,
            project=told["project"],
            group=told["group"],
            name=told["name"],
            tags=told["tags"],
            config=shown,
            dir=folder,
            settings=wandb.Settings(silent=True, console="off"),
        )
    except Exception as error:  # noqa: BLE001 - see the top of the file
        _complain(error)
        return None
    return WandbRun(run)


def _complain(error: Exception) -> None:
    told = without_secrets(" ".join(str(error).split()))
    Lines(sys.stderr).write(f"trainer: warning: wandb is off for this run: {told}")
