"""Command `sweep list`: the sweeps under a storage. It imports neither torch nor Ax."""

from __future__ import annotations

from typing import Any

import click

from sweeps.cli.output import echo, format_option, print_csv, print_json, print_table, shorten
from sweeps.cli.resolve import latest_name, storage_url, sweep_names
from sweeps.errors import DamagedObject
from sweeps.experiment import Experiment
from sweeps.export import table
from sweeps.storage.urls import join, open_store
from sweeps.text.counted import counted
from sweeps.text.timestamp import timestamp
from sweeps.trials import control
from sweeps.trials.record import FINISHED


@click.command("list")
@click.option(
    "--storage", metavar="URL", help="The folder of sweeps. Default: SWEEP_STORAGE, or ./sweep-store."
)
@click.option("--all", "everything", is_flag=True, help="Also those that `sweep archive` has put away.")
@format_option
def list_sweeps(storage: str | None, everything: bool, style: str) -> None:
    """List the sweeps under a storage: how far each is, and its best trial."""
    url = storage_url(storage)
    names = sweep_names(url)
    rows = [_row(url, name) for name in names]
    shown = [row for row in rows if everything or row["state"] != "archived"]
    hidden = len(rows) - len(shown)
    if style == "json":
        print_json(shown)
    elif style == "csv":
        print_csv(shown)
    elif not rows:
        echo(f"no sweep in {url} yet; make one with `sweep init SPACE.yaml`")
    else:
        latest = latest_name(url)
        if shown:
            print_table([_for_people(row, latest) for row in shown])
        if hidden:
            echo(f"{counted(hidden, 'sweep')} put away: `sweep list --all`")


def _row(url: str, name: str) -> dict[str, Any]:
    """Return what is known of a sweep; one that cannot be read has its problem in `state`."""
    row: dict[str, Any] = {
        "name": name,
        "state": "damaged, see `sweep doctor`",
        "trials": None,
        "run_cap": None,
    }
    row |= {"running": None, "metric": None, "best": None, "last_change": None}
    try:
        experiment = Experiment.open(open_store(join(url, name)))
        state = control.read(experiment.store)
    except DamagedObject:
        return row
    records, damaged = experiment.readable_trials()
    space, best = experiment.space, table.best(experiment.space, records)
    ended = bool(records) and experiment.is_full(records) and all(r.status in FINISHED for r in records)
    times = [
        time for r in records for time in (r.created, r.started, r.heartbeat, r.ended) if time is not None
    ]
    if damaged:
        state_of = row["state"]
    elif experiment.amendments.archived:
        state_of = "archived"
    else:
        state_of = state if state != "running" else "done" if ended else "open"
    return {
        "name": name,
        "state": state_of,
        "trials": len(records),
        "run_cap": space.run_cap,
        "running": sum(record.status == "running" for record in records),
        "metric": space.metrics()[0],
        "best": None if best is None else best.metrics.get(space.metrics()[0]),
        "last_change": max(times, default=None),
    }


def _for_people(row: dict[str, Any], latest: str) -> dict[str, str]:
    cap = "" if row["run_cap"] is None else f" of {row['run_cap']}"
    best = "" if row["best"] is None else f"{row['metric']} {shorten(row['best'])}"
    return {
        "name": row["name"] + (" (the default)" if row["name"] == latest else ""),
        "state": row["state"],
        "trials": "" if row["trials"] is None else f"{row['trials']}{cap}",
        "running": shorten(row["running"]),
        "best": best,
        "last change": "" if row["last_change"] is None else timestamp(row["last_change"]),
    }
