"""Repair of a sweep without guessing, planned first (`plan`) and done on request (`carry_out`).

Every step checks the version of the object that it changes, so a concurrent worker wins, and the step reports
that. No record is deleted: a torn one is moved to `quarantine/`, and nothing is made up in its place. A
second repair finds nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal, cast

from sweeps.errors import IllegalTransition, StoreConflict, SweepError
from sweeps.experiment import Experiment
from sweeps.search.allocation import ASK_KEY
from sweeps.storage.base import NotFound, Store
from sweeps.storage.local import LocalStore
from sweeps.text.counted import counted
from sweeps.text.shorten import shown_bytes
from sweeps.transfer import stored_stages
from sweeps.trials import control, lifecycle
from sweeps.trials import record as trial
from sweeps.upkeep import amended, runs
from sweeps.upkeep.checkpoints import Mismatch, listed
from sweeps.upkeep.inventory import QUARANTINE, Survey
from sweeps.upkeep.runs import RUNS

Kind = Literal[
    "torn",
    "strange",
    "expired",
    "lock",
    "superseded",
    "half",
    "damaged",
    "vanished",
    "unnamed",
    "unpublished",
    "draft",
    "pack",
]


@dataclass(frozen=True, kw_only=True)
class RepairStep:
    """Step of a repair: `what` will be done, and where. `carry_out` does it."""

    kind: Kind
    what: str
    where: str
    action: Callable[[], object] = field(repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a step; `reason` says why it was not done."""

    step: RepairStep
    state: Literal["done", "overtaken", "failed"]
    reason: str = ""


def plan(experiment: Experiment, survey: Survey) -> list[RepairStep]:
    """Return the steps that repair the sweep; foreign objects and newer records are left alone."""
    store, lease = experiment.store, experiment.space.lease
    event = lifecycle.Expire(after_s=lease.expire_s, max_attempts=lease.max_attempts)
    hand_back = [
        RepairStep(
            kind="expired",
            what=f"take trial {record.trial} back from {record.worker}, whose lease has expired",
            where=store.location(trial.key(record.trial)),
            action=partial(experiment.apply, record.trial, event),
        )
        for record in survey.expired(lease.expire_s)
    ]
    return [
        *_quarantine(store, survey),
        *hand_back,
        *_remove_leftovers(experiment, survey),
        *_mend_checkpoints(experiment, survey),
    ]


def carry_out(step: RepairStep) -> Outcome:
    """Do one step. A store's error is returned, not raised: the next step may succeed."""
    try:
        step.action()
    except (StoreConflict, NotFound, IllegalTransition) as error:
        return Outcome(step=step, state="overtaken", reason=str(error))
    except (SweepError, ValueError, OSError) as error:
        return Outcome(step=step, state="failed", reason=str(error))
    return Outcome(step=step, state="done")


# ---- torn objects


def _quarantine(store: Store, survey: Survey) -> Iterator[RepairStep]:
    """Yield steps that move what cannot be read to `quarantine/`."""
    now = survey.now
    for stored in survey.of_state("torn"):
        # A person may want to save its results; their parameters are not known.
        prefix = f"{RUNS}{stored.index:06d}/"
        entries = [e.key for run in survey.runs if run.prefix.startswith(prefix) for e in run.entries]
        results = [entry for entry in entries if entry.endswith("/result.json")]
        hint = f" ({results[-1]} may hold its results)" if results else ""
        yield RepairStep(
            kind="torn",
            what=f"move the record of trial {stored.index} to {QUARANTINE}: {stored.reason}{hint}",
            where=store.location(stored.key),
            action=partial(_move_aside, store, stored.key, stored.data, stored.version, now),
        )
    if survey.damaged_control is not None:
        reason, data, version = survey.damaged_control
        yield RepairStep(
            kind="torn",
            what=f"move it to {QUARANTINE}, which lets the sweep go on: {reason}",
            where=store.location(control.KEY),
            action=partial(_move_aside, store, control.KEY, data, version, now),
        )
    for oddity in survey.oddities if isinstance(store, LocalStore) else ():  # no files: they cannot be copied
        yield RepairStep(
            kind="strange",
            what=f"move this entry to {QUARANTINE}: {oddity.reason}",
            where=store.location(oddity.key),
            action=partial(cast(LocalStore, store).set_aside, oddity.key, _quarantine_key(oddity.key, now)),
        )
    for found in survey.amendments:
        if found.reason and not found.is_newer:
            yield RepairStep(
                kind="torn",
                what=f"move this change of the sweep's limits to {QUARANTINE}: {found.reason}",
                where=store.location(found.key),
                action=partial(amended.empty, store, found, _quarantine_key(found.key, now)),
            )


