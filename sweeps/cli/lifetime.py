"""Commands about sweeps as a whole: `sweep list`, `history`, `archive`, `rename`, `copy`, `delete`."""

from __future__ import annotations

import shlex
import sys

import click

from sweeps.cli.launch import translated_errors
from sweeps.cli.options import Sweep, sweep_option
from sweeps.cli.output import echo, format_option, notify, print_csv, print_json, print_table
from sweeps.cli.pool import pools_launched_here
from sweeps.errors import InputError
from sweeps.operations import copying, lifetime
from sweeps.operations.control import user_name
from sweeps.operations.opening import is_named, latest_name, storage_url
from sweeps.operations.status import COLUMNS, history_rows, sweep_rows
from sweeps.storage.urls import is_remote
from sweeps.text.counted import counted
from sweeps.text.shorten import iso, shorten, shown_bytes, timestamp
from sweeps.trials import control

_SHOWN = 5
"""Lines about what a copy left out."""


@click.command("list")
@click.option(
    "--storage",
    metavar="URL",
    help="The folder of sweeps, or one sweep. Default: SWEEP_STORAGE, or ./sweep-store.",
)
@click.option("--all", "everything", is_flag=True, help="Also those that `sweep archive` has put away.")
@format_option
def list_sweeps(storage: str | None, everything: bool, style: str) -> None:
    """List the sweeps under a storage: how far each is, and its best trial."""
    url = storage_url(storage)
    rows = sweep_rows(url)
    shown = [row for row in rows if everything or row["state"] != "archived"]
    hidden = len(rows) - len(shown)
    if style == "json":
        print_json(shown)
    elif style == "csv":
        print_csv(
            [
                {**row, "last_change": None if (at := row["last_change"]) is None else iso(at)}
                for row in shown
            ],
            COLUMNS,
        )
    elif not rows:
        echo(f"no sweep in {url} yet; make one with `sweep init SPACE.yaml`")
    else:
        latest = latest_name(url)
        table = []
        for row in shown:
            trials = "" if row["trials"] is None else str(row["trials"])
            if row["most_trials"] is not None:
                trials = f"{row['searched']} of {row['most_trials']}"
            cells = {
                "name": row["name"] + (" (the default)" if row["name"] == latest else ""),
                "state": row["state"],
                "trials": trials,
                "running": shorten(row["running"]),
                "best": "" if row["best"] is None else f"{row['metric']} {shorten(row['best'])}",
                "last change": "" if row["last_change"] is None else timestamp(row["last_change"]),
            }
            table.append(cells)
        if table:
            print_table(table)
        if hidden:
            echo(f"{counted(hidden, 'sweep')} put away: `sweep list --all`")


@click.command()
@sweep_option
@format_option
def history(sweep: Sweep, style: str) -> None:
    """Show who did what to the sweep, and when: pauses, retries, new limits, confirmations, pools.

    Workers are left out: `sweep trials` and `sweep show` say what they did.
    """
    experiment = sweep.open()
    rows = history_rows(experiment)
    if style == "json":
        print_json(rows)
    elif style == "csv":
        print_csv(rows, ["at", "by", "what"])
    elif rows:
        print_table([{"when": timestamp(row["at"]), "who": row["by"], "what": row["what"]} for row in rows])
    else:
        echo("nobody has changed anything since `sweep init`")


@click.command()
@sweep_option
@click.option("--undo", is_flag=True, help="Take it out of the archive again.")
def archive(sweep: Sweep, undo: bool) -> None:
    """Archive a sweep: it is stopped, and `sweep list` leaves it out. Nothing is removed."""
    experiment = sweep.open()
    url = experiment.store.url
    if undo:
        lifetime.unarchive(experiment, user_name())
        state = control.read(experiment.store)
        how = ", `sweep resume` opens it" if state == "stopped" else ""
        echo(f"{url} is listed again; it is {state}{how}")
    elif lifetime.archive(experiment, user_name()):
        echo(f"{url} is in the archive; `sweep archive --undo --storage {shlex.quote(url)}` takes it out")
    else:
        echo(f"{url} is in the archive already")


@click.command()
@sweep_option
@click.argument("new", metavar="NEW")
def rename(sweep: Sweep, new: str) -> None:
    """Rename a sweep to NEW, within its folder of sweeps. In a bucket its objects are copied.

    If it was interrupted, call it again to go on.
    """
    experiment = sweep.open()
    old, shown = experiment.store.url, experiment.space.name
    if is_remote(old):  # a folder takes the files of its pools along
        lifetime.check_rename(experiment)  # before the advice to end the pool, which cuts uploads off
        with translated_errors():
            pools = pools_launched_here(experiment, None)
        if pools:
            raise InputError(
                f"{old}: a pool of {pools[0][0]} was launched for it from here, whose workers would not find "
                "the new name; `sweep down` ends it, then rename the sweep"
            )
    url = lifetime.rename(experiment, new, user_name()).store.url
    if url != old:
        echo(f"{old} is {url} now")
    elif shown == new:
        echo(f"{url} has this name already; nothing is changed")
    else:  # a copy, or the folder was renamed before, and the command killed
        echo(f"{url} is shown as {new} now")


@click.command()
@sweep_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(sweep: Sweep, yes: bool) -> None:
    """Delete a sweep with all that it holds: records, logs, checkpoints, snapshots.

    It must be named, by --name or a full URL: the default is never deleted.
    """
    if not is_named(sweep.storage, sweep.name):
        raise InputError(
            "say which sweep to delete: --name NAME, or its full URL in --storage; see `sweep list`"
        )
    experiment = sweep.open()
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


@click.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--live", is_flag=True, help="Also while workers run: their trials are pending in the copy.")
def copy(source: str, target: str, live: bool) -> None:
    """Copy the sweep at the URL FROM to the URL TO: between folders and buckets, in any direction.

    It copies records, logs, checkpoints and snapshots, and compares them at the end; only then TO is a sweep.
    If it was interrupted, call it again to go on. FROM stays as it is: leave one of the two paused.
    """
    done = copying.copy(source, target, live=live, on_notice=notify)
    for line in done.left_out[:_SHOWN]:
        notify(f"left out: {line}")
    if len(done.left_out) > _SHOWN:
        notify(f"left out: {len(done.left_out) - _SHOWN} more")
    for trial in done.released:
        notify(f"trial {trial} is running in {source}, and pending in {target}")
    present = f"; {done.present} were there already" if done.present else ""
    copied = f"{counted(done.objects, 'object')} copied, {shown_bytes(done.size)}"
    echo(f"{target}: {copied}{present}; all compared")
