"""Weights & Biases: one run per training run, tagged with its stages. Opened by `channels`.

Telemetry is never a reason to fail a run, nor to delay one: all of wandb but its import runs on a thread
aside, whatever it raises is told once on stderr, and training goes on. A run that ends waits CLOSING_S for it
at most, and LEAVING_S if it was told to go, for a machine may be gone soon after.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.config import Config
from trainer.config.redaction import without_secrets
from trainer.devices.background_calls import BackgroundExecutor
from trainer.errors import EXIT_PREEMPTED
from trainer.text import Lines

CLOSING_S = 30.0
LEAVING_S = 5.0


class WandbRun:
    """A run that is on, or that has failed and does nothing any more.

    Args:
        start: makes wandb's run; called on the thread aside.
        closing_s, leaving_s: how long `close` waits, in place of the constants.
    """

    def __init__(
        self, start: Callable[[], Any], *, closing_s: float | None = None, leaving_s: float | None = None
    ) -> None:
        self._closing_s = CLOSING_S if closing_s is None else closing_s
        self._leaving_s = LEAVING_S if leaving_s is None else leaving_s
        self._run: Any = None
        self._off = self._closed = False
        self._executor = BackgroundExecutor(self._failed)

        def begin() -> None:
            self._run = start()

        self._executor.submit(begin)

    def tag(self, stage: str) -> None:
        """Adds the stage to the run's tags."""

        def add() -> None:
            self._run.tags = (*(self._run.tags or ()), stage)

        self._do(add)

    def log(self, line: Mapping[str, Any]) -> None:
        """One line of metrics, each named `stage/metric`; its warnings become wandb's alerts."""
        values = {f"{line['stage']}/{k}": v for k, v in line.items() if isinstance(v, int | float)}
        self._do(lambda: self._run.log(values))
        for warning in line.get("warnings", ()):
            self._alert(title=warning["check"], text=warning["message"])

    def summarise(self, metrics: Mapping[str, Any]) -> None:
        """The final metrics, into the run's summary."""
        self._do(lambda: self._run.summary.update({k: v for k, v in metrics.items() if v is not None}))

    def close(self, status: int) -> None:
        """Marks the run finished, or failed where `status` is not 0."""
        if self._closed:
            return
        self._closed = True

        def finish() -> None:
            if self._run is not None:  # also one that is off: unfinished, it would be waited for at exit
                self._run.finish(exit_code=status)

        wait = self._leaving_s if status == EXIT_PREEMPTED else self._closing_s
        self._executor.submit(finish)
        if not self._executor.shutdown(wait):
            self._complain(f"it has not finished within {wait:g} s and is left behind")

    def _alert(self, title: str, text: str) -> None:
        self._do(lambda: self._run.alert(title=title, text=text))

    def _do(self, act: Callable[[], object]) -> None:
        def unless_off() -> None:
            if not self._off:
                act()

        if not self._off and not self._executor.submit(unless_off):
            self._complain("it does not answer")

    def _failed(self, error: Exception) -> None:
        self._complain(str(error))

    def _complain(self, problem: str) -> None:
        if self._off:
            return
        self._off = True
        _tell(problem)


def open_wandb(config: Config, folder: Path) -> WandbRun | None:
    """The run that the configuration asks for, about to start; None if it is disabled."""
    if config.wandb.mode == "disabled":
        return None
    shown = without_secrets(asdict(config))
    told = shown["wandb"]

    def start() -> Any:
        return wandb.init(
            mode=config.wandb.mode,
            project=told["project"],
            group=told["group"],
            name=told["name"],
            tags=told["tags"],
            config=shown,
            dir=folder,
            settings=wandb.Settings(silent=True, console="off"),
        )

    try:
        import wandb  # not aside: a signal amid imports has to wait, which only the main thread can see to
    except Exception as error:  # noqa: BLE001 - see the top of the file
        _tell(str(error))
        return None
    return WandbRun(start)


def _tell(problem: str) -> None:
    told = without_secrets(" ".join(problem.split()))
    Lines(sys.stderr).write(f"trainer: warning: wandb is off for this run: {told}")
