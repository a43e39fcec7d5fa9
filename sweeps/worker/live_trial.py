"""A running trial as the Python code that computes it has it: parameters, reports, and the request to stop.

A report is a line of `metrics.jsonl` in the run folder, as a program in a process of its own would write it:
the heartbeat reads it from there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sweeps.errors import EnvironmentFault, InputError
from sweeps.space.definition import Value
from sweeps.trials import record, storable
from sweeps.trials.record import LOSS
from sweeps.worker.progress_log import METRICS_FILE


class Trial:
    """Trial that this process runs. Threads may share it.

    Args:
        claimed: its record.
        folder: the run folder of the attempt.
        wants_stop: returns whether it should end.

    Attributes:
        index: its number in the sweep, from 0.
        parameters: the active parameters and their values.
        folder: a folder of its own for checkpoints, logs and the like; kept with the sweep.
        stopped: whether `should_stop` has been true: then what it returns is no result.
    """

    def __init__(self, claimed: record.Trial, folder: Path, wants_stop: Callable[[], bool]) -> None:
        self.index: int = claimed.trial
        self.parameters: dict[str, Value] = dict(claimed.parameters)
        self.folder: Path = folder
        self.stopped = False
        self._wants_stop = wants_stop
        self._file = folder / METRICS_FILE
        self._file.unlink(missing_ok=True)  # of an earlier attempt, or a lost record whose index was reused

    def __repr__(self) -> str:
        return f"Trial({self.index}, {self.parameters})"

    @property
    def should_stop(self) -> bool:
        """Return whether to end now, without a result: the trial falls behind, or its worker has to leave.

        It changes with a heartbeat, every `lease.heartbeat_s`.

        Example:
            >>> import sweeps
            >>> sweep = sweeps.create(SPACE | {"name": "stops"})
            >>> with sweep.ask() as trial:
            ...     for step in range(3):
            ...         trial.report(step=step, loss=1 / (step + 1))
            ...         if trial.should_stop:
            ...             break
            ...     status = sweep.tell(trial, 1 / 3)
            >>> status
            'completed'
        """
        if self._wants_stop():
            self.stopped = True
        return self.stopped

    def report(self, *, step: float, loss: float | None = None, **more: float | str) -> None:
        """Report intermediate values: for `sweep status` and, by `loss`, for early stopping.

        Args:
            step: of the training, ascending.
            loss: the training's; lower is better, whatever the objective. `held_out_loss`, if there is one,
                is compared in its place.
            more: any other numbers or texts, such as `of` (the last step). With `stage`, losses are compared
                within the stage: use `held_out_loss` then.

        Raises:
            InputError: a value is neither a number nor a text.
            EnvironmentFault: the run folder cannot be written.

        Example:
            >>> import sweeps
            >>> sweep = sweeps.create(SPACE | {"name": "reports"})
            >>> with sweep.ask() as trial:
            ...     trial.report(step=1, loss=0.7, accuracy=0.4)
            ...     status = sweep.tell(trial, 0.7)
        """
        line = {"step": step} | ({} if loss is None else {LOSS: loss}) | more
        document = {name: self._reported(name, value) for name, value in line.items()}
        if isinstance(document["step"], str | None):
            raise InputError(f"trial {self.index}: report(step={step!r:.80}): write a finite number")
        try:
            fd = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(fd, json.dumps(document).encode() + b"\n")
            finally:
                os.close(fd)
        except OSError as error:
            problem = (error.strerror or type(error).__name__).lower()
            raise EnvironmentFault(f"{self._file}: cannot be written: {problem}") from error

    def _reported(self, name: str, value: Any) -> Value | None:
        """Return a value as JSON has it; None for a number that is not finite."""
        if isinstance(value, bool | str):
            return value
        if not hasattr(value, "__float__"):
            raise InputError(
                f"trial {self.index}: report({name}=…) is a {type(value).__name__}; give a number or a text"
            )
        return storable.number(value)
