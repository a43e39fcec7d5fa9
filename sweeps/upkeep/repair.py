"""`sweep repair`: what can be mended in a sweep without guessing, planned first and done when it is wanted.

Every step names the version that it saw, so a worker that is at the same object wins, and the step says so.
No record is deleted: a torn one is moved to `quarantine/`, and nothing is made up in its place. A second
repair finds nothing to do. The command line calls `plan` and `carry_out`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

from sweeps.errors import IllegalTransition, StoreConflict, SweepError
from sweeps.experiment import Experiment
from sweeps.search.allocation import ASK_KEY
from sweeps.storage.base import NotFound, Store
from sweeps.storage.local import LocalStore
from sweeps.text.counted import counted
from sweeps.trials import control, lifecycle
from sweeps.trials import record as trial
from sweeps.upkeep import run_files
from sweeps.upkeep.inventory import QUARANTINE, StoredRecord, Survey
from sweeps.upkeep.machine import shown_bytes
from sweeps.upkeep.runs import RUNS

Kind = Literal["torn", "strange", "expired", "outdated", "lock", "superseded", "half", "draft"]


@dataclass(frozen=True, kw_only=True)
class Mend:
    """One step of a repair: `what` will be done, and where. `carry_out` does it."""

    kind: Kind
    what: str
    where: str
    step: Callable[[], object] = field(repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a step went; `told` says why where it was not done."""

    mend: Mend
    state: Literal["done", "overtaken", "failed"]
    told: str = ""


def plan(experiment: Experiment, survey: Survey) -> list[Mend]:
    """What to do about what the survey found; foreign objects and newer records are left alone."""
    store = experiment.store
    return [
        *_quarantine(store, survey),
        *_set_aside(store, survey),
        *_hand_back(experiment, survey),
        *_rewrite(store, survey),
        *_unlock(experiment, survey),
        *_remove_runs(store, survey),
        *_remove_halves(store, survey),
        *_remove_drafts(survey),
    ]


def carry_out(mend: Mend) -> Outcome:
    """Do one step. Nothing is raised for a store that fails: the next step may well work."""
    try:
        mend.step()
    except (StoreConflict, NotFound, IllegalTransition) as error:
        return Outcome(mend=mend, state="overtaken", told=str(error))
    except (SweepError, ValueError, OSError) as error:
        return Outcome(mend=mend, state="failed", told=str(error))
    return Outcome(mend=mend, state="done")


# ---- torn objects


def _quarantine(store: Store, survey: Survey) -> Iterator[Mend]:
    now = survey.now
    for stored in survey.of_state("torn"):
        told = f"{stored.reason}{_left(survey, stored)}"
        yield Mend(
            kind="torn",
            what=f"move the record of trial {stored.index} to {QUARANTINE}: {told}",
            where=store.location(stored.key),
            step=partial(_move_aside, store, stored.key, stored.data, stored.version, now),
        )
    if survey.damaged_control is not None:
        reason, data, version = survey.damaged_control
        yield Mend(
            kind="torn",
            what=f"move it to {QUARANTINE}, which lets the sweep go on: {reason}",
            where=store.location(control.KEY),
            step=partial(_move_aside, store, control.KEY, data, version, now),
        )


def _left(survey: Survey, stored: StoredRecord) -> str:
    """A hint at results that a person may want to save; we do not guess which parameters they belong to."""
    prefix = f"{RUNS}{stored.index:06d}/"
    results = [
        entry.key
        for run in survey.runs
        if run.prefix.startswith(prefix)
        for entry in run.entries
        if entry.key.endswith("/result.json")
    ]
    return f" ({results[-1]} may hold its results)" if results else ""


def _aside(key: str, now: float) -> str:
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return f"{QUARANTINE}{key.rpartition('/')[2]}-{stamp}"


def _set_aside(store: Store, survey: Survey) -> Iterator[Mend]:
    """What is no file cannot be copied: it is renamed as it is."""
    if not isinstance(store, LocalStore):
        return
    for oddity in survey.oddities:
        yield Mend(
            kind="strange",
            what=f"move what stands there to {QUARANTINE}: {oddity.reason}",
            where=store.location(oddity.key),
            step=partial(store.set_aside, oddity.key, _aside(oddity.key, survey.now)),
        )


def _move_aside(store: Store, key: str, data: bytes, version: str, now: float) -> None:
    """Copy, then remove the version that was copied; an interruption in between leaves both, never none."""
    aside = _aside(key, now)
    copy = store.create(aside, data)
    try:
        store.delete(key, version)
    except StoreConflict:
        store.delete(aside, copy)  # it was mended meanwhile, and the copy is of no use
        raise


# ---- records


def _hand_back(experiment: Experiment, survey: Survey) -> Iterator[Mend]:
    lease = experiment.space.lease
    event = lifecycle.Expire(after_s=lease.expire_s, max_attempts=lease.max_attempts)
    for record in survey.expired(lease.expire_s):
        yield Mend(
            kind="expired",
            what=f"take trial {record.trial} back from {record.worker}, which is silent",
            where=experiment.store.location(trial.key(record.trial)),
            step=partial(experiment.apply, record.trial, event),
        )


def _rewrite(store: Store, survey: Survey) -> Iterator[Mend]:
    for stored in survey.outdated():
        yield Mend(
            kind="outdated",
            what=f"write the record of trial {stored.index} as this version writes it",
            where=store.location(stored.key),
            step=partial(_write_anew, store, stored),
        )


def _write_anew(store: Store, stored: StoredRecord) -> None:
    if stored.trial is not None:
        store.replace(stored.key, trial.encode(stored.trial, uuid.uuid4().hex), stored.version)


# ---- what is left over


def _unlock(experiment: Experiment, survey: Survey) -> Iterator[Mend]:
    if (lock := survey.dead_lock(experiment.space.lease.expire_s)) is None:
        return
    yield Mend(
        kind="lock",
        what=f"remove the lease that {lock.holder} left behind",
        where=experiment.store.location(ASK_KEY),
        step=partial(experiment.store.delete, ASK_KEY, lock.version),
    )


def _remove_runs(store: Store, survey: Survey) -> Iterator[Mend]:
    for run in survey.superseded_runs():
        taken = shown_bytes(run_files.size(store, run))
        yield Mend(
            kind="superseded",
            what=f"remove {taken} of trial {run.index}'s attempt {run.attempt}: a later one completed it",
            where=store.location(run.prefix),
            step=partial(run_files.remove, store, run),
        )


def _remove_halves(store: Store, survey: Survey) -> Iterator[Mend]:
    for run in survey.half_uploads():
        taken = f"{shown_bytes(run_files.size(store, run))} ({counted(len(run.entries), 'object')})"
        yield Mend(
            kind="half",
            what=f"remove {taken} of trial {run.index}'s attempt {run.attempt}: an upload was cut short, "
            "no manifest names them",
            where=store.location(run.prefix),
            step=partial(run_files.remove, store, run),
        )


def _remove_drafts(survey: Survey) -> Iterator[Mend]:
    for draft in survey.drafts:
        yield Mend(
            kind="draft",
            what="remove the draft of a writer that was killed",
            where=str(draft),
            step=partial(Path.unlink, draft, missing_ok=True),
        )
