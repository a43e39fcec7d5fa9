"""Control of a running sweep: its switch, and trials that are retried or given up."""

from __future__ import annotations

import getpass
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sweeps.errors import IllegalTransition, InputError
from sweeps.experiment import Experiment
from sweeps.storage.base import Store
from sweeps.trials import actions, control, lifecycle, storable
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
    """Change the switch, and note by whom."""
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
    with _explained():
        changed = [experiment.apply(index, event) for index in indices]
    what = actions.about_trials("retry" if kind is lifecycle.Retry else "abandon", indices)
    actions.note(experiment.store, f"{what}: {reason}" if reason else what, by)
    return changed


def require_allowed(records: Sequence[Trial], event: lifecycle.Event, now: float) -> None:
    """Raise `InputError` if one of the trials does not allow the event at this time of the store."""
    with _explained():
        for record in records:
            lifecycle.apply(record, event, now)


@contextmanager
def _explained() -> Iterator[None]:
    """Raise `InputError` in place of `IllegalTransition`."""
    try:
        yield
    except IllegalTransition as refused:
        raise InputError(f"trial {refused.trial} is {refused.status}: {refused.why}") from None
