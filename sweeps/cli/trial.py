"""Command `sweep show`: all about one trial. It imports neither torch nor Ax."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from sweeps.cli.options import Sweep, count_option, sweep_option
from sweeps.cli.output import document_option, echo, notify, print_json
from sweeps.errors import DamagedObject, StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.export import table
from sweeps.programs.base import LOG_FILE
from sweeps.programs.kinds import program_of
from sweeps.programs.process import end_of
from sweeps.space.definition import cell_of, is_number
from sweeps.stages import sharing
from sweeps.storage.base import NotFound, Store
from sweeps.storage.urls import is_remote
from sweeps.text.printable import escape_controls
from sweeps.text.regular_file import MAX_BYTES
from sweeps.text.shorten import shorten, timestamp
from sweeps.trials import record as records
from sweeps.trials.record import Trial, run_prefix
from sweeps.trials.redaction import redact, redact_trials


@click.command("show")
@sweep_option
@count_option("--lines", least=0, default=20, metavar="N", help="Of its log, from its last 64 MiB.")
@document_option
@click.argument("index", type=click.IntRange(min=0))
def show_trial(sweep: Sweep, index: int, lines: int, style: str) -> None:
    """Show all about trial INDEX: parameters, metrics, attempts, error, log, and how to run it again."""
    experiment = sweep.open()
    (record,) = redact_trials([experiment.trial(index)])
    # Before it is split: no line of a private key is recognised by itself.
    log = redact(log_tail(experiment.store, record, lines))
    if style == "json":
        store = experiment.store
        document = {
            **table.nested(record),
            "worker": record.worker,
            "failure": record.failure,
            "created": record.created,
            "started": record.started,
            "ended": record.ended,
            "history": [attempt.document() for attempt in record.history],
            "log": log,
            "files": _location(store, record) if record.attempt else None,
            "record": store.location(records.key(record.trial)),
            "command": _command_line(experiment, record),
        }
        print_json(document)
        return
    for line in _lines(experiment, record, log):
        echo(line)
    if log:
        echo(f"log      the end of {_location(experiment.store, record, LOG_FILE)}")
        for line in log.splitlines():
            echo(f"  {line}")
    click.echo("run it again")
    click.echo(f"  {escape_controls(_command_line(experiment, record))}")


def _command_line(experiment: Experiment, record: Trial) -> str:
    """Return the command in a run folder that says which trial it is: this one need not be the best."""
    return program_of(experiment.space).command_line(record, run_dir=f"runs/trial-{record.trial}")


def log_tail(store: Store, record: Trial, lines: int) -> str:
    """Return the last lines of the log of the present or last attempt; "" if there are none.

    In a bucket it is as old as the last upload of the run. A notice says why a log cannot be read.
    """
    if not record.attempt or not lines:
        return ""
    most = min(400 * lines, MAX_BYTES)
    try:
        found = store.read_part(f"{run_prefix(record.trial, record.attempt)}/{LOG_FILE}", -most, most)
    except (NotFound, DamagedObject):
        return ""
    except StoreUnavailable as error:
        notify(f"the log is left out: {error}")
        return ""
    return end_of(found.data, lines, is_cut=found.size > most)


def _location(store: Store, record: Trial, file: str = "") -> str:
    prefix = run_prefix(record.trial, record.attempt)
    return store.location(f"{prefix}/{file}" if file else prefix)


def _lines(experiment: Experiment, record: Trial, log: str) -> Iterator[str]:
    taken = table.seconds(record)
    took = "" if taken is None else f", {taken:.1f} s"
    yield f"trial {record.trial} of {experiment.space.name}: {record.status.replace('_', ' ')}{took}"
    yield f"by       {record.generator}, {timestamp(record.created)}"
    if record.status == "running":
        yield f"worker   {record.worker}, attempt {record.attempt}, since {timestamp(record.started or 0.0)}"
    yield from _table("parameters", {name: cell_of(value) for name, value in record.parameters.items()})
    yield from _table("progress", record.progress if record.status == "running" else {})
    yield from _table("metrics", record.metrics)
    yield from _table("predicted, when it was stopped", record.predicted)
    if line := sharing.trial_line(record):
        yield f"stages   {line}"
    if record.history:
        yield "attempts"
    for attempt in record.history:
        when = f"{timestamp(attempt.start)}, {max(0.0, attempt.end - attempt.start):.1f} s"
        detail = f": {attempt.detail}" if attempt.detail else ""
        yield f"  {attempt.attempt}  {attempt.worker}, {when}, {attempt.reason.replace('_', ' ')}{detail}"
    if record.error:
        yield f"error    {record.failure.replace('_', ' ')}" if record.failure else "error"
        first, _, traceback = record.error.partition("\n")
        yield f"  {first}"
        if traceback.strip() not in log:  # else the end of the log follows, which has the same lines
            yield from (f"  {line}" for line in traceback.splitlines())
    if is_remote(experiment.store.url) or Path(_location(experiment.store, record)).is_dir():
        yield f"files    {_location(experiment.store, record)}"
    yield f"record   {experiment.store.location(records.key(record.trial))}"


def _table(title: str, values: Any) -> Iterator[str]:
    """Yield a title and a line for each value in full, or nothing without any."""
    if not values:
        return
    yield title
    width = max(map(len, values))
    for name, value in values.items():
        full = repr(value) if is_number(value) else shorten(value)
        yield f"  {name:<{width}}  {full if value is not None else 'not finite'}"
