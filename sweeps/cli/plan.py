"""Command `sweep plan`: what to run at a size, by finished sweeps at others."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sweeps.cli.options import path_option
from sweeps.cli.output import document_option, echo, notify, print_json, print_table
from sweeps.cli.prices import price_options
from sweeps.errors import DamagedObject, InputError
from sweeps.export import table
from sweeps.operations.opening import open_sweep
from sweeps.operations.planning import SIZE, Plan, make_plan
from sweeps.storage.urls import is_remote
from sweeps.text.shorten import shorten

if TYPE_CHECKING:
    from analysis.summaries.costs import Rate


@click.command()
@click.argument("sweep", nargs=-1, required=True, metavar="SWEEP...")
@click.option(
    "--at",
    "targets",
    required=True,
    multiple=True,
    metavar="[NAME=]SIZE",
    help=f"The size to plan for. NAME: a metric, or a fixed parameter of each SWEEP. Default: {SIZE}. A "
    "second --at: of a NAME in which they differ as well, such as the length of training.",
)
@click.option(
    "--size",
    "sizes",
    type=float,
    multiple=True,
    metavar="SIZE",
    help="The size of a SWEEP, once for each, in their order. Default: as their records have it.",
)
@click.option(
    "--storage",
    metavar="URL",
    help="Where a SWEEP without a folder is. Default: SWEEP_STORAGE, or ./sweep-store.",
)
@click.option(
    "--speed", type=float, metavar="N", help="Operations a second there. Default: as at the largest SWEEP."
)
@price_options
@path_option("--write", metavar="YAML", help="A new space file, for a final sweep.")
@path_option("--figure", metavar="FILE", help="A figure: FILE.svg and FILE.png, in place of older ones.")
@document_option
def plan(
    sweep: tuple[str, ...],
    targets: tuple[str, ...],
    sizes: tuple[float, ...],
    storage: str | None,
    speed: float | None,
    rate: Rate | None,
    write: Path | None,
    figure: Path | None,
    style: str,
) -> None:
    """Say what to run at a size that was not swept, by finished sweeps at two others or more.

    SWEEP is a URL, or a name under --storage. For each parameter a line over the logarithm of the size goes
    through the sweeps' optima, by their intervals; likewise through their losses. The exponent of a
    logarithmic setting is that of the line: at -0.5 it falls with the root of the size. The space file has
    the line's intervals as ranges, the recommended settings as its first trial, and the sweeps under
    `transfer`.
    """
    (measure, size), *others = map(_target, targets)
    if len(others) > 1 or any(name == measure for name, _ in others):
        raise InputError("--at names one size, and at most one other measure; leave out what is more")
    for path in (write, figure):
        if path is not None:
            table.require_place(path)
    if write is not None and write.exists():  # before minutes of fits
        raise InputError(f"{write}: there is a file already; name a new one")
    try:
        experiments = [
            open_sweep(each, None) if is_remote(each) or "/" in each else open_sweep(storage, each)
            for each in sweep
        ]
    except DamagedObject as error:
        raise InputError(str(error)) from None
    found = make_plan(
        experiments,
        size,
        measure=measure,
        sizes=sizes,
        other=others[0] if others else None,
        speed=speed,
        usd_per_hour=None if rate is None else rate.usd_per_hour,
    )
    if style == "json":
        print_json(found.document())
    else:
        _print(found, "" if rate is None else str(rate))
    if write is not None:
        table.write_new_file(write, _space_file(found))
        first = "" if "program" in found.space else "write its program: first; then "
        name = shlex.quote(str(write))
        notify(f"{write}: a space file for the final sweep; {first}`sweep init {name}` makes it")
    if figure is not None:
        from analysis.report.plan_figure import plan_figure

        png, svg = plan_figure(asdict(found)).save(figure)
        notify(f"{svg} and {png}: optima over size, and the lines that are followed")


def _target(text: str) -> tuple[str, float]:
    """Return a measure and its value of `--at`. Raises `InputError`."""
    measure, _, number = text.rpartition("=")
    try:
        return measure or SIZE, float(number)
    except ValueError:
        raise InputError(
            f"--at {text}: {number!r} is no number; write a size such as 4e9, or NAME=4e9"
        ) from None


def _space_file(found: Plan) -> str:
    """Return the final sweep's space as a file, with the notes above it."""
    from sweeps.space.yaml_cursor import dump

    head = [f"A short final sweep at {found.measure} {found.size:.4g}, by `sweep plan`.", *found.notes]
    if "program" not in found.space:
        head.append("TO DO: program: of the trials, which the sources have run from Python.")
    return "".join(f"# {line}\n" for line in head) + dump(found.space)


def _print(found: Plan, price: str) -> None:
    first, *others = found.lines(price)
    echo(first)
    rows = []
    for name, setting in found.settings.items():
        interval = setting.interval and " to ".join(map(shorten, setting.interval))
        options = ", ".join(map(shorten, setting.options)) if len(setting.options) > 1 else ""
        row = {"parameter": name, "set to": shorten(setting.value), "95 %": interval or options}
        if any(each.exponent for each in found.settings.values()):
            moves = setting.exponent
            row["exponent"] = f"{moves.value:.2f} ({moves.low:.2f} to {moves.high:.2f})" if moves else ""
        for source in found.sources:
            best = setting.optima.get(source.url)
            row[f"at {source.size:.3g}"] = shorten(best["value"] if isinstance(best, dict) else best)
        rows.append(row)
    print_table(rows)
    for line in others:
        echo(line)
    for note in found.notes:
        echo(f"note: {note}")
