"""Control of a running sweep: its switch, trials that are retried, abandoned or reported (`sweep tell`)."""

from __future__ import annotations

import getpass
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sweeps.errors import IllegalTransition, InputError
from sweeps.experiment import Experiment
from sweeps.programs.result import Failed, parse_result, stated_failure
from sweeps.storage.base import Store
from sweeps.trials import actions, control, lifecycle, storable
from sweeps.trials.amendments import ARCHIVED
from sweeps.trials.record import Trial

USER = "SWEEP_USER"
"""Environment variable: who is noted, instead of the login name and the machine."""
ByPeople = type[lifecycle.Retry] | type[lifecycle.Abandon]
_VERBS = {"running": "resume", "paused": "pause", "stopped": "stop"}


def user_name() -> str:
    """Return who does something, for the record: $SWEEP_USER, or the login name and the machine."""
    if given := storable.line(os.environ.get(USER, "")).strip():
        return given
    try:
        login = getpass.getuser()
    except (KeyError, OSError):
        login = "somebody"
    return f"{login}@{platform.node() or 'host'}"


def set_state(store: Store, state: control.State, by: str) -> None:
    """Change the switch, and note by whom. Only a stopped sweep stays in the archive.

    Raises `DamagedObject` and `SweepNotFound`.
    """
    if state != "stopped" and (amendments := Experiment.open(store).amendments).archived:
        amendments.add({ARCHIVED: False}, by)
    control.write(store, state, by)
    actions.note(store, _VERBS[state], by)


def apply_to_all(
    experiment: Experiment, indices: Sequence[int], kind: ByPeople, by: str, reason: str = ""
) -> list[Trial]:
    """Retry or abandon these trials, each once, note by whom, and return them.

    Raises:
        InputError: one of them does not allow it; nothing was changed, unless it has just changed itself.
    """
    indices = list(dict.fromkeys(indices))
    event = kind(by=f"{by}: {reason}" if reason else by)
    require_allowed([experiment.trial(index) for index in indices], event, experiment.store.now())
    with _input_errors():
        changed = [experiment.apply(index, event) for index in indices]
    what = actions.about_trials("retry" if kind is lifecycle.Retry else "abandon", indices)
    actions.note(experiment.store, f"{what}: {reason}" if reason else what, by)
    return changed


def require_allowed(records: Sequence[Trial], event: lifecycle.Event, now: float) -> None:
    """Raise `InputError` if one of the trials does not allow the event at this time of the store."""
    with _input_errors():
        for record in records:
            lifecycle.apply(record, event, now)


@contextmanager
def _input_errors() -> Iterator[None]:
    """Raise `InputError` in place of `IllegalTransition`."""
    try:
        yield
    except IllegalTransition as refused:
        raise InputError(f"trial {refused.trial} is {refused.status}: {refused.why}") from None


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
    mine = lifecycle.holder(record)
    if record.worker is None and record.history:
        mine["worker"] = record.history[-1].worker
    event: lifecycle.Event
    if (stated := stated_failure(document, where)) is not None:
        event = lifecycle.Fail(**mine, error=stated.error, failure=stated.failure)
    else:
        judged = parse_result(experiment.space, document, where)
        if isinstance(judged, Failed):
            raise InputError(judged.error)  # the trial stays open: the file is wrong, not the trial
        event = lifecycle.Complete(**mine, metrics=judged.metrics)
    try:
        return experiment.apply(index, event)
    except IllegalTransition:
        raise InputError(
            f"trial {index} was reported before: it is {record.status}; a different second report is refused"
        ) from None
