"""The sweeps under a storage: how far each is, and its best trial. Neither torch nor Ax is imported."""

from __future__ import annotations

from typing import Any

from sweeps.errors import DamagedObject
from sweeps.experiment import Experiment
from sweeps.export import table
from sweeps.operations.opening import sweep_names
from sweeps.storage.urls import join, open_store
from sweeps.trials import control
from sweeps.trials.record import FINISHED


def sweep_rows(url: str) -> list[dict[str, Any]]:
    """Return a row for each sweep in a folder of sweeps; of a damaged one `state` says so."""
    return [_row(url, name) for name in sweep_names(url)]


def _row(url: str, name: str) -> dict[str, Any]:
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
