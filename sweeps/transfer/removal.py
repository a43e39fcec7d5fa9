"""Removal of stored checkpoints: after each trial of a worker, and by `sweep snapshots`.

The search relies on the records: a checkpoint is first removed from them, each by a compare-and-swap, then
its manifest and its files are deleted. Whoever is killed in between leaves files that no record names, which
`sweep doctor` lists and `sweep repair` removes. A trial that begins to fetch it meanwhile computes the stage.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sweeps.errors import Conflict, IllegalTransition, SweepError
from sweeps.experiment import Experiment
from sweeps.search.confirm import rounds
from sweeps.search.grid import Grid
from sweeps.space.definition import Value
from sweeps.stages import retention
from sweeps.stages.retention import Verdict
from sweeps.storage.base import NotFound
from sweeps.transfer import stored_stages
from sweeps.trials import budget, lifecycle
from sweeps.trials.record import Trial

log = logging.getLogger(__name__)


def collect(experiment: Experiment) -> None:
    """Remove the checkpoints that need not stay. An error is a warning: another worker will try again."""
    if not experiment.space.stages:
        return
    try:
        experiment.amendments.refresh()  # it may have been extended while the trial ran
        for verdict in verdicts(experiment, experiment.trials()):
            if not verdict.kept and discard(experiment, verdict.checkpoint.key):
                key = verdict.checkpoint.key
                log.info(
                    "the snapshot %s of %s is removed: %s", key[:12], verdict.checkpoint.label, verdict.why
                )
    except (SweepError, OSError) as error:
        log.warning("snapshots could not be removed, a later trial will try again: %s", error)


def verdicts(experiment: Experiment, records: Sequence[Trial], *, ended: bool | None = None) -> list[Verdict]:
    """Return which checkpoints stay, and why.

    Args:
        ended: whether to judge as after the end of the sweep and of its confirmation; None: as it is.
    """
    space, found = experiment.space, retention.stored_checkpoints(experiment.space, records)
    sizes = {}
    if found and space.snapshots.keep_gib is not None:
        sizes = stored_stages.sizes(experiment.store, [each.key for each in found])
    to_come: list[dict[str, Value]] = []  # certain to follow: repeats, and of a grid those that no trial has
    if found and ended is None:
        confirmation = rounds.of_store(experiment.store, experiment.space, list(records))
        ended = _has_ended(experiment, records, confirmed=confirmation is None or confirmation[1].finished)
        if confirmation is not None and not ended:
            plan, standing = confirmation
            to_come += (plan.repeat(*due) for due in standing.due)
    if found and not ended and space.search.method == "grid":
        to_come += Grid(space).left(records)
    return retention.judge(space, records, ended=bool(ended), sizes=sizes, to_come=to_come)


def _has_ended(experiment: Experiment, records: Sequence[Trial], *, confirmed: bool) -> bool:
    """Return whether no trial is open and none will be made.

    The budget ends search and confirmation, run cap and grid the search alone.

    Args:
        confirmed: whether no confirmation was planned, or it is finished.
    """
    if not all(record.finished for record in records):
        return False
    if budget.reached_limit(experiment.space, records, experiment.store.now()):
        return True
    return confirmed and experiment.is_full(list(records))


def discard(experiment: Experiment, key: str) -> bool:
    """Take a checkpoint out of the records and remove its files; return whether this call removed it.

    It stays if another program was faster, or if an unfinished trial has come to need it.

    Raises:
        StoreUnavailable: some of it is left, for `sweep repair`.
    """
    stored = stored_stages.stored_stages(experiment.store, only=key)  # what is published later stays
    present = retention.stored_checkpoints(experiment.space, experiment.trials())
    if any(each.needed_by for each in present if each.key == key):
        return False
    if not forget(experiment, key):
        return False
    for stage in stored:
        try:
            stored_stages.remove(experiment.store, stage)
        except Conflict:
            log.info("the snapshot %s was published anew, and stays", key[:12])
            return False
    return True


def forget(experiment: Experiment, key: str) -> bool:
    """Take a checkpoint out of the records of all that have published it.

    Returns:
        Whether this call changed a record and none names the checkpoint any more: of several workers that
        try, only those that changed a record go on.
    """
    changed = False
    for record in experiment.trials():
        if any(run.key == key for run in record.snapshots):
            try:
                experiment.apply(record.trial, lifecycle.Forget(key=key))
                changed = True
            except (IllegalTransition, NotFound):
                continue
    return changed and not any(run.key == key for record in experiment.trials() for run in record.snapshots)
