"""Lifetime of a sweep: put away, renamed and deleted, each only while no worker lives."""

from __future__ import annotations

from sweeps.errors import InputError
from sweeps.experiment import Experiment
from sweeps.operations.opening import latest_name, make_default
from sweeps.storage.urls import name_of, parent
from sweeps.trials import control
from sweeps.trials.amendments import ARCHIVED
from sweeps.upkeep import removal, renaming
from sweeps.upkeep.removal import require_idle


def archive(experiment: Experiment, by: str) -> bool:
    """Stop a sweep and put it away; return False if both has been done already. Raises `InputError`."""
    archived = experiment.amendments.archived
    if archived and control.read(experiment.store) == "stopped":
        return False
    require_idle(experiment, "put away")
    control.write(experiment.store, "stopped", by)
    if not archived:
        experiment.amendments.add({ARCHIVED: True}, by)
    return True


def unarchive(experiment: Experiment, by: str) -> None:
    """List a sweep again, which stays as it is. Raises `InputError` if it is not in the archive."""
    if not experiment.amendments.archived:
        raise InputError(
            f"{experiment.store.url}: it is not in the archive; `sweep list --all` shows what is"
        )
    experiment.amendments.add({ARCHIVED: False}, by)


def check_rename(experiment: Experiment) -> None:
    """Raise `InputError` while workers are at work."""
    require_idle(experiment, "renamed")


def rename(experiment: Experiment, new: str, by: str) -> Experiment:
    """Give a sweep another name in the same folder of sweeps, and return it. Raises `InputError`."""
    old = experiment.store.url
    check_rename(experiment)
    was_latest = latest_name(parent(old)) == name_of(old)
    renamed = renaming.rename(experiment, new, by)
    if was_latest:
        make_default(renamed.store)
    return renamed


def contents(experiment: Experiment) -> removal.Stock:
    """Return what `delete` would remove. Raises `InputError` while workers live."""
    require_idle(experiment, "deleted")
    return removal.stock(experiment)


def delete(experiment: Experiment, by: str) -> None:
    """Remove a sweep with all that it holds, for good.

    Raises:
        InputError: workers live; where one came at this moment, the sweep is stopped, so that it leaves.
        StoreUnavailable: some of it is left; the next call goes on.
    """
    require_idle(experiment, "deleted")  # again: a person may have thought for a while
    control.write(experiment.store, "stopped", by)
    require_idle(experiment, "deleted")  # a worker that saw no stop has a trial or the lease by now
    removal.remove(experiment.store)
