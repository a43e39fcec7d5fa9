"""`sweep pareto`: the front of a sweep, or of any table with two columns of numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from sweeps import export
from sweeps.cli.locate import open_sweep, storage_options
from sweeps.cli.output import format_option, print_csv, print_json, print_table, shorten
from sweeps.errors import InputError
from sweeps.space import Space

if TYPE_CHECKING:
    import pandas as pd

    from analysis.summary import ParetoResult


@click.command()
@storage_options
@format_option
@click.option(
    "--table", type=click.Path(path_type=Path), help="Any CSV, Parquet or JSON table, instead of a sweep."
)
@click.option("--x", metavar="COLUMN", help="Compute. Default: the second objective, or effective_steps.")
@click.option("--y", metavar="COLUMN", help="Loss. Default: the first objective.")
@click.option(
    "--baseline", type=float, metavar="LOSS", help="The loss without Stage 1.9, for the efficiency."
)
def pareto(
    storage: str | None,
    name: str | None,
    style: str,
    table: Path | None,
    x: str | None,
    y: str | None,
    baseline: float | None,
) -> None:
    """The Pareto front of loss against compute, its knee, and the most efficient trial: three words."""
    from analysis.errors import AnalysisError

    try:
        result = _of_table(table, x, y, baseline) if table else _of_sweep(storage, name, x, y, baseline)
    except AnalysisError as error:
        raise InputError(str(error)) from None
    if style == "json":
        print_json(result.to_json())
    elif style == "csv":
        print_csv(_rows(result, all_points=True), ["trial", "x", "y", "front", "knee", "most_efficient"])
    else:
        print_front(result)


def of_experiment(
    space: Space, frame: pd.DataFrame, x: str | None, y: str | None, baseline: float | None
) -> ParetoResult:
    """The front of a sweep's table; axes that are not given are chosen from its objectives."""
    from analysis.summary import default_axes
    from analysis.summary import pareto as compute
    from analysis.table import metric_column

    goals = {metric_column(objective.metric): objective.goal for objective in space.objectives}
    axes = default_axes(frame, [{"metric": o.metric, "goal": o.goal} for o in space.objectives])
    if axes is None and (x is None or y is None):
        raise InputError(
            "nothing to set against the objective: no second objective and no measure of compute among the "
            "metrics; name two columns with --x and --y"
        )
    x_column, y_column = x or (axes or ("", ""))[0], y or (axes or ("", ""))[1]
    goal: dict[str, Literal["minimize", "maximize"]] = {
        "x_goal": goals.get(x_column, "minimize"),
        "y_goal": goals.get(y_column, "minimize"),
    }
    return compute(frame, x=x_column, y=y_column, baseline=baseline, **goal)


def print_front(result: ParetoResult) -> None:
    """The front for people."""
    if not result.points:
        click.echo(f"no completed trial has both {result.x} and {result.y} yet")
        return
    print_table(_rows(result, all_points=False))
    click.echo(f"{len(result.front)} of {len(result.points)} trials are on the front")


def _of_table(table: Path, x: str | None, y: str | None, baseline: float | None) -> ParetoResult:
    from analysis.summary import pareto as compute
    from analysis.table import read

    if x is None or y is None:
        raise InputError("--table needs --x COLUMN and --y COLUMN")
    return compute(read(table), x=x, y=y, baseline=baseline)


def _of_sweep(
    storage: str | None, name: str | None, x: str | None, y: str | None, baseline: float | None
) -> ParetoResult:
    from analysis.table import from_document

    experiment = open_sweep(storage, name)
    document = export.document(experiment.space, experiment.store.url, experiment.trials())
    return of_experiment(experiment.space, from_document(document), x, y, baseline)


def _rows(result: ParetoResult, *, all_points: bool) -> list[dict[str, Any]]:
    front = set(result.front)
    points = {point.trial: point for point in result.points}
    if all_points:
        return [
            {
                "trial": point.trial,
                "x": point.x,
                "y": point.y,
                "front": point.trial in front,
                "knee": point.trial == result.knee,
                "most_efficient": point.trial == result.most_efficient,
            }
            for point in result.points
        ]
    shown = [*result.front]
    if result.most_efficient is not None and result.most_efficient not in front:
        shown.append(result.most_efficient)
    words = {result.knee: "knee", result.most_efficient: "most efficient"}
    if result.knee is not None and result.knee == result.most_efficient:
        words[result.knee] = "knee, most efficient"
    return [
        {
            "trial": trial,
            result.x: shorten(points[trial].x),
            result.y: shorten(points[trial].y),
            "": ", ".join(filter(None, ["front" if trial in front else "", words.get(trial, "")])),
        }
        for trial in shown
    ]
