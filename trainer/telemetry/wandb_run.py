"""Weights & Biases: one run per training run, tagged with its stages. Opened by `run`.

wandb never fails or delays a run: all of it but its import runs in the background, whatever it raises is
reported once on stderr, and training goes on. A run that ends waits for it at most CLOSING_S, and LEAVING_S
if it was preempted, as the machine may soon be gone.
"""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from sweeps.text.atomic_file import atomic_write
from trainer.config import Config
from trainer.devices.background_calls import BackgroundExecutor
from trainer.errors import EXIT_PREEMPTED
from trainer.layout import WANDB_ID_FILE
from trainer.text import Lines, without_secrets

CLOSING_S = 30.0
LEAVING_S = 5.0


class WandbRun:
    """One wandb run, which does nothing any more after a failure.

    Args:
        start: makes wandb's run; called in the background.
        closing_s, leaving_s: timeouts of `close`, in place of the constants.
    """

    def __init__(
        self, start: Callable[[], Any], *, closing_s: float | None = None, leaving_s: float | None = None
    ) -> None:
        self._closing_s = CLOSING_S if closing_s is None else closing_s
        self._leaving_s = LEAVING_S if leaving_s is None else leaving_s
        self._run: Any = None
        self._off = self._closed = False
        self._executor = BackgroundExecutor(lambda error: self._switch_off(str(error)))

        def begin() -> None:
            self._run = start()

        self._executor.submit(begin)

    def tag(self, stage: str) -> None:
        """Add the stage to the run's tags."""
        self.submit(lambda: self._tag(stage))

    def log(self, line: Mapping[str, Any]) -> None:
        """Log a line of metrics, each named `stage/metric`; its warnings become wandb's alerts."""
        self.submit(lambda: self._log(line))

    def replay(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Log the lines of the run that this one goes on from, in one call: so many could not queue."""

        def log_all() -> None:
            for stage, group in groupby(lines, itemgetter("stage")):
                self._tag(stage)
                for line in group:
                    self._log(line)

        self.submit(log_all)

    def summarise(self, metrics: Mapping[str, Any]) -> None:
        """Write the final metrics into the run's summary."""
        self.submit(lambda: self._run.summary.update({k: v for k, v in metrics.items() if v is not None}))

    def close(self, status: int) -> None:
        """Mark the run as finished, or as failed if `status` is not 0."""
        if self._closed:
            return
        self._closed = True

        def finish() -> None:
            if self._run is not None:  # also after a failure: wandb waits at exit for an unfinished run
                self._run.finish(exit_code=status)

        wait = self._leaving_s if status == EXIT_PREEMPTED else self._closing_s
        self._executor.submit(finish)
        if not self._executor.shutdown(wait):
            self._switch_off(f"it has not finished within {wait:g} s and is left behind")

    def _tag(self, stage: str) -> None:
        self._run.tags = (*(self._run.tags or ()), stage)

    def _log(self, line: Mapping[str, Any]) -> None:
        self._run.log({f"{line['stage']}/{k}": v for k, v in line.items() if isinstance(v, int | float)})
        for warning in line.get("warnings", ()):
            self._run.alert(title=warning["check"], text=warning["message"])

    def submit(self, call: Callable[[], object]) -> None:
        """Make a call in the background, unless an earlier one has failed."""

        def unless_off() -> None:
            if not self._off:
                call()

        if not self._off and not self._executor.submit(unless_off):
            self._switch_off("it does not answer")

    def _switch_off(self, problem: str) -> None:
        if self._off:
            return
        self._off = True
        _warn(problem)


def open_wandb(config: Config, folder: Path) -> WandbRun | None:
    """Return the run that the configuration asks for, which starts in the background; None if disabled."""
    if config.wandb.mode == "disabled":
        return None
    shown = without_secrets(asdict(config))
    settings = shown["wandb"]

    def start() -> Any:
        return wandb.init(
            mode=config.wandb.mode,
            project=settings["project"],
            group=settings["group"],
            name=settings["name"],
            id=settings["id"] or _run_id(folder),
            resume="allow",
            tags=settings["tags"],
            config=shown,
            dir=folder,
            settings=wandb.Settings(silent=True, console="off"),
        )

    try:
        import wandb  # not in the background: signals must wait for imports, which the main thread ensures
    except Exception as error:  # noqa: BLE001 - see the top of the file
        _warn(str(error))
        return None
    return WandbRun(start)


def _run_id(folder: Path) -> str:
    """Return the id that the folder keeps for its run, a new one in a new folder."""
    file = folder / WANDB_ID_FILE
    if file.is_file() and re.fullmatch("[a-z0-9]{32}", kept := file.read_text("utf-8", "replace").strip()):
        return kept
    made = uuid.uuid4().hex
    with atomic_write(file) as draft:
        draft.write_text(f"{made}\n", encoding="utf-8")
    return made


def _warn(problem: str) -> None:
    reason = without_secrets(" ".join(problem.split()))
    Lines(sys.stderr).write(f"trainer: warning: wandb is off for this run: {reason}")
