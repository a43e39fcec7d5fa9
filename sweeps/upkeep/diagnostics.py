"""Diagnosis of the records and runs of a sweep: from a survey to findings, with the steps that repair them.

Findings that `sweep repair` can repair name it as their remedy.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from pathlib import Path

import psutil

from sweeps.errors import UPDATE, NewerObject
from sweeps.experiment import Experiment
from sweeps.programs.result import RESULT_FILE
from sweeps.search.allocation import ASK_KEY
from sweeps.search.confirm.plan import KEY as CONFIRM_KEY
from sweeps.space.domain import Domain
from sweeps.storage.bucket_url import AZ, S3, parse_url
from sweeps.storage.keys import SWEEP_KEY
from sweeps.text.counted import counted
from sweeps.text.shorten import shown_bytes
from sweeps.transfer import stored_stages
from sweeps.trials import amendments, brake, budget, control, lifecycle
from sweeps.trials.record import QUARANTINE, Trial, key, runs_prefix
from sweeps.upkeep import runs
from sweeps.upkeep.inventory import Survey
from sweeps.upkeep.repair import Finding, Level, RepairStep, mend_checkpoint, move_aside

_FORGOTTEN_S = 24 * 3600.0
_REPAIR = "`sweep repair --yes`"
_REPAIR_IT = "`sweep repair`"
_PUT_BACK = f"put the original back, or let {_REPAIR} move it to {QUARANTINE}"
_SEE_LIMITS = "`sweep status` shows which limits hold, and `sweep extend` sets others"


def examine(experiment: Experiment, survey: Survey) -> list[Finding]:
    """Return every finding, records before runs."""
    return [
        *_unreadable(experiment, survey),
        *_sweep(experiment, survey),
        *_missing_records(experiment, survey),
        *_silent_trials(experiment, survey),
        *_parameters(experiment, survey),
        *_leftovers(experiment, survey),
        *_checkpoints(experiment, survey),
    ]


def plan(experiment: Experiment, survey: Survey) -> list[RepairStep]:
    """Return the steps that repair the sweep; foreign objects are left alone.

    Raises:
        NewerObject: a later version wrote an object. What it says is not known here: to mend the rest might
            remove what it needs, such as a snapshot.
    """
    if (newer := next((found for found in survey.unreadable if found.is_newer), None)) is not None:
        raise NewerObject(newer.key, newer.reason, experiment.store.location(newer.key))
    return [step for finding in examine(experiment, survey) for step in finding.steps]


def _unreadable(experiment: Experiment, survey: Survey) -> Iterator[Finding]:
    """Yield objects that cannot be read, with steps that move them to `quarantine/`."""
    store = experiment.store
    for found in survey.unreadable:
        reason, where = found.reason, store.location(found.key)
        of_limits, is_record = found.key.startswith(amendments.PREFIX), found.index is not None
        if found.is_newer:
            what = f"a later version wrote the record of trial {found.index}"
            if not is_record:
                what = f"a later version has changed this sweep: {found.key}"
            what = f"{what} ({reason}); workers stop at it"
            yield Finding(kind="newer", what=what, where=where, remedy=UPDATE)
            continue
        if not reason:
            yield Finding(
                kind="gap",
                level="note",
                what="a change of the limits is missing, though later ones are there: somebody removed it",
                where=where,
                remedy=_SEE_LIMITS,
            )
            continue
        kind, remedy, step = "torn", _PUT_BACK, f"to {QUARANTINE}: {reason}"
        if of_limits:
            what = f"a change of the sweep's limits cannot be read ({reason})"
            remedy = f"{_PUT_BACK}; then {_SEE_LIMITS}"
            step = f"move this change of the sweep's limits {step}"
        elif found.key == CONFIRM_KEY:
            what = f"the plan of `sweep confirm` cannot be read ({reason})"
            remedy, step = "put the original back; or remove it, and plan anew with `sweep confirm`", ""
        elif found.data is None:
            record = f" as the record of trial {found.index}" if is_record else ""
            kind, what = "strange", f"this object cannot be read{record}: {reason}"
            remedy, step = f"{_PUT_BACK} as it is", f"move this entry {step}"
        elif is_record:
            what = f"the record of trial {found.index} cannot be read ({reason})"
            # A person may want to save its results; their parameters are not known.
            inside = (entry.key for run in survey.runs if run.index == found.index for entry in run.entries)
            results = [entry for entry in inside if entry.endswith(f"/{RESULT_FILE}")]
            hint = f" ({results[-1]} may hold its results)" if results else ""
            step = f"move the record of trial {found.index} {step}{hint}"
        else:
            what = f"the sweep's switch cannot be read ({reason})"
            remedy = (
                f"{_REPAIR} moves it to {QUARANTINE}, and the sweep goes on; then pause it if you meant to"
            )
            step = f"move it to {QUARANTINE}, which lets the sweep go on: {reason}"
        action = partial(move_aside, store, found, survey.now)
        yield Finding(
            kind=kind,
            what=f"{what}; workers stop at it",
            where=where,
            remedy=remedy,
            steps=[RepairStep(kind=kind, what=step, where=where, action=action)] if step else (),
        )


def _sweep(experiment: Experiment, survey: Survey) -> Iterator[Finding]:
    """Yield what is wrong with the sweep as such: paused by itself, failing, or without an end."""
    space, where = experiment.space, experiment.store.location
    if survey.switch is not None and survey.switch.braked:
        yield Finding(
            kind="braked",
            what=f"the sweep has paused itself: {survey.switch.why}",
            where=where(control.KEY),
            remedy=f"{brake.REMEDY}; `sweep retry INDEX` gives a failed trial another try",
        )
    own = [r for r in survey.trials if r.finished and not r.is_imported and r.status != "abandoned"]
    if own and all(record.status == "failed" for record in own):
        last = max(own, key=lambda record: (record.ended or 0.0, record.trial))
        kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(r.failure for r in own).most_common())
        yield Finding(
            kind="all_failed",
            what=f"no trial has completed, {counted(len(own), 'trial')} failed ({kinds}); the last with: "
            f"{(last.error or '').partition(chr(10))[0]}",
            where=where(key(last.trial)),
            remedy=f"`sweep show {last.trial}` has its log; fix the cause, then `sweep retry --failed`",
        )
    for name in budget.unreported(space, survey.trials):
        yield Finding(
            kind="uncounted",
            what=f"no trial reports {name!r}, so that budget.{name} never ends the sweep",
            where=where(SWEEP_KEY),
            remedy=f"report {name!r} as a metric, or limit what is measured anyway: "
            "`sweep extend --budget device_hours=H`",
        )
    if (
        option := None if experiment.store.is_remote else _unshared_locks(Path(experiment.store.url))
    ) is not None:
        yield Finding(
            kind="unshared_locks",
            level="note",
            what=f"the folder is mounted with {option}: machines do not see each other's locks, so workers "
            "of two machines may overwrite one another's records",
            where=where(SWEEP_KEY),
            remedy=f"mount it without {option}, or run all workers on one machine",
        )


def _unshared_locks(folder: Path) -> str | None:
    """Return the option by which a mount keeps the locks of `flock` to this machine, or None."""
    inside = [
        mount
        for mount in psutil.disk_partitions(all=True)
        if folder.resolve().is_relative_to(mount.mountpoint)
    ]
    innermost = max(inside, key=lambda mount: len(mount.mountpoint), default=None)
    if innermost is None or not innermost.fstype.startswith(("nfs", "lustre")):
        return None
    local = ("nolock", "local_lock=flock", "local_lock=all", "localflock")
    return next((each for each in innermost.opts.split(",") if each in local), None)


def _missing_records(experiment: Experiment, survey: Survey) -> Iterator[Finding]:
    where = experiment.store.location
    for index in survey.gaps():
        yield Finding(
            kind="gap",
            what=f"trial {index} has no record, though later trials have: somebody removed it",
            where=where(key(index)),
            remedy="put it back (a bucket keeps deleted objects for some days); no other trial is affected",
        )
    by_trial: defaultdict[int, list[int]] = defaultdict(list)
    for run in survey.ownerless_runs():
        by_trial[run.index].append(run.attempt)
    for index, attempts in by_trial.items():
        moved = index in survey.quarantined
        results = [
            entry.key
            for run in survey.ownerless_runs()
            for entry in run.entries
            if run.index == index and entry.key.endswith(f"/{RESULT_FILE}")
        ]
        save = ""  # how to save its last result
        if results:
            file, folder = where(results[-1]), where(results[-1].rpartition("/")[0])
            if experiment.store.is_remote:
                name = folder.rpartition("/")[2]
                copy = f"gcloud storage cp -r {folder} ."
                if folder.startswith(S3):
                    copy = f"aws s3 cp --recursive {folder} {name}"
                elif folder.startswith(AZ):
                    bucket, name = parse_url(folder)  # the command keeps the folders above
                    copy = f"az storage blob download-batch -d . -s {bucket} --pattern '{name}/*'"
                save = f"copy it here (`{copy}`), then "
                file = f"{name}/{RESULT_FILE}"
            save += f"`sweep import {shlex.quote(file)}` brings its result in; "
        yield Finding(
            kind="ownerless",
            level="note" if moved else "problem",
            what=f"{counted(len(attempts), 'attempt')} of trial {index} left files, "
            + ("and its record is in quarantine/" if moved else "but the trial has no record"),
            where=where(runs_prefix(index).rstrip("/")),
            remedy=f"{save}then remove the folder by hand",
        )


def _silent_trials(experiment: Experiment, survey: Survey) -> Iterator[Finding]:
    lease, where = experiment.space.lease, experiment.store.location
    for record in survey.expired(lease.expire_s):
        # Where a folder has the clock of who writes, this machine's may run ahead of the worker's for ever.
        expire = lifecycle.Expire(
            after_s=lease.expire_s, max_attempts=lease.max_attempts, heartbeat=record.heartbeat
        )
        silent_s = survey.now - (record.heartbeat or 0.0)
        step = RepairStep(
            kind="expired",
            what=f"take trial {record.trial} back from {record.worker}, whose lease has expired",
            where=where(key(record.trial)),
            action=partial(experiment.apply, record.trial, expire),
        )
        yield Finding(
            kind="expired",
            what=f"trial {record.trial} is said to run on {record.worker}: {lifecycle.silence(silent_s)}",
            where=step.where,
            remedy=f"any worker takes it over; {_REPAIR} hands it back without one",
            steps=[step],
        )
    for record in survey.trials:
        asked = record.status == "running" and record.heartbeat is None and record.started is not None
        if asked and survey.now - (record.started or 0.0) > _FORGOTTEN_S:
            days = (survey.now - (record.started or 0.0)) / 86400
            yield Finding(
                kind="untold",
                level="note",
                what=f"`sweep ask` handed trial {record.trial} out {days:.1f} days ago; nobody reported it",
                where=where(key(record.trial)),
                remedy=f"`sweep tell {record.trial} --result FILE`, or `sweep abandon {record.trial}`",
            )


def _parameters(experiment: Experiment, survey: Survey) -> Iterator[Finding]:
    """Yield trials with equal parameters, and those whose parameters are outside the space."""
    domain, where = Domain(experiment.space), experiment.store.location
    alike: defaultdict[Hashable, list[Trial]] = defaultdict(list)
    for record in survey.trials:
        # Of a user, who may repeat a measurement.
        if not (record.is_imported or record.generator == "enqueued"):
            alike[domain.identity(record.parameters)].append(record)
    for records in alike.values():
        if len(records) < 2:
            continue
        unfinished = [record.trial for record in records if not record.finished]
        *others, last = [str(record.trial) for record in records]
        shown = f"{', '.join(others)} and {last}"
        if len(records) > 6:
            shown = f"{', '.join(others[:5])} and {len(records) - 5} more"
        yield Finding(
            kind="duplicate",
            what=f"trials {shown} have the same parameters",
            where=where(key(records[-1].trial)),
            remedy=f"`sweep abandon {unfinished[-1]}`"
            if unfinished
            else "nothing: both were run, and both count",
        )
    for record in survey.trials:
        if record.generator == "confirm":  # another trial's parameters, with a seed that may lie anywhere
            continue
        if (misfit := domain.misfit(domain.configuration(record.parameters))) is None:
            continue
        yield Finding(
            kind="outside",
            level="note" if record.finished else "problem",
            what=f"trial {record.trial} is outside of the search space: {misfit}",
            where=where(key(record.trial)),
            remedy="the search leaves its result out; put the original back, if somebody edited it"
            if record.finished
            else f"`sweep abandon {record.trial}`, or put the original back",
        )


def _leftovers(experiment: Experiment, survey: Survey) -> Iterator[Finding]:
    """Yield what interrupted programs left behind, and objects that no version writes."""
    store = experiment.store
    where = store.location
    if (dead := survey.dead_lock(experiment.space.lease.expire_s)) is not None:
        lock, version = dead
        yield _leftover(
            "lock",
            f"{lock.holder} left while generating a candidate",
            where(ASK_KEY),
            f"the next worker takes it over; {_REPAIR} removes it",
            f"remove the lease that {lock.holder} left behind",
            partial(store.delete, ASK_KEY, version),
        )
    if superseded := survey.superseded_runs():
        yield Finding(
            kind="superseded",
            level="note",
            what=f"files of {counted(len(superseded), 'attempt')} left; later ones completed the trials",
            where=where(superseded[0].prefix),
            remedy=f"{_REPAIR} reports their size and removes them",
            steps=(
                RepairStep(
                    kind="superseded",
                    what=f"remove {shown_bytes(runs.size(store, run))} of trial {run.index}'s attempt "
                    f"{run.attempt}: a later one completed it",
                    where=where(run.prefix),
                    action=partial(runs.remove, store, run),
                )
                for run in superseded
            ),
        )
    if halves := survey.half_uploads():
        yield Finding(
            kind="half",
            level="note",
            what=f"{counted(len(halves), 'upload')} cut short: objects are left that no manifest names",
            where=where(halves[0].prefix),
            remedy=f"they are never read; {_REPAIR} reports their size and removes them",
            steps=(
                RepairStep(
                    kind="half",
                    what=f"remove {shown_bytes(runs.size(store, run))} "
                    f"({counted(len(run.entries), 'object')}) of trial {run.index}'s attempt {run.attempt}: "
                    "an upload was cut short, no manifest names them",
                    where=where(run.prefix),
                    action=partial(runs.remove, store, run),
                )
                for run in halves
            ),
        )
    for pack, (version, why) in survey.packs.items():
        yield _leftover(
            "pack",
            f"these copies of records are of no use as they are: {why}",
            where(pack),
            f"the records themselves count, and workers copy them anew; {_REPAIR} removes the copies",
            f"remove these copies of records, which workers make anew: {why}",
            partial(store.delete, pack, version),
        )
    for draft in survey.drafts:
        yield _leftover(
            "draft",
            "a writer was killed before its draft took a record's place",
            str(draft),
            f"the record is intact; {_REPAIR} removes the draft",
            "remove the draft of a writer that was killed",
            partial(Path.unlink, draft, missing_ok=True),
        )
    for foreign in survey.foreign:
        yield Finding(
            kind="foreign",
            level="note",
            what="no version of this program writes an object of this name; it is left alone",
            where=where(foreign),
            remedy="move it elsewhere if you know what it is",
        )


def _leftover(
    kind: str, what: str, where: str, remedy: str, step: str, action: Callable[[], object]
) -> Finding:
    """Return a note about one object, with the step that removes it."""
    steps = [RepairStep(kind=kind, what=step, where=where, action=action)]
    return Finding(kind=kind, level="note", what=what, where=where, remedy=remedy, steps=steps)


def _checkpoints(experiment: Experiment, survey: Survey) -> Iterator[Finding]:
    """Yield checkpoints that records do not fit; steps leave a running trial's record to its worker."""
    for found in survey.checkpoints:
        where, short = experiment.store.location(stored_stages.prefix(found.key)), found.key[:12]
        stage, claimed, step = found.stored, _trial_list(found.trials), ""
        size = shown_bytes(0 if stage is None else stage.size)
        repair = (
            f"after the end of {_trial_list(found.running)} {_REPAIR_IT}" if found.running else _REPAIR_IT
        )
        level: Level = "note"
        match found.state:
            case "newer":
                what = f"a later version wrote the snapshot {short}; here the stage is computed anew"
                remedy = UPDATE
            case "damaged":
                level = "problem" if found.trials else "note"
                what = f"no trial can start from the snapshot {short}: {found.reason}"
                remedy = f"trials compute the stage instead; {repair} removes it"
                step = f"remove {size} of the snapshot {short}, from which no trial can start: {found.reason}"
            case "vanished":
                level = "problem"
                what = f"the snapshot {short} is gone; recorded as stored by {claimed}"
                remedy = f"the search counts on it, trials compute it; {repair} puts that right"
                step = f"take the snapshot {short}, which is gone, out of {claimed}"
            case "unnamed":
                what = f"no record has the snapshot {short} as stored: its removal was cut short"
                remedy = f"{_REPAIR_IT} reports its size and removes it"
                step = f"remove {size} of the snapshot {short}, which no record has as stored"
            case "unpublished":
                files = counted(len(stage.parts) if stage else 0, "file")
                what = f"{files} of the snapshot {short} left that no manifest names"
                remedy = f"they are never read; {_REPAIR_IT} reports their size and removes them"
                step = f"remove {size} of the snapshot {short} that no manifest names"
        action = partial(mend_checkpoint, experiment, found)
        yield Finding(
            kind=found.state,
            level=level,
            what=what,
            where=where,
            remedy=remedy,
            steps=[RepairStep(kind=found.state, what=step, where=where, action=action)]
            if step and not found.running
            else (),
        )


def _trial_list(indices: Sequence[int]) -> str:
    return f"trial{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices))}"
