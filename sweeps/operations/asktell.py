"""Report of the result of a trial that `sweep ask` handed out without a lease."""

from __future__ import annotations

from typing import Any

from sweeps.errors import IllegalTransition, InputError
from sweeps.experiment import Experiment
from sweeps.programs.result import Failed, parse_result, stated_failure
from sweeps.trials import lifecycle
from sweeps.trials.record import Trial


def report(experiment: Experiment, index: int, document: Any, where: str) -> Trial:
    """End a trial with a result, and return its record. The same report twice changes nothing.

    Raises:
        InputError: the result is wrong, or the trial is not one that was asked for; it stays as it was.
    """
    record = experiment.trial(index)
    if record.status == "running" and record.heartbeat is not None:
        raise InputError(f"trial {index} is being run by {record.worker}; only it can report")
    if record.status == "pending":
        raise InputError(f"trial {index} is pending: nobody has asked for it; see `sweep ask`")
    owner = record.worker or (record.history[-1].worker if record.history else "")
    event: lifecycle.Event
    if (stated := stated_failure(document, where)) is not None:
        event = lifecycle.Fail(
            worker=owner, attempt=record.attempt, error=stated.error, failure=stated.failure
        )
    else:
        judged = parse_result(experiment.space, document, where)
        if isinstance(judged, Failed):
            raise InputError(judged.error)  # the trial stays open: the file is wrong, not the trial
        event = lifecycle.Complete(worker=owner, attempt=record.attempt, metrics=judged.metrics)
    try:
        return experiment.apply(index, event)
    except IllegalTransition:
        raise InputError(
            f"trial {index} was reported before: it is {record.status}; a different second report is refused"
        ) from None
