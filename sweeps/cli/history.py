"""Command `sweep history`: what people did to a sweep."""

from __future__ import annotations

import click

from sweeps.cli.options import storage_options
from sweeps.cli.output import echo, format_option, print_csv, print_json, print_table
from sweeps.operations.opening import open_sweep
from sweeps.operations.status import history_rows
from sweeps.text.timestamp import timestamp


@click.command()
@storage_options
@format_option
def history(storage: str | None, name: str | None, style: str) -> None:
    """Show who did what to the sweep, and when: pauses, retries, new limits, confirmations, pools.

    Workers are left out: `sweep trials` and `sweep show` say what they did.
    """
    experiment = open_sweep(storage, name)
    rows = history_rows(experiment)
    if style == "json":
        print_json(rows)
    elif style == "csv":
        print_csv(rows, ["at", "by", "what"])
    elif rows:
        print_table([{"when": timestamp(row["at"]), "who": row["by"], "what": row["what"]} for row in rows])
    else:
        echo("nobody has changed anything since `sweep init`")
