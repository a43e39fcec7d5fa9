"""State of sweeps as values: totals, what runs, what people did, and how far each sweep of a folder is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sweeps.errors import DamagedObject
from sweeps.experiment import Experiment
from sweeps.export import table
from sweeps.export.gain import gain
from sweeps.operations import confirmation
from sweeps.operations.limits import document, format_limit, most_trials
from sweeps.operations.opening import exists, sweep_names
from sweeps.search.allocation import ASK_KEY
from sweeps.search.confirm import rounds
from sweeps.stages import sharing
from sweeps.storage.base import NotFound
from sweeps.storage.urls import join, name_of, open_store, parent
from sweeps.trials import budget, control, lease
from sweeps.trials.actions import History
from sweeps.trials.amendments import ARCHIVED, NAME
from sweeps.trials.record import FINISHED, Trial


def status_document(experiment: Experiment, records: Sequence[Trial]) -> dict[str, Any]:
    """Return the document of `sweep status --format json`."""
    found = table.best(experiment.space, records)
    switch = control.switch(experiment.store)
    planned = rounds.of_store(experiment.store, experiment.space, list(records))
    standing = experiment.standing()
    gained = None
    if not confirmation.has_confirmed(experiment.space, planned, records):
        gained = gain(experiment.space, records, found, None)
    return {
        "url": experiment.store.url,
        "name": experiment.space.name,
        "run_cap": experiment.space.run_cap,
        "trials": table.counts(records),
        "best": None if found is None else trial_result(found),
        "state": switch.state,
        "why": switch.why or None,
        "confirmation": None if planned is None else confirmation.document(experiment.space, *planned),
        **sharing.sweep_document(records),
        **({} if gained is None else {"gain": asdict(gained)}),
        **({} if standing is None else {"stop": standing.document()}),
        **({"amendments": amendments} if (amendments := document(experiment.amendments)) else {}),
    }


def running_rows(experiment: Experiment, records: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return a row for each running trial, with its worker and progress."""
    running = [record for record in records if record.status == "running"]
    if not running:
        return []
    now = experiment.store.now()
    return [
        {
            "trial": record.trial,
            "attempt": record.attempt,
            "worker": record.worker,
            **{
                name: record.progress.get(name) for name in ("stage", "step", "of", "loss") if record.progress
            },
            **{name: loss for name, loss in record.progress.items() if name == "held_out_loss"},
            "last seen": None
            if record.heartbeat is None
            else f"{max(0.0, now - record.heartbeat):.0f} s ago",
        }
        for record in running
    ]


def chooser(experiment: Experiment) -> str:
    """Return the name of the worker that chooses the next trial now, which may take minutes, or ""."""
    try:
        lock = lease.parse(experiment.store.read(ASK_KEY)[0])
    except (NotFound, DamagedObject):  # `sweep doctor` says what is there instead
        return ""
    is_held = experiment.store.now() - lock.renewed <= experiment.space.lease.expire_s
    return lock.holder if is_held else ""


def trial_result(record: Trial) -> dict[str, Any]:
    """Return a trial's index, parameters and metrics."""
    return {"trial": record.trial, "parameters": dict(record.parameters), "metrics": dict(record.metrics)}


def history_rows(experiment: Experiment) -> list[dict[str, Any]]:
    """Return who did what to the sweep and when, actions and amendments, in the order of their times."""
    rows = [{"at": a.at, "by": a.by, "what": a.what} for a in History(experiment.store).refresh()]
    for amendment in experiment.amendments.made:
        changes = dict(amendment.changes)
        if not changes:
            continue
        if ARCHIVED in changes:
            what = "archive" if changes[ARCHIVED] else "archive --undo"
        elif NAME in changes:
            what = f"rename to {changes[NAME]}"
        else:
            limits = [f"{name} {format_limit(name, value)}" for name, value in changes.items()]
            what = f"extend: {', '.join(limits)}"
        rows.append({"at": amendment.at, "by": amendment.by, "what": what})
    return sorted(rows, key=lambda row: row["at"])


COLUMNS = (
    *("name", "state", "trials", "run_cap", "running", "metric", "best", "last_change", "searched"),
    "most_trials",
)
"""Fields of a row of `sweep_rows`, in their order."""


def sweep_rows(url: str) -> list[dict[str, Any]]:
    """Return a row for each sweep in a folder of sweeps, or for the one at the URL itself.

    Of a damaged one `state` says so.
    `trials` are all that it has, `searched` those that its run cap counts, `most_trials` how many of these
    there will be: those of the run cap, or of a grid that has fewer.
    """
    names = sweep_names(url)
    if not names and exists(open_store(url)):
        return [_row(parent(url), name_of(url))]
    return [_row(url, name) for name in names]


def _row(url: str, name: str) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(COLUMNS) | {"name": name, "state": "damaged, see `sweep doctor`"}
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
        "searched": budget.run_cap_count(space, records),
        "most_trials": most_trials(space, records, ended=False),
    }
