"""Command `sweep list`: the sweeps under a storage. It imports neither torch nor Ax."""

from __future__ import annotations

import click

from sweeps.cli.output import echo, format_option, print_csv, print_json, print_table
from sweeps.operations.listing import sweep_rows
from sweeps.operations.opening import latest_name, storage_url
from sweeps.text.counted import counted
from sweeps.text.shorten import shorten
from sweeps.text.timestamp import iso, timestamp


@click.command("list")
@click.option(
    "--storage", metavar="URL", help="The folder of sweeps. Default: SWEEP_STORAGE, or ./sweep-store."
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
            [{**row, "last_change": None if (at := row["last_change"]) is None else iso(at)} for row in shown]
        )
    elif not rows:
        echo(f"no sweep in {url} yet; make one with `sweep init SPACE.yaml`")
    else:
        latest = latest_name(url)
        table = []
        for row in shown:
            cap = "" if row["run_cap"] is None else f" of {row['run_cap']}"
            cells = {
                "name": row["name"] + (" (the default)" if row["name"] == latest else ""),
                "state": row["state"],
                "trials": "" if row["trials"] is None else f"{row['trials']}{cap}",
                "running": shorten(row["running"]),
                "best": "" if row["best"] is None else f"{row['metric']} {shorten(row['best'])}",
                "last change": "" if row["last_change"] is None else timestamp(row["last_change"]),
            }
            table.append(cells)
        if table:
            print_table(table)
        if hidden:
            echo(f"{counted(hidden, 'sweep')} put away: `sweep list --all`")
