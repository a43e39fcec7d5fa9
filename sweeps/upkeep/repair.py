"""Findings of `sweep doctor` and steps of `sweep repair`, which guess nothing. `carry_out_all` does them.

`machine` and `diagnostics` make findings, the latter with steps.

Every step checks the version of the object that it changes, so a concurrent worker wins, and the step reports
that. No record is deleted: a torn one is moved to `quarantine/`, and nothing is made up in its place. A
second repair finds nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, cast

from sweeps.errors import IllegalTransition, StoreConflict, SweepError
from sweeps.experiment import Experiment
from sweeps.storage.base import NotFound, Store
from sweeps.storage.local import LocalStore
from sweeps.transfer import stored_stages
from sweeps.trials import amendments, lifecycle
from sweeps.trials.record import QUARANTINE
from sweeps.upkeep.checkpoints import Mismatch
from sweeps.upkeep.inventory import Unreadable

Level = Literal["problem", "note"]
"""A problem makes `sweep doctor` exit with 1; a note is harmless."""


@dataclass(frozen=True, kw_only=True)
class RepairStep:
    """Step of a repair: `what` will be done, and where. `carry_out` does it."""

    kind: str
    what: str
    where: str
    action: Callable[[], object] = field(repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Problem or note, with its location and remedy.

    Args:
        kind: a short word for programs, such as `torn` or `expired`.
        where: an object's location, a file, or the part of the machine.
        remedy: what a person should do; "" if nothing.
        steps: of `sweep repair`, to be read once: to describe some of them takes a look at many files.
    """

    kind: str
    level: Level = "problem"
    what: str
    where: str
    remedy: str = ""
    steps: Iterable[RepairStep] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a step; `reason` says why it was not done."""

    step: RepairStep
    state: Literal["done", "overtaken", "failed"]
    reason: str = ""


def carry_out_all(experiment: Experiment, steps: Sequence[RepairStep]) -> list[Outcome]:
    """Do the steps in order.

    A worker whose heartbeat is old gets the time for another one before, by which the step is overtaken.
    """
    old = [step.where for step in steps if step.kind in ("expired", "lock")]
    experiment.silence.wait_for_heartbeats(old, experiment.space.lease.heartbeat_s)
    return [carry_out(step) for step in steps]


def carry_out(step: RepairStep) -> Outcome:
    """Do one step. A store's error is returned, not raised: the next step may succeed."""
    try:
        step.action()
    except (StoreConflict, NotFound, IllegalTransition) as error:
        return Outcome(step=step, state="overtaken", reason=str(error))
    except (SweepError, ValueError, OSError) as error:
        return Outcome(step=step, state="failed", reason=str(error))
    return Outcome(step=step, state="done")


def move_aside(store: Store, found: Unreadable, now: float) -> None:
    """Move an object to `quarantine/`; an empty amendment takes the place of one, as no number is used twice.

    It is copied, then the version that was copied is deleted; an interruption leaves both, never none.

    Raises:
        StoreConflict: somebody has repaired it in the meantime.
    """
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    aside = f"{QUARANTINE}{found.key.rpartition('/')[2]}-{stamp}"
    is_amendment = found.key.startswith(amendments.PREFIX)
    empty = amendments.encoded({}, "sweep repair", store.now()) if is_amendment else b""
    if found.data is None or found.version is None:  # no file: it cannot be copied
        cast(LocalStore, store).set_aside(found.key, aside)
        if is_amendment:
            store.create(found.key, empty)
        return
    copy = store.create(aside, found.data)
    try:
        if is_amendment:
            store.replace(found.key, empty, found.version)
        else:
            store.delete(found.key, found.version)
    except StoreConflict:
        store.delete(aside, copy)  # it was repaired in the meantime
        raise


def mend_checkpoint(experiment: Experiment, found: Mismatch) -> None:
    """Take it out of the records first: what is cut short here is found again, as unnamed or unpublished."""
    for index in found.trials:
        experiment.apply(index, lifecycle.Forget(key=found.key))
    if found.state == "unpublished" and found.stored is not None:
        stored_stages.remove_files(experiment.store, found.key, found.stored.parts)
    elif found.stored is not None:
        stored_stages.remove(experiment.store, found.stored)
