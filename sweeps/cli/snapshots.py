"""Command `sweep snapshots`: stored ends of stages and points of trunks, who uses them, what they save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import click

from sweeps.cli.options import Sweep, readable, sweep_option
from sweeps.cli.output import echo, format_option, notify, print_csv, print_json, print_table
from sweeps.experiment import Experiment
from sweeps.operations import checkpoints as operations
from sweeps.stages.retention import Verdict
from sweeps.text.counted import counted
from sweeps.text.shorten import shorten, shown_bytes
from sweeps.transfer import stored_stages
from sweeps.trials import costs
from sweeps.trials.record import Trial

_SHOWN_DIGITS = 8


@click.command("snapshots")
@sweep_option
@format_option
@click.option(
    "--delete",
    "keys",
    multiple=True,
    metavar="KEY",
    help="Remove the snapshot whose key begins so; may be given several times.",
)
@click.option("--prune", is_flag=True, help="Remove all but those of the best trials and of unfinished ones.")
def snapshots(sweep: Sweep, style: str, keys: tuple[str, ...], prune: bool) -> None:
    """Show the stored ends of stages, and points of their trunks: size, users, and why each stays or goes.

    Workers remove what is beyond `snapshots.keep` of the search space file after each trial. --prune leaves
    what the end of the sweep would leave; `sweep stop` removes nothing. What was removed is computed again
    when a trial needs it.
    """
    if keys and prune:
        raise click.UsageError("--delete and --prune exclude each other")
    experiment = sweep.open()
    removed: list[str] = []
    if keys or prune:
        removed, left = operations.prune(experiment) if prune else operations.delete(experiment, keys)
        for key in left:
            shown = key[:_SHOWN_DIGITS]
            notify(f"{shown} is left: a worker has removed it, or a trial needs it now")
    records = readable(experiment)
    document, verdicts = operations.listing(experiment, records)
    if style == "json":
        print_json(document | {"removed": removed})
    elif style == "csv":
        print_csv(
            [
                {name: " ".join(map(str, v)) if isinstance(v, list) else v for name, v in row.items()}
                for row in document["snapshots"]
            ],
            operations.COLUMNS,
        )
    else:
        for key in removed:
            echo(f"removed {key[:_SHOWN_DIGITS]}")
        _print(experiment, records, document, verdicts)


def status_line(experiment: Experiment, records: Sequence[Trial]) -> str:
    """Return number and size of the stored snapshots for people."""
    points = {run.key: run.step is not None for record in records for run in record.snapshots}
    taken = sum(stored_stages.sizes(experiment.store, points).values())
    return f"{_ends_and_points(points.values())}, {shown_bytes(taken)}; {_reuse_line(records)}"


def _print(
    experiment: Experiment, records: Sequence[Trial], document: Mapping[str, Any], verdicts: Sequence[Verdict]
) -> None:
    """Print the listing for people: a table, and what the snapshots take and save."""
    rows, totals = document["snapshots"], document["totals"]
    if not rows:
        can_share = bool(experiment.space.stages)
        echo(f"no snapshots{' yet' if can_share else ': the search space has no stages to share'}")
    else:
        trunks: dict[Hashable, list[dict[str, Any]]] = {}  # all points of one trunk are one row
        for verdict, row in zip(verdicts, rows, strict=True):
            if verdict.checkpoint.step is not None:
                trunks.setdefault(verdict.checkpoint.unit, []).append(row)
        points = [_trunk_row(sorted(group, key=lambda row: int(row["step"]))) for group in trunks.values()]
        ends = [
            {
                "key": row["key"][:_SHOWN_DIGITS],
                "stage": row["stage"],
                "by": _indices(row["trials"]),
                "used by": _indices(row["used_by"]) if row["used_by"] else "–",
                "size": "–" if row["bytes"] is None else shown_bytes(row["bytes"]),
                "age": "–" if row["age_s"] is None else _duration(row["age_s"]),
                "stays": _reason(row),
            }
            for row in rows
            if row["step"] is None
        ]
        for position, table in enumerate(filter(None, (ends, points))):
            if position:
                echo("")
            print_table(table)
        stored = _ends_and_points(row["step"] is not None for row in rows)
        echo(f"\nstored  {stored}, {shown_bytes(totals['bytes'])}")
    if totals["reused"] or totals["branched"]:
        nominal, paid, seconds = (totals[n] for n in ("cost_nominal", "cost_paid", "seconds_saved"))
        share = f" ({(nominal - paid) / nominal:.0%})" if nominal else ""
        time = f", {_duration(seconds)} of training" if seconds else ""
        saved = f"{shorten(nominal - paid)} of {shorten(nominal)} in cost{share}{time}"
        echo(f"saved   {saved}; {_reuse_line(records)}")
        fetched = shown_bytes(totals["bytes_fetched"])
        echo(f"traffic {shown_bytes(totals['bytes'])} stored, {fetched} fetched, of what is there now")
    if wrong := [row["key"][:_SHOWN_DIGITS] for row in rows if row["problem"]]:
        notify(f"{', '.join(wrong)}: damaged or missing; see `sweep doctor`")
    if unnamed := document["unnamed"]:
        notify(f"no record names {counted(len(unnamed), 'stored snapshot')}; see `sweep doctor`")


def _reason(row: dict[str, Any]) -> str:
    return str(row["problem"] or (row["why"] if row["kept"] else f"no: {row['why']}"))


def _trunk_row(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a row for people of the points of one trunk."""
    users = sorted({trial for row in points for trial in row["used_by"]})
    known = [row for row in points if row["bytes"] is not None]
    reasons: dict[str, list[dict[str, Any]]] = {}
    for row in points:
        reasons.setdefault(_reason(row), []).append(row)
    return {
        "trunk": points[0]["stage"],
        "points at": _steps(points),
        "by": _indices(sorted({trial for row in points for trial in row["trials"]})),
        "used by": _indices(users) if users else "–",
        "size": shown_bytes(sum(row["bytes"] for row in known)) if known else "–",
        "age": _duration(max(row["age_s"] for row in known)) if known else "–",
        "stays": "; ".join(
            reason if len(reasons) == 1 else f"{_steps(rows)}: {reason}" for reason, rows in reasons.items()
        ),
    }


def _steps(points: Sequence[dict[str, Any]]) -> str:
    return ", ".join(str(row["step"]) for row in points)


def _indices(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices)) if len(indices) <= 3 else f"{len(indices)} trials"


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _ends_and_points(are_points: Iterable[bool]) -> str:
    """Return how many ends of stages and points of trunks there are, in words."""
    kinds = Counter(are_points)
    ends = counted(kinds[False], "snapshot") if kinds[False] or not kinds[True] else ""
    return ", ".join(filter(None, (ends, counted(kinds[True], "point") if kinds[True] else "")))


def _reuse_line(records: Sequence[Trial]) -> str:
    ends = sum(len(costs.reused(record)) for record in records)
    points = sum(len(costs.branched(record)) for record in records)
    reused = f"reused {counted(ends, 'time')}" if ends else ""
    branched = f"branched off {counted(points, 'time')}" if points else ""
    return ", ".join(filter(None, (reused, branched))) or "not reused yet"
