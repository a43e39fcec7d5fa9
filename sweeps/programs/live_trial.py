"""A running trial for the Python code that computes it: parameters, reports, and the request to stop.

A report is a line of `metrics.jsonl` in the run folder, as a program in a process of its own would write it:
the heartbeat reads it from there.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sweeps.errors import EnvironmentFault, InputError
from sweeps.programs.progress_log import HELD_OUT, MAX_LINE, METRICS_FILE
from sweeps.space.definition import Objective, to_plain
from sweeps.trials import record, storable
from sweeps.trials.record import LOSS

_LOSSES = (LOSS, HELD_OUT)
_NUMBERS = (*_LOSSES, "step", "of")
"""What early stopping reads as numbers."""


class Trial:
    """Trial that this process runs. Threads may share it.

    Attributes:
        index: its number in the sweep, from 0.
        parameters: the active parameters and their values.
        folder: a folder of its own for checkpoints, logs and the like; kept with the sweep.
        stopped: whether `should_stop` has been true: then the returned value is not a result.
    """

    _stacklevel = 2  # of warnings: the line that calls `report`

    def __init__(
        self, claimed: record.Trial, folder: Path, wants_stop: Callable[[], bool], objective: Objective
    ) -> None:
        self.index: int = claimed.trial
        self.parameters: dict[str, Any] = {n: to_plain(v) for n, v in claimed.parameters.items()}
        self.folder: Path = folder
        self.stopped = False
        self._wants_stop, self._objective = wants_stop, objective
        self._file = folder / METRICS_FILE
        self._file.unlink(missing_ok=True)  # of an earlier attempt, or a lost record whose index was reused

    def __repr__(self) -> str:
        return f"Trial({self.index}, {self.parameters})"

    @property
    def should_stop(self) -> bool:
        """Return whether to end now, without a result: the trial falls behind, or its worker has to leave.

        It changes with a heartbeat, every `lease.heartbeat_s`.

        Examples:
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

    def report(
        self,
        value: float | None = None,
        /,
        step: float | None = None,
        *,
        loss: float | None = None,
        **more: float | str,
    ) -> None:
        """Report intermediate values: for `sweep status` and, by `loss`, for early stopping.

        Args:
            value: the loss, as in Optuna's `trial.report(value, step)`.
            step: of the training, from 0, ascending.
            loss: the training's; lower is better, whatever the objective, and NaN is the worst. None: it was
                not measured at this step. `held_out_loss`, if there is one, is compared in its place.
            more: any other numbers or texts, such as `of` (the last step). With `stage`, losses are compared
                within the stage: use `held_out_loss` then.

        Raises:
            InputError: a value is neither a number nor a text, the step is not a number from 0, or a loss is
                no number; nothing was reported.
            EnvironmentFault: the run folder cannot be written.

        Examples:
            >>> import sweeps
            >>> sweep = sweeps.create(SPACE | {"name": "reports"})
            >>> with sweep.ask() as trial:
            ...     trial.report(0.9, step=1)
            ...     trial.report(step=2, loss=0.7, accuracy=0.4)
            ...     status = sweep.tell(trial, 0.7)
        """
        if step is None:
            raise InputError(
                f"trial {self.index}: report(step=None): say which step, such as report(0.5, step=10)"
            )
        if value is not None:
            if loss is not None:
                raise InputError(f"trial {self.index}: report({value!r:.80}, loss=…): write one of the two")
            loss = value
        line = {"step": step} | ({} if loss is None else {LOSS: loss}) | more
        document = {name: self._json_value(name, value) for name, value in line.items()}
        at = document["step"]
        if at is None or at < 0:
            raise InputError(f"trial {self.index}: report(step={step!r:.80}): write a finite number from 0")
        if value is not None and self._objective.goal == "maximize":
            warnings.warn(  # without the value, so that a loop warns once
                "trial.report(value): early stopping takes lower for better, and "
                f"{self._objective.metric} is maximised; write report(loss=…, step=…)",
                stacklevel=self._stacklevel,
            )
        data = json.dumps(document).encode() + b"\n"
        if len(data) > MAX_LINE:
            raise InputError(
                f"trial {self.index}: report(step={step!r:.80}) has {len(data)} bytes, more than {MAX_LINE}; "
                "write the rest into a file in `folder`"
            )
        try:
            fd = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(fd, data)
            finally:
                os.close(fd)
        except OSError as error:
            problem = (error.strerror or type(error).__name__).lower()
            raise EnvironmentFault(f"{self._file}: cannot be written: {problem}") from error

    def _json_value(self, name: str, value: Any) -> Any:
        """Return a value as JSON has it. Only a loss may be NaN or infinite; another such number is None."""
        if not storable.is_name(name):
            raise InputError(f"trial {self.index}: report({name!a:.80}=…): nothing can be called so")
        if name not in _NUMBERS and isinstance(value, bool | str):
            return storable.text(value) if isinstance(value, str) else value
        try:
            if isinstance(value, bool | str | bytes):  # `float` would read a text
                raise TypeError(value)
            number = float(value)
        except OverflowError:
            number = math.inf
        except Exception:  # noqa: BLE001 - a user's object may raise anything in `__float__`
            kinds = "a number" if name in _NUMBERS else "a number or a text"
            shown = repr(value) if isinstance(value, bool | str) else f"a {type(value).__name__}"
            raise InputError(f"trial {self.index}: report({name}=…) is {shown:.80}; give {kinds}") from None
        return number if name in _LOSSES and not math.isfinite(number) else storable.number(value)
