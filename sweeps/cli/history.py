"""Command `sweep history`: what people did to a sweep."""

from __future__ import annotations

from typing import Any

import click

from sweeps.cli.options import storage_options
from sweeps.cli.output import echo, format_option, print_csv, print_json, print_table
from sweeps.experiment import Experiment
from sweeps.operations.limits import shown
from sweeps.operations.opening import open_sweep
from sweeps.text.timestamp import timestamp
from sweeps.trials.actions import History
from sweeps.trials.amendments import ARCHIVED, NAME, Amendment


@click.command()
@storage_options
@format_option
def history(storage: str | None, name: str | None, style: str) -> None:
    """Show who did what to the sweep, and when: pauses, retries, new limits, confirmations, pools.

    Workers are left out: `sweep trials` and `sweep show` tell what they did.
    """
    experiment = open_sweep(storage, name)
    rows = rows_of(experiment)
    if style == "json":
        print_json(rows)
    elif style == "csv":
        print_csv(rows, ["at", "by", "what"])
    elif rows:
        print_table([{"when": timestamp(row["at"]), "who": row["by"], "what": row["what"]} for row in rows])
    else:
        echo("nobody has changed anything since `sweep init`")


def rows_of(experiment: Experiment) -> list[dict[str, Any]]:
    """Return actions and amendments in the order of their times."""
    done = [{"at": a.at, "by": a.by, "what": a.what} for a in History(experiment.store).refresh()]
    changed = [{"at": a.at, "by": a.by, "what": _words(a)} for a in experiment.amendments.made if a.changes]
    return sorted((*done, *changed), key=lambda row: row["at"])


def _words(amendment: Amendment) -> str:
    """Return the command that makes such an amendment, without its dashes."""
    changes = dict(amendment.changes)
    if ARCHIVED in changes:
        return "archive" if changes[ARCHIVED] else "archive --undo"
    if NAME in changes:
        return f"rename to {changes[NAME]}"
    return f"extend: {', '.join(f'{name} {shown(name, value)}' for name, value in changes.items())}"
