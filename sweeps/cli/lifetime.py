"""Commands about a sweep as a whole: `sweep archive`, `rename`, `delete`."""

from __future__ import annotations

import sys

import click

from sweeps.cli.control import user_name
from sweeps.cli.output import echo
from sweeps.cli.resolve import is_named, latest_name, open_sweep, remember, storage_options
from sweeps.errors import InputError
from sweeps.experiment import Experiment
from sweeps.storage.urls import name_of, parent
from sweeps.text.counted import counted
from sweeps.trials import control
from sweeps.trials.amendments import ARCHIVED


@click.command()
@storage_options
@click.option("--undo", is_flag=True, help="Take it out of the archive again.")
def archive(storage: str | None, name: str | None, undo: bool) -> None:
    """Put a sweep away: it is stopped, and `sweep list` leaves it out. Nothing is removed."""
    experiment = open_sweep(storage, name)
    url = experiment.store.url
    if undo:
        if not experiment.amendments.archived:
            raise InputError(f"{url}: it is not in the archive; `sweep list --all` shows what is")
        experiment.amendments.add({ARCHIVED: False}, user_name())
        echo(f"{url} is listed again; it is stopped, `sweep resume` opens it")
        return
    if experiment.amendments.archived:
        echo(f"{url} is in the archive already")
        return
    _require_idle(experiment, "put away")
    control.write(experiment.store, "stopped", user_name())
    experiment.amendments.add({ARCHIVED: True}, user_name())
    echo(f"{url} is in the archive; `sweep archive --undo --name {name_of(url)}` takes it out")


@click.command()
@storage_options
@click.argument("new", metavar="NEW")
def rename(storage: str | None, name: str | None, new: str) -> None:
    """Give a sweep the name NEW, in the same folder of sweeps. In a bucket its objects are copied.

    Interrupted, it goes on when it is called again.
    """
    from sweeps.upkeep.renaming import rename as rename_sweep

    experiment = open_sweep(storage, name)
    old = experiment.store.url
    _require_idle(experiment, "renamed")
    was_latest = latest_name(parent(old)) == name_of(old)
    renamed = rename_sweep(experiment, new, user_name())
    if was_latest:
        remember(renamed.store)
    echo(f"{old} is {renamed.store.url} now")


@click.command()
@storage_options
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(storage: str | None, name: str | None, yes: bool) -> None:
    """Delete a sweep with all that it holds: records, logs, checkpoints, snapshots.

    It must be named, by --name or a full URL: the default is never deleted.
    """
    from sweeps.upkeep.machine import shown_bytes
    from sweeps.upkeep.removal import remove, stock

    if not is_named(storage, name):
        raise InputError(
            "say which sweep to delete: --name NAME, or its full URL in --storage; see `sweep list`"
        )
    experiment = open_sweep(storage, name)
    url = experiment.store.url
    _require_idle(experiment, "deleted")
    there = stock(experiment)
    statuses = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in there.trials.items())
    damaged = f" and {counted(there.damaged, 'damaged record')}" if there.damaged else ""
    trials = counted(sum(there.trials.values()), "trial") + (f" ({statuses})" if statuses else "")
    size = "" if there.size is None else f", {shown_bytes(there.size)}"
    echo(f"{url}: {trials}{damaged}; {counted(there.files, 'file')}{size}")
    if not yes:
        if not sys.stdin.isatty():
            raise InputError(f"{url}: nobody is here to ask; --yes deletes all of that")
        click.confirm("sweep: delete all of that for good?", abort=True, err=True)
    remove(experiment.store, user_name())
    echo(f"{url} is deleted")


def _require_idle(experiment: Experiment, verb: str) -> None:
    """Raise `InputError` while workers live."""
    from sweeps.upkeep.removal import living

    if workers := living(experiment):
        raise InputError(
            f"{experiment.store.url}: {counted(len(workers), 'worker')} still at work "
            f"({', '.join(workers[:3])}); "
            f"it can be {verb} when they have left: `sweep down` or `sweep stop`"
        )
