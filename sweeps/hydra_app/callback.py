"""In the application of a trial: what its task function returned becomes `result.json` in the run folder.

`app` puts it on the application's command line as a Hydra callback, so that the application needs no change.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from sweeps.text.atomic_file import Draft
from sweeps.text.counted import counted

RUN_DIR = "SWEEP_RUN_DIR"


class WriteResult(Callback):
    """Writes the result where the worker looks for it.

    Args:
        metrics: names of what the task function returns: of its one number, or of a tuple's members.
    """

    def __init__(self, metrics: Sequence[str]) -> None:
        self.metrics = [str(name) for name in metrics]

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Write nothing for a task that raised: its traceback is in the log, and its exit status says so."""
        if job_return.status is not JobStatus.COMPLETED:
            return
        folder = Path(os.environ[RUN_DIR])
        with Draft(folder / "result.json", folder / ".result.json") as draft:
            draft.file.write(json.dumps(result(job_return.return_value, self.metrics)).encode())
            draft.commit()


def result(returned: Any, metrics: Sequence[str]) -> dict[str, Any]:
    """The document for what a task function returned. What is no number is told in the status, which
    fails the trial with these words; a number that is not finite becomes null, a trial that diverged."""
    told: Mapping[Any, Any]
    if isinstance(returned, Mapping):
        told = returned
    elif isinstance(returned, tuple | list):
        if len(returned) != len(metrics):
            return _failed(
                f"returned {counted(len(returned), 'value')} for {counted(len(metrics), 'metric')}; "
                "name each in hydra.sweeper.metric"
            )
        told = dict(zip(metrics, returned, strict=True))
    elif len(metrics) == 1:
        told = {metrics[0]: returned}
    else:
        return _failed(f"returned one value for the metrics {', '.join(metrics)}; return a tuple or a dict")
    found: dict[str, float | None] = {}
    for name, value in told.items():
        number = _number(value)
        if number is not None:
            found[str(name)] = number if math.isfinite(number) else None
        elif name in metrics:
            return _failed(f"returned {value!r} as {name}; return a number")
    return {"schema": 1, "status": "completed", "metrics": found}


def _number(value: Any) -> float | None:
    """A number of Python's, NumPy's or torch's; None for anything else."""
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _failed(why: str) -> dict[str, Any]:
    return {"schema": 1, "status": f"failed: the task function {why}"}
