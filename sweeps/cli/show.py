"""Commands `sweep status` and `sweep trials`. They import neither torch nor Ax."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from sweeps.cli.best import best_line
from sweeps.cli.options import Sweep, number_option, readable, sweep_option
from sweeps.cli.output import console, echo, format_option, print_csv, print_json, print_table
from sweeps.cli.prices import price_options
from sweeps.experiment import Experiment
from sweeps.export import table
from sweeps.export.gain import gain
from sweeps.operations import confirmation
from sweeps.operations.limits import amendment_lines, most_trials
from sweeps.operations.status import chooser, running_rows, status_document
from sweeps.search.confirm import rounds
from sweeps.space.definition import Fixed, Space
from sweeps.stages import sharing
from sweeps.storage.keys import SWEEP_KEY
from sweeps.text.columns import FOR_PEOPLE, metric_column, parameter_column
from sweeps.text.counted import counted
from sweeps.text.printable import escape_controls
from sweeps.text.shorten import shorten, timestamp
from sweeps.trials import brake, budget, control, costs
from sweeps.trials.record import Trial
from sweeps.trials.redaction import redact_trials

if TYPE_CHECKING:
    from analysis.summaries.costs import Rate


@click.command()
@sweep_option
@format_option
@price_options
@click.option("--watch", is_flag=True, help="Show it again every few seconds until Ctrl-C.")
@number_option("--every", least=0.2, default=2.0, metavar="S", help="Seconds for --watch.")
def status(sweep: Sweep, style: str, rate: Rate | None, watch: bool, every: float) -> None:
    """Show how many trials have which status, what runs now, what it costs, and the best so far."""
    if watch and style != "table":
        raise click.UsageError("--watch is for people; leave out --format")
    experiment = sweep.open()
    if watch:
        _watch(experiment, every, rate)
        return
    trials = readable(experiment)
    if style == "json":
        print_json(status_document(experiment, trials))
    elif style == "csv":
        found = table.best(experiment.space, trials)
        row: dict[str, Any] = {
            "name": experiment.space.name,
            "url": experiment.store.url,
            "run_cap": experiment.space.run_cap,
            **table.counts(trials),
            "best": None if found is None else found.trial,
        }
        if (compute := costs.compute(trials)) is not None:
            row |= {"cost_nominal": compute.nominal, "cost_paid": compute.paid}
        own = {*row, "cost_nominal", "cost_paid"}
        row |= {
            metric_column(metric, own): None if found is None else found.metrics.get(metric)
            for metric in experiment.space.metrics()
        }
        print_csv([row])
    else:
        for line in status_lines(experiment, trials, rate):
            echo(line)
        if running := running_rows(experiment, trials):
            print_table(running)


@click.command()
@sweep_option
@format_option
def trials(sweep: Sweep, style: str) -> None:
    """Show the table of trials."""
    experiment = sweep.open()
    records = readable(experiment)
    if style == "json":
        print_json(table.nested_rows(experiment.space, records))
    elif style == "csv":
        rows = table.flat_rows(experiment.space, records)
        print_csv(rows, table.columns(rows))
    elif not records:
        click.echo(
            f"no trials yet; start some with `sweep worker --storage {shlex.quote(experiment.store.url)}`"
        )
    else:
        planned = rounds.of_store(experiment.store, experiment.space, list(records))
        roles = {} if planned is None else confirmation.roles(experiment.space, *planned)
        print_table(rows_for_people(experiment.space, records, roles))


def status_lines(experiment: Experiment, records: Sequence[Trial], rate: Rate | None = None) -> list[str]:
    """Return the status of a sweep in a few lines for people; `rate` is the price of the trials' time."""
    space = experiment.space
    imported = sum(record.generator == "imported" for record in records)
    repeats = sum(record.generator == "confirm" for record in records)
    searched = budget.run_cap_count(space, records)
    cheaper = len(records) - imported - repeats - searched
    most = most_trials(space, records, ended=False)
    of = "" if most is None else f" of {most}"
    others = ((cheaper, "below the target"), (imported, "imported"), (repeats, "to confirm the best"))
    extra = "".join(f" and {count} {what}" for count, what in others if count)
    statuses = [f"{n} {status.replace('_', ' ')}" for status, n in table.counts(records).items() if n]
    lines = [
        f"sweep   {space.name}  ({experiment.store.url})",
        f"trials  {searched}{of}{extra}{': ' if statuses else ''}{', '.join(statuses)}",
    ]
    switch = control.switch(experiment.store)
    if experiment.amendments.archived:
        lines.append(f"state   in the archive, and {switch.state}; `sweep archive --undo` takes it out")
    elif switch.braked:
        lines.append(f"state   paused by the brake: {switch.why}; {brake.REMEDY}")
    elif switch.state != "running":
        lines.append(f"state   {switch.state}; `sweep resume` opens it again")
    used = asdict(budget.spent(space, records, experiment.store.now()))
    limits = [f"{used[name]:.4g} of {most:.4g} {name}" for name, most in budget.amounts(space.budget).items()]
    if space.budget.until is not None:
        limits.append(f"no trial begins after {timestamp(space.budget.until)}")
    if limits:
        lines.append(f"budget  {', '.join(limits)}")
    if (standing := experiment.standing()) is not None:
        lines.append(f"stop    {standing}")
    lines += [f"changed {line}" for line in amendment_lines(experiment.amendments)]
    if line := sharing.sweep_line(records):
        lines.append(f"compute {line}")
    if line := sharing.trunks_line(records):
        lines.append(f"trunks  {line}")
    if any(record.snapshots for record in records):
        from sweeps.cli.snapshots import status_line

        lines.append(f"stages  {status_line(experiment, records)}")
    has_ended = standing is not None and standing.ended
    if line := _cost_line(space, searched if has_ended else most, records, rate):
        lines.append(f"cost    {line}")
    if (planned := rounds.of_store(experiment.store, space, list(records))) is not None:
        lines.append(f"confirm {confirmation.progress_line(space, *planned)}")
    if (found := table.best(space, records)) is not None:
        lines.append(f"best    {best_line(space, found)}, in one run")
        gained = gain(space, records, found, None)
        if gained is not None and not confirmation.has_confirmed(space, planned, records):
            lines.append(f"gain    {gained}")
    if worker := chooser(experiment):
        lines.append(f"next    {worker} is choosing a trial")
    return lines


