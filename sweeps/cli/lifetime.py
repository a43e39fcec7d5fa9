"""Commands about a sweep as a whole: `sweep archive`, `rename`, `delete`."""

from __future__ import annotations

import sys

import click

from sweeps.cli.options import storage_options
from sweeps.cli.output import echo
from sweeps.errors import InputError
from sweeps.operations import lifetime
from sweeps.operations.control import user_name
from sweeps.operations.opening import is_named, open_sweep
from sweeps.storage.urls import name_of
from sweeps.text.counted import counted
from sweeps.text.shorten import shown_bytes


@click.command()
@storage_options
@click.option("--undo", is_flag=True, help="Take it out of the archive again.")
def archive(storage: str | None, name: str | None, undo: bool) -> None:
    """Archive a sweep: it is stopped, and `sweep list` leaves it out. Nothing is removed."""
    experiment = open_sweep(storage, name)
    url = experiment.store.url
    if undo:
        lifetime.unarchive(experiment, user_name())
        echo(f"{url} is listed again; it is stopped, `sweep resume` opens it")
    elif lifetime.archive(experiment, user_name()):
        echo(f"{url} is in the archive; `sweep archive --undo --name {name_of(url)}` takes it out")
    else:
        echo(f"{url} is in the archive already")


@click.command()
@storage_options
@click.argument("new", metavar="NEW")
def rename(storage: str | None, name: str | None, new: str) -> None:
    """Rename a sweep to NEW, within its folder of sweeps. In a bucket its objects are copied.

    If it was interrupted, call it again to go on.
    """
    experiment = open_sweep(storage, name)
    old = experiment.store.url
    echo(f"{old} is {lifetime.rename(experiment, new, user_name()).store.url} now")


@click.command()
@storage_options
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(storage: str | None, name: str | None, yes: bool) -> None:
    """Delete a sweep with all that it holds: records, logs, checkpoints, snapshots.

    It must be named, by --name or a full URL: the default is never deleted.
    """
    if not is_named(storage, name):
        raise InputError(
            "say which sweep to delete: --name NAME, or its full URL in --storage; see `sweep list`"
        )
    experiment = open_sweep(storage, name)
    url = experiment.store.url
    there = lifetime.contents(experiment)
    statuses = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in there.trials.items())
    damaged = f" and {counted(there.damaged, 'damaged record')}" if there.damaged else ""
    trials = counted(sum(there.trials.values()), "trial") + (f" ({statuses})" if statuses else "")
    size = "" if there.size is None else f", {shown_bytes(there.size)}"
    echo(f"{url}: {trials}{damaged}; {counted(there.files, 'file')}{size}")
    if not yes:
        if not sys.stdin.isatty():
            raise InputError(f"{url}: there is no terminal to ask; --yes deletes all of that")
        click.confirm("sweep: delete all of that for good?", abort=True, err=True)
    lifetime.delete(experiment, user_name())
    echo(f"{url} is deleted")