def _quarantine_key(key: str, now: float) -> str:
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return f"{QUARANTINE}{key.rpartition('/')[2]}-{stamp}"


def _move_aside(store: Store, key: str, data: bytes, version: str, now: float) -> None:
    """Copy, then delete the version that was copied; an interruption leaves both, never none."""
    aside = _quarantine_key(key, now)
    copy = store.create(aside, data)
    try:
        store.delete(key, version)
    except StoreConflict:
        store.delete(aside, copy)  # it was repaired in the meantime
        raise


# ---- leftovers


def _remove_leftovers(experiment: Experiment, survey: Survey) -> Iterator[RepairStep]:
    """Yield steps that remove what interrupted programs left: a lease, runs, uploads, drafts."""
    store = experiment.store
    if (lock := survey.dead_lock(experiment.space.lease.expire_s)) is not None:
        yield RepairStep(
            kind="lock",
            what=f"remove the lease that {lock.holder} left behind",
            where=store.location(ASK_KEY),
            action=partial(store.delete, ASK_KEY, lock.version),
        )
    for run in survey.superseded_runs():
        size = shown_bytes(runs.size(store, run))
        yield RepairStep(
            kind="superseded",
            what=f"remove {size} of trial {run.index}'s attempt {run.attempt}: a later one completed it",
            where=store.location(run.prefix),
            action=partial(runs.remove, store, run),
        )
    for run in survey.half_uploads():
        size = f"{shown_bytes(runs.size(store, run))} ({counted(len(run.entries), 'object')})"
        yield RepairStep(
            kind="half",
            what=f"remove {size} of trial {run.index}'s attempt {run.attempt}: an upload was cut short, "
            "no manifest names them",
            where=store.location(run.prefix),
            action=partial(runs.remove, store, run),
        )
    for pack, (version, why) in survey.packs.items():
        yield RepairStep(
            kind="pack",
            what=f"remove these copies of records, which workers make anew: {why}",
            where=store.location(pack),
            action=partial(store.delete, pack, version),
        )
    for draft in survey.drafts:
        yield RepairStep(
            kind="draft",
            what="remove the draft of a writer that was killed",
            where=str(draft),
            action=partial(Path.unlink, draft, missing_ok=True),
        )


def _mend_checkpoints(experiment: Experiment, survey: Survey) -> Iterator[RepairStep]:
    """Yield steps that make records and checkpoints agree; a running trial's record is its worker's."""
    for found in survey.checkpoints:
        if found.running or found.state == "newer":
            continue
        stage, short = found.stored, found.key[:12]
        taken = shown_bytes(0 if stage is None else stage.size)
        match found.state:
            case "damaged":
                what = (
                    f"remove {taken} of the snapshot {short}, from which no trial can start: {found.reason}"
                )
            case "vanished":
                what = f"take the snapshot {short}, which is gone, out of {listed(found.trials)}"
            case "unnamed":
                what = f"remove {taken} of the snapshot {short}, which no record has as stored"
            case "unpublished":
                what = f"remove {taken} of the snapshot {short} that no manifest names"
        yield RepairStep(
            kind=found.state,
            what=what,
            where=experiment.store.location(stored_stages.prefix(found.key)),
            action=partial(_mend_checkpoint, experiment, found),
        )


def _mend_checkpoint(experiment: Experiment, found: Mismatch) -> None:
    """Take it out of the records first: what is cut short here is found again, as unnamed or unpublished."""
    for index in found.trials:
        experiment.apply(index, lifecycle.Forget(key=found.key))
    if found.state == "unpublished" and found.stored is not None:
        stored_stages.remove_files(experiment.store, found.key, found.stored.parts)
    elif found.stored is not None:
        stored_stages.remove(experiment.store, found.stored)
