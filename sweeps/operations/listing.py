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

_COLUMNS = ("name", "state", "trials", "run_cap", "running", "metric", "best", "last_change")


def sweep_rows(url: str) -> list[dict[str, Any]]:
    """Return a row for each sweep in a folder of sweeps; of a damaged one `state` says so."""
    return [_row(url, name) for name in sweep_names(url)]


def _row(url: str, name: str) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(_COLUMNS) | {"name": name, "state": "damaged, see `sweep doctor`"}
    try:
        experiment = Experiment.open(open_store(join(url, name)))
        state = control.read(experiment.store)
    except DamagedObject:
        return row
    records, damaged = experiment.readable_trials()
    space, best = experiment.space, table.best(experiment.space, records)
    ended = bool(records) and experiment.is_full(records) and all(r.status in FINISHED for r in records)
    times = [t for r in records for t in (r.created, r.started, r.heartbeat, r.ended) if t is not None]
    if experiment.amendments.archived and not damaged:
        row["state"] = "archived"
    elif not damaged:
        row["state"] = state if state != "running" else "done" if ended else "open"
    return row | {
        "trials": len(records),
        "run_cap": space.run_cap,
        "running": sum(record.status == "running" for record in records),
        "metric": space.metrics()[0],
        "best": None if best is None else best.metrics.get(space.metrics()[0]),
        "last_change": max(times, default=None),
    }
