"""Removal of stored snapshots: after each trial of a worker, and by `sweep snapshots`.

The search relies on the records: a snapshot is first removed from them, each by a compare-and-swap, then its
manifest and its files are deleted. Whoever is killed in between leaves files that no record names, which
`sweep doctor` lists and `sweep repair` removes. A trial that begins to fetch it meanwhile computes the stage.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sweeps.errors import Conflict, IllegalTransition, SweepError
from sweeps.experiment import Experiment
from sweeps.space.definition import Space, Value
from sweeps.stages import retention
from sweeps.stages.retention import Verdict
from sweeps.storage.base import NotFound
from sweeps.transfer import stored_stages
from sweeps.trials import budget, lifecycle
from sweeps.trials.record import Trial

log = logging.getLogger(__name__)


def collect(experiment: Experiment) -> None:
    """Remove the snapshots that need not stay. An error is a warning: another worker will try again."""
    if not experiment.space.stages:
        return
    try:
        for verdict in verdicts(experiment, experiment.trials()):
            if not verdict.kept and discard(experiment, verdict.snapshot.key):
                key = verdict.snapshot.key
                log.info(
                    "the snapshot %s of %s is removed: %s", key[:12], verdict.snapshot.label, verdict.why
                )
    except (SweepError, OSError) as error:
        log.warning("snapshots could not be removed, a later trial will try again: %s", error)


def verdicts(experiment: Experiment, records: Sequence[Trial], *, ended: bool | None = None) -> list[Verdict]:
    """Return which snapshots stay, and why.

    Args:
        experiment: the sweep.
        records: all trials.
        ended: whether to judge as after the sweep's end; None: as it is.
    """
    space, found = experiment.space, retention.published(experiment.space, records)
    sizes = {}
    if found and space.snapshots.keep_gib is not None:
        sizes = stored_stages.sizes(experiment.store, [snapshot.key for snapshot in found])
    if ended is None:
        ended = bool(found) and has_ended(experiment, records)
    to_come = _to_come(space, records) if found and not ended else []
    return retention.judge(space, records, ended=ended, sizes=sizes, to_come=to_come)


def _to_come(space: Space, records: Sequence[Trial]) -> list[dict[str, Value]]:
    """Return the configurations that are certain to follow: those of a grid that no trial has."""
    if space.search.method != "grid":
        return []
    from sweeps.search.grid import Grid  # imports scipy

    return Grid(space).left(records)


def has_ended(experiment: Experiment, records: Sequence[Trial]) -> bool:
    """Return whether no trial is open and none will follow: by the run cap, the grid or the budget."""
    if not all(record.finished for record in records):
        return False
    limits, now = experiment.space.budget, experiment.store.now()
    return experiment.is_full(list(records)) or bool(budget.exceeded(limits, records, now))


def discard(experiment: Experiment, key: str) -> bool:
    """Take a snapshot out of the records and remove its files; return whether this call removed it.

    It stays if another program was faster, or if an unfinished trial has come to need it.

    Raises:
        StoreUnavailable: some of it is left, for `sweep repair`.
    """
    stored = stored_stages.stored_stages(experiment.store, only=key)  # what is published later stays
    present = retention.published(experiment.space, experiment.trials())
    if any(snapshot.needed_by for snapshot in present if snapshot.key == key):
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
    """Take a snapshot out of the records of all that have published it.

    Returns:
        Whether this call changed a record and none names the snapshot any more: of several workers that
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
