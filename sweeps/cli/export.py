"""`sweep export` and `sweep report`: the sweep as a table and as a page."""

from __future__ import annotations

from pathlib import Path

import click

from sweeps import export as tables
from sweeps.cli.locate import open_sweep, storage_options
from sweeps.experiment import Experiment
from sweeps.objective import trainer_overrides


@click.command()
@storage_options
@click.argument("table", type=click.Path(path_type=Path))
def export(storage: str | None, name: str | None, table: Path) -> None:
    """Write the trials to TABLE, a .csv, .parquet or .json file."""
    experiment = open_sweep(storage, name)
    records = experiment.trials()
    tables.write(table, experiment.space, experiment.store.url, records)
    click.echo(f"{table}: {len(records)} trials")


@click.command()
@storage_options
@click.option("--out", type=click.Path(path_type=Path), default=Path("report.html"), show_default=True)
def report(storage: str | None, name: str | None, out: Path) -> None:
    """Write one self-contained HTML page: best trial, front, progress, trials, failures."""
    write_report(open_sweep(storage, name), out)
    click.echo(str(out))


def write_report(experiment: Experiment, out: Path) -> None:
    """Render the page and put it at `out`, whole or not at all. Raises `StoreUnavailable`."""
    from analysis.report import render

    records = experiment.trials()
    document = tables.document(experiment.space, experiment.store.url, records)
    found = tables.best(experiment.space, records)
    if found is not None:
        document["best_trial"] = found.trial
    if found is not None and experiment.space.program.kind == "trainer":
        document["best_overrides"] = trainer_overrides(experiment.space, found.parameters)
    page = render(document)
    tables.replace_file(out, lambda draft: draft.write_text(page, encoding="utf-8"))
