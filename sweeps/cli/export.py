"""Commands `sweep export` and `sweep report`: the sweep as a table and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sweeps.cli.options import Sweep, path_option, readable, sweep_option
from sweeps.cli.output import echo
from sweeps.cli.prices import price_options
from sweeps.errors import InputError
from sweeps.experiment import Experiment
from sweeps.export import held_out as sequences
from sweeps.export import optuna_journal, wandb_table
from sweeps.export import table as tables
from sweeps.operations.report import report_document
from sweeps.text.counted import counted

if TYPE_CHECKING:
    from analysis.summaries.costs import Rate


@click.command()
@sweep_option
@click.argument("table", type=click.Path(path_type=Path), required=False)
@path_option("--optuna", metavar="JOURNAL", help="A journal for optuna-dashboard.")
@path_option("--ax", metavar="JSON", help="A file that Ax's Client loads.")
@click.option("--wandb", metavar="PROJECT", help="Log the table to a run of Weights & Biases.")
@click.option(
    "--held-out", is_flag=True, help="Add to a .json TABLE the losses of each sequence, for paired errors."
)
def export(
    sweep: Sweep, table: Path | None, optuna: Path | None, ax: Path | None, wandb: str | None, held_out: bool
) -> None:
    """Write the trials to TABLE, a .csv, .parquet or .json file, or into a format that other tools open."""
    if table is None and optuna is None and ax is None and wandb is None:
        raise InputError(
            "name a TABLE to write (.csv, .parquet or .json), --optuna JOURNAL, --ax JSON or --wandb PROJECT"
        )
    if held_out and (table is None or table.suffix.lower() != ".json"):
        raise InputError("--held-out: only a .json TABLE holds the losses of each sequence; name one")
    for place in filter(None, (table, optuna, ax)):
        tables.require_place(place)  # of all, before any is written
    experiment = sweep.open()
    records = readable(experiment)
    if table is not None:
        by_sequence = sequences.losses(experiment.store, experiment.space, records) if held_out else None
        tables.write(table, experiment.space, experiment.store.url, records, by_sequence)
        click.echo(f"{table}: {counted(len(records), 'trial')}")
    if optuna is not None:
        optuna_journal.write(optuna, experiment.space, records)
        click.echo(f"{optuna}: {counted(len(records), 'trial')}")
    if wandb is not None:
        echo(wandb_table.log(wandb, experiment.space, experiment.store.url, records))
    if ax is not None:
        from sweeps.export import ax_export  # it alone needs torch, which takes seconds to import

        left_out = ax_export.write(ax, experiment.space, records)
        click.echo(f"{ax}: {counted(len(records) - len(left_out), 'trial')}")
        if left_out:
            indices = ", ".join(str(index) for index in left_out[:10])
            click.echo(f"sweep: warning: Ax takes no trial without all parameters: not {indices}", err=True)


@click.command()
@sweep_option
@path_option("--out", default=Path("report.html"), help="Where the page goes.")
@click.option(
    "--surrogate/--no-surrogate",
    default=True,
    show_default=True,
    help="Fit Ax's surrogate once more and show what mattered; takes seconds.",
)
@price_options
def report(sweep: Sweep, out: Path, surrogate: bool, rate: Rate | None) -> None:
    """Write one self-contained HTML page: best trial, front, what mattered, costs, failures."""
    require_page(out)  # before the surrogate is fitted
    write_report(sweep.open(), out, surrogate=surrogate, rate=rate)
    click.echo(str(out))


def require_page(out: Path) -> None:
    """Raise `InputError` unless a report can be written to `out`, by a name that browsers open as a page."""
    tables.require_place(out)
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{str(out)!r}: a report is a page of HTML; give a name that ends in .html")


def write_report(
    experiment: Experiment, out: Path, *, surrogate: bool = True, rate: Rate | None = None
) -> None:
    """Render the page and write it to `out` atomically. Raises `StoreUnavailable`.

    Args:
        rate: the price of the trials' time; None: the costs that they report.
    """
    from analysis.report.report import render

    records = readable(experiment)
    document = report_document(experiment, records, surrogate=surrogate)
    page = render(document, rate)
    tables.replace_file(out, lambda draft: draft.write_text(page, encoding="utf-8"))