def _cost_line(space: Space, cap: int | None, records: Sequence[Trial], rate: Rate | None) -> str:
    """Return dollars so far, and expected for so many trials, in words; "" if no cost is known."""
    from analysis.summaries.costs import cost

    estimate = cost(table.cost_rows(space, records), cap, rate)
    if rate is None and not estimate.so_far:
        return ""
    expected = (
        "" if estimate.expected is None else f", about ${estimate.expected:.2f} when all {cap} are done"
    )
    unknown = f"; without a price: {counted(estimate.unpriced, 'trial')}" if estimate.unpriced else ""
    return f"${estimate.so_far:.2f} so far{expected}, {estimate.basis}{unknown}"


def rows_for_people(space: Space, records: Sequence[Trial], roles: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return the trials for people: parameters that vary, or all of one trial, objectives, and failures."""
    varied = [
        p.name
        for p in space.parameters
        if len({repr(table.flat_parameter(r, p.name)) for r in records}) > 1
        or (len(records) == 1 and not isinstance(p, Fixed) and p.name in records[0].parameters)
    ]
    shared = any(costs.reused(record) for record in records)
    branched = any(costs.branched(record) for record in records)
    has_errors = any(record.error for record in records)
    metrics = {metric: metric_column(metric, FOR_PEOPLE) for metric in space.metrics()}
    parameters = {name: parameter_column(name, metrics.values()) for name in varied}
    paid = costs.paid_by_trial(records)
    rows = []
    for record in records:
        row: dict[str, Any] = {"trial": record.trial, "status": record.status, "by": record.generator}
        if roles:
            row["confirmation"] = roles.get(record.trial)
        row |= {column: table.flat_parameter(record, name) for name, column in parameters.items()}
        row |= {column: record.metrics.get(metric) for metric, column in metrics.items()}
        taken = table.seconds(record)
        row["seconds"] = None if taken is None else round(taken, 1)
        if shared or branched:
            row["paid"] = paid[record.trial]
        if shared:
            row["reused"] = sharing.sources(record)
        if branched:
            row["branched"] = sharing.trunk_sources(record)
        if has_errors:
            row["error"] = (record.error or "").partition("\n")[0][:100]
        rows.append(row)
    return rows


def _watch(experiment: Experiment, every: float, rate: Rate | None) -> None:
    """Refresh the status every so many seconds until Ctrl-C.

    On a terminal it is refreshed in place. In a pipe or a file it is written again when it has changed.
    """
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    def status_now() -> list[str]:
        (stored,) = experiment.store.read_many([SWEEP_KEY])
        experiment.amendments.require_same_sweep(stored)
        experiment.amendments.load()
        records = redact_trials(experiment.readable_trials()[0])
        return [escape_controls(line) for line in live_lines(experiment, records, rate)]

    def view() -> Group:
        return Group(*map(Text, status_now()))

    if not sys.stdout.isatty():
        before: list[str] = []
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                if (lines := status_now()) != before:
                    click.echo("\n".join([timestamp(experiment.store.now()), *lines, ""]))
                    sys.stdout.flush()
                    before = lines
                time.sleep(every)
        return
    with contextlib.suppress(KeyboardInterrupt), Live(view(), console=console(), auto_refresh=False) as live:
        while True:
            time.sleep(every)
            live.update(view(), refresh=True)


def live_lines(experiment: Experiment, records: Sequence[Trial], rate: Rate | None = None) -> list[str]:
    """Return the lines of `status_lines`, and one for each running trial."""
    running = (
        "  ".join(f"{name} {shorten(value)}" for name, value in row.items() if value is not None)
        for row in running_rows(experiment, records)
    )
    return [*status_lines(experiment, records, rate), *(f"        {line}" for line in running)]
