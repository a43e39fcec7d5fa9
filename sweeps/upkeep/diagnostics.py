"""Diagnosis of the records and runs of a sweep: pure functions from a survey to findings.

Findings that `sweep repair` can repair name it as their remedy.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator

from sweeps.programs.result import RESULT_FILE
from sweeps.search.allocation import ASK_KEY
from sweeps.search.confirm import plan
from sweeps.space.definition import Space
from sweeps.space.domain import Domain
from sweeps.storage.bucket_url import AZ, S3, parse_url
from sweeps.storage.keys import SWEEP_KEY
from sweeps.storage.urls import is_remote
from sweeps.text.counted import counted
from sweeps.trials import brake, budget, control, lifecycle
from sweeps.trials.record import Trial, key
from sweeps.upkeep import amended, checkpoints
from sweeps.upkeep.finding import Finding
from sweeps.upkeep.inventory import Survey
from sweeps.upkeep.runs import RUNS

_FORGOTTEN_S = 24 * 3600.0
_REPAIR = "`sweep repair --yes`"

Where = Callable[[str], str]
"""Function from a key to the object's location for people."""


def examine(survey: Survey, space: Space, where: Where) -> list[Finding]:
    """Return every finding, records before runs."""
    return [
        *_records(survey, where),
        *amended.findings(survey.amendments, where),
        *_sweep(survey, space, where),
        *_missing_records(survey, where),
        *_silent_trials(survey, space, where),
        *_parameters(survey, Domain(space), where),
        *_leftovers(survey, space, where),
    ]


def _records(survey: Survey, where: Where) -> Iterator[Finding]:
    for stored in survey.of_state("torn"):
        yield Finding(
            kind="torn",
            what=f"the record of trial {stored.index} cannot be read ({stored.reason}); workers stop at it",
            where=where(stored.key),
            remedy=f"put the original back, or let {_REPAIR} move it to quarantine/",
        )
    if survey.damaged_control is not None:
        yield Finding(
            kind="torn",
            what=f"the sweep's switch cannot be read ({survey.damaged_control[0]}); workers stop at it",
            where=where(control.KEY),
            remedy=f"{_REPAIR} moves it to quarantine/, and the sweep goes on; then pause it if you meant to",
        )
    if survey.damaged_plan is not None:
        yield Finding(
            kind="torn",
            what=f"the plan of `sweep confirm` cannot be read ({survey.damaged_plan}); workers stop at it",
            where=where(plan.KEY),
            remedy="put the original back; or remove it, and plan anew with `sweep confirm`",
        )
    for oddity in survey.oddities:
        record = "" if oddity.index is None else f" as the record of trial {oddity.index}"
        yield Finding(
            kind="strange",
            what=f"this object cannot be read{record}: {oddity.reason}; workers stop at it",
            where=where(oddity.key),
            remedy=f"put the original back, or let {_REPAIR} move it to quarantine/ as it is",
        )
    for stored in survey.of_state("newer"):
        yield Finding(
            kind="newer",
            what=f"a later version wrote the record of trial {stored.index} ({stored.reason})",
            where=where(stored.key),
            remedy="update this machine: pip install -U stagesweep",
        )


def _sweep(survey: Survey, space: Space, where: Where) -> Iterator[Finding]:
    """Yield what is wrong with the sweep as such: paused by itself, failing, or without an end."""
    if survey.switch is not None and survey.switch.braked:
        yield Finding(
            kind="braked",
            what=f"the sweep has paused itself: {survey.switch.why}",
            where=where(control.KEY),
            remedy=f"{brake.REMEDY}; `sweep retry INDEX` gives a failed trial another try",
        )
    own = [r for r in survey.trials() if r.finished and r.generator != "imported" and r.status != "abandoned"]
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
    for name in budget.unreported(space.budget, survey.trials()):
        yield Finding(
            kind="uncounted",
            what=f"no trial reports {name!r}, so that budget.{name} never ends the sweep",
            where=where(SWEEP_KEY),
            remedy=f"report {name!r} as a metric, or limit what is measured anyway: "
            "`sweep extend --budget device_hours=H`",
        )


def _missing_records(survey: Survey, where: Where) -> Iterator[Finding]:
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
            if is_remote(file):
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
            where=where(f"{RUNS}{index:06d}"),
            remedy=f"{save}then remove the folder by hand",
        )


def _silent_trials(survey: Survey, space: Space, where: Where) -> Iterator[Finding]:
    for record in survey.expired(space.lease.expire_s):
        silent_s = survey.now - (record.heartbeat or 0.0)
        yield Finding(
            kind="expired",
            what=f"trial {record.trial} is said to run on {record.worker}: {lifecycle.silence(silent_s)}",
            where=where(key(record.trial)),
            remedy=f"any worker takes it over; {_REPAIR} hands it back without one",
        )
    for record in survey.trials():
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


def _parameters(survey: Survey, domain: Domain, where: Where) -> Iterator[Finding]:
    """Yield trials with equal parameters, and those whose parameters are outside the space."""
    alike: defaultdict[Hashable, list[Trial]] = defaultdict(list)
    for record in survey.trials():
        if record.generator not in ("imported", "enqueued"):  # of a user, who may repeat a measurement
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
    for record in survey.trials():
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


def _leftovers(survey: Survey, space: Space, where: Where) -> Iterator[Finding]:
    """Yield what interrupted programs left behind, and objects that no version writes."""
    if superseded := survey.superseded_runs():
        yield Finding(
            kind="superseded",
            level="note",
            what=f"files of {counted(len(superseded), 'attempt')} left; later ones completed the trials",
            where=where(superseded[0].prefix),
            remedy=f"{_REPAIR} reports their size and removes them",
        )
    if halves := survey.half_uploads():
        yield Finding(
            kind="half",
            level="note",
            what=f"{counted(len(halves), 'upload')} cut short: objects are left that no manifest names",
            where=where(halves[0].prefix),
            remedy=f"they are never read; {_REPAIR} reports their size and removes them",
        )
    yield from checkpoints.findings(survey.checkpoints, where)
    if (lock := survey.dead_lock(space.lease.expire_s)) is not None:
        yield Finding(
            kind="lock",
            level="note",
            what=f"{lock.holder} left while generating a candidate",
            where=where(ASK_KEY),
            remedy=f"the next worker takes it over; {_REPAIR} removes it",
        )
    for draft in survey.drafts:
        yield Finding(
            kind="draft",
            level="note",
            what="a writer was killed before its draft took a record's place",
            where=str(draft),
            remedy=f"the record is intact; {_REPAIR} removes the draft",
        )
    for pack, (_, why) in survey.packs.items():
        yield Finding(
            kind="pack",
            level="note",
            what=f"these copies of records are of no use as they are: {why}",
            where=where(pack),
            remedy=f"the records themselves count, and workers copy them anew; {_REPAIR} removes the copies",
        )
    for foreign in survey.foreign:
        yield Finding(
            kind="foreign",
            level="note",
            what="no version of this program writes an object of this name; it is left alone",
            where=where(foreign),
            remedy="move it elsewhere if you know what it is",
        )
