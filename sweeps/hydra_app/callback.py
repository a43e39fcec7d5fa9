"""Hydra callback that writes a trial's task function's return value to `result.json` in the run folder.

`app` puts it on the application's command line, so that the application needs no change.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from sweeps.text.atomic_file import Draft
from sweeps.trials.by_metric import by_metric

RUN_DIR = "SWEEP_RUN_DIR"


class WriteResult(Callback):
    """Callback that writes the result for the worker.

    Args:
        metrics: names of the task function's return values: of one number, or of a tuple's members.
    """

    def __init__(self, metrics: Sequence[str]) -> None:
        self.metrics = [str(name) for name in metrics]

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Write `result.json`, except for a task that raised: its exit status and the log say so."""
        if job_return.status is not JobStatus.COMPLETED:
            return
        folder = Path(os.environ[RUN_DIR])
        with Draft(folder / "result.json", folder / ".result.json.draft") as draft:
            draft.file.write(json.dumps(result(job_return.return_value, self.metrics)).encode())
            draft.commit()


def result(returned: Any, metrics: Sequence[str]) -> dict[str, Any]:
    """Return the result document for a task function's return value.

    A value that is no number fails the trial, with the reason in the status. A number that is not finite
    becomes null: the trial diverged.
    """
    try:
        values = by_metric(returned, metrics)
    except ValueError as error:
        return _failed_result(f"returned {error}; hydra.sweeper.metric names the metrics")
    found: dict[str, float | None] = {}
    for name, value in values.items():
        number = _number(value)
        if number is not None:
            found[str(name)] = number if math.isfinite(number) else None
        elif name in metrics:
            return _failed_result(f"returned {value!r} as {name}; return a number")
    # With the status "completed" it would count after SIGTERM, too, which a task may survive.
    return {"schema": 1, "metrics": found}


def _number(value: Any) -> float | None:
    """Return a number of Python, NumPy or torch as a float; None for anything else."""
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _failed_result(why: str) -> dict[str, Any]:
    return {"schema": 1, "status": f"failed: the task function {why}"}
