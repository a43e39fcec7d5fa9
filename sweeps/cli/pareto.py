"""Command `sweep pareto`: the front of a sweep, or of any table with two columns of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sweeps.cli.best import nothing_yet
from sweeps.cli.options import Sweep, path_option, readable, sweep_option
from sweeps.cli.output import echo, format_option, notify, print_csv, print_json, print_table
from sweeps.cli.prices import price_options
from sweeps.errors import EXIT_FAILED, InputError
from sweeps.export import table as export
from sweeps.export.held_out import losses
from sweeps.space.definition import Space
from sweeps.text.counted import counted
from sweeps.text.shorten import shorten

if TYPE_CHECKING:
    from analysis.statistics.pareto import Goal
    from analysis.summaries.budget import Answer
    from analysis.summaries.costs import Rate
    from analysis.summaries.many_objective import ManyObjectiveFront
    from analysis.summaries.reuse import Reuse
    from analysis.summaries.summary import ParetoResult
    from analysis.summaries.uncertainty import Chances, Uncertainty
    from analysis.table import TrialsTable

_EFFICIENCY = "efficiency"


@dataclass(frozen=True, kw_only=True)
class _Answers:
    """The front of two columns, that of all objectives, what the budget buys, and what trials shared."""

    frame: TrialsTable
    front: ParetoResult
    objectives: ManyObjectiveFront | None
    bought: Answer | None
    shared: Reuse | None


@click.command()
@sweep_option
@format_option
@path_option("--table", help="Any CSV, Parquet or JSON table, instead of a sweep.")
@click.option("--x", metavar="COLUMN", help="Compute. Default: the second objective, or effective_steps.")
@click.option("--compute", metavar="MEASURE", help="effective_steps, flops, seconds or usd: instead of --x.")
@price_options
@click.option("--y", metavar="COLUMN", help="Loss. Default: the first objective.")
@click.option(
    "--goal",
    type=click.Choice(["minimize", "maximize"]),
    help="Of --y. Default: the objective's, or minimize.",
)
@click.option(
    "--baseline",
    type=float,
    metavar="LOSS",
    help="The loss that gains are measured from; of the trainer, without Stage 1.9.",
)
@click.option("--budget", type=float, metavar="X", help="Also say what X compute buys, by a fitted curve.")
@click.option(
    "--chances",
    is_flag=True,
    help="Also how often each is on the front, the knee or most efficient, if losses vary by their errors.",
)
def pareto(
    sweep: Sweep, style: str, rate: Rate | None, table: Path | None, chances: bool, **asked: Any
) -> None:
    """Show the Pareto front of loss against compute, its knee, and the most efficient trial."""
    from analysis.errors import AnalysisError
    from analysis.summaries.uncertainty import estimate_uncertainty
    from analysis.table import TrialsTable

    if asked["x"] and asked["compute"]:
        raise InputError("--x and --compute both name the column of compute; give one of them")
    try:
        if table:
            frame = TrialsTable.open(table)
            if frame.left_out:
                left_out = ", ".join(f"{count} {state}" for state, count in frame.left_out.items())
                echo(f"left out: {left_out}", err=True)
            if not len(frame):
                of_completed = " of completed trials" if frame.left_out else ""
                raise InputError(f"{table}: no rows{of_completed}")
            answers = _answer(None, frame.with_effective_steps(), rate, chances=chances, **asked)
        else:
            experiment = sweep.open()
            records = readable(experiment)
            if style == "table" and not any(record.status == "completed" for record in records):
                notify(nothing_yet(experiment, records))
                click.get_current_context().exit(EXIT_FAILED)
            # The losses of each sequence pair the trials' errors, for the chances.
            by_sequence = losses(experiment.store, experiment.space, records) if chances else None
            document = export.document(experiment.space, experiment.store.url, records, by_sequence)
            frame = TrialsTable.from_document(document)
            answers = _answer(experiment.space, frame, rate, chances=chances, **asked)
    except AnalysisError as error:
        raise InputError(str(error)) from None
    uncertainty = estimate_uncertainty(answers.frame, answers.front) if chances else None
    if style == "json":
        parts = (
            ("objectives", answers.objectives),
            ("chances", uncertainty),
            ("budget", answers.bought),
            ("compute", answers.shared),
        )
        found = {name: part.to_json() for name, part in parts if part is not None}
        print_json(answers.front.to_json() | found)
        return
    if style == "csv":
        rows = _rows(answers.front, all_points=True)
        columns = ["trial", "x", "y", "front", "knee", "most_efficient"]
        columns += ["confirmed_by_seeds"] if answers.front.confirmed else []
        if uncertainty is not None:
            added = {trial: _chances_csv(each) for trial, each in uncertainty.trials.items()}
            rows = [row | added[row["trial"]] for row in rows]
            columns += dict.fromkeys(name for row in added.values() for name in row)
        print_csv(rows, columns)
    else:
        _print_tables(answers, uncertainty)
    if answers.bought is not None:
        _print_bought(answers.bought, to_stderr=style == "csv")


def _answer(
    space: Space | None,
    frame: TrialsTable,
    rate: Rate | None,
    *,
    x: str | None,
    compute: str | None,
    y: str | None,
    goal: Goal | None,
    baseline: float | None,
    budget: float | None,
    chances: bool,
) -> _Answers:
    """Compute everything that was asked; `space` is None for a table that is no sweep's."""
    from analysis.summaries import budget as budgets
    from analysis.summaries import summary
    from analysis.summaries.compute import column_of, with_price
    from analysis.summaries.many_objective import DRAWS, many_objective_front
    from analysis.summaries.reuse import reuse
    from analysis.summaries.summary_line import Objective
    from analysis.table import metric_column

    frame = with_price(frame, rate) if rate else frame
    x = column_of(compute, frame) if compute else x
    if space is not None:
        front = sweep_front(space, frame, x, y, baseline, goal)
    elif x is None or y is None:
        raise InputError("--table needs --x COLUMN and --y COLUMN")
    else:
        front = summary.pareto(frame, x=x, y=y, baseline=baseline, y_goal=goal or "minimize")
    objectives = None
    if space is not None and not (x or y):  # None for fewer than three
        goals = [Objective(metric=metric_column(o.metric), goal=o.goal) for o in space.objectives]
        objectives = many_objective_front(frame, goals, draws=DRAWS if chances else 0)
    bought = (
        None
        if budget is None
        else budgets.answer(frame, x=front.x, y=front.y, budget=budget, y_goal=front.y_goal)
    )
    shared = reuse(frame, front.y, front.y_goal)
    return _Answers(frame=frame, front=front, objectives=objectives, bought=bought, shared=shared)


def _print_tables(answers: _Answers, uncertainty: Uncertainty | None) -> None:
    from analysis.summaries.compute import NOMINAL_COLUMNS

    if (among := answers.objectives) is not None:
        names = [objective.metric for objective in among.objectives]
        rows = []
        for at in among.front:
            values = map(shorten, among.values[at].tolist())
            row: dict[str, Any] = {"trial": among.trials[at], **dict(zip(names, values, strict=True))}
            if among.draws:
                row["front %"] = round(100 * among.chances[at])
            rows.append(row)
        if rows:
            print_table(rows)
        summary = f"{_on_front(len(rows), len(among.trials))} in all {len(names)} objectives"
        if among.hypervolume is not None and among.reference is not None:
            reference = ", ".join(shorten(value) for value in among.reference)
            summary += f"; hypervolume {shorten(among.hypervolume)} within ({reference})"
        echo(f"{summary}; of two columns alone:\n")
    print_front(answers.front, uncertainty)
    shown = answers.frame.configurations
    if count := len({*shown.trials.tolist()} & {*shown.infeasible}):
        echo(f"left out: {counted(count, 'trial')} outside of the outcome constraints")
    if answers.shared is not None:
        x = answers.front.x
        stages = "shared stages" if answers.shared.branches else "reused stages"
        nominal = f"; {x} counts {stages} as if computed" if x in NOMINAL_COLUMNS else ""
        echo(f"compute: {answers.shared.summary()}{nominal}")


def sweep_front(
    space: Space,
    frame: TrialsTable,
    x: str | None,
    y: str | None,
    baseline: float | None,
    goal: Goal | None = None,
) -> ParetoResult:
    """Return the front of a sweep's table.

    Args:
        x: column of compute; None: the second objective, or a measure of compute.
        y: column of loss; None: the first objective.
        baseline: the loss without Stage 1.9, for the efficiency.
        goal: of `y`; None: the objective's, or minimize.

    Raises:
        InputError: there is no column for one of the axes.
    """
    from analysis.summaries.summary import default_axes
    from analysis.summaries.summary import pareto as compute
    from analysis.table import metric_column

    goals = {metric_column(objective.metric): objective.goal for objective in space.objectives}
    axes = default_axes(frame, [{"metric": o.metric, "goal": o.goal} for o in space.objectives])
    if axes is None and (x is None or y is None):
        raise InputError(
            "nothing to set against the objective: no second objective and no measure of compute among the "
            "metrics; name two columns with --x and --y"
        )
    x_column, y_column = x or (axes or ("", ""))[0], y or (axes or ("", ""))[1]
    return compute(
        frame,
        x=x_column,
        y=y_column,
        baseline=baseline,
        x_goal=goals.get(x_column, "minimize"),
        y_goal=goal or goals.get(y_column, "minimize"),
    )


def print_front(result: ParetoResult, uncertainty: Uncertainty | None = None) -> None:
    """Print the front for people; with `uncertainty`, also the chances that the labels are right."""
    if not result.points:
        echo(f"no completed trial has both {result.x} and {result.y} yet")
        return
    rows = _rows(result, all_points=False)
    print_table(rows if uncertainty is None else [row | _chances(uncertainty, row["trial"]) for row in rows])
    echo(_on_front(len(result.front), len(result.points)))
    if result.confirmed:
        echo(
            "confirmed: the mean over fresh seeds; every other trial is one observation, and the best of "
            "many is too good to be true"
        )
    if uncertainty is not None:
        for line in _footnotes(result, uncertainty):
            echo(line)


def _on_front(count: int, trials: int) -> str:
    return f"{count} of {counted(trials, 'trial')} {'is' if count == 1 else 'are'} on the front"


def _chances(uncertainty: Uncertainty, trial: int) -> dict[str, Any]:
    """Return the columns of a trial's efficiency and chances, as far as they are known."""
    chances = uncertainty.trials[trial]
    columns: dict[str, Any] = {}
    if chances.efficiency is not None:
        reach = chances.efficiency_range
        columns[_EFFICIENCY] = f"{chances.efficiency:.3g}" + (f" ± {reach:.1g}" if reach else "")
    if uncertainty.draws:
        shares = {"front": chances.front, "knee": chances.knee, "most efficient": chances.most_efficient}
        columns |= {f"{word} %": round(100 * share) for word, share in shares.items() if share is not None}
    return columns


def _chances_csv(chances: Chances) -> dict[str, float | None]:
    return {
        "front_chance": chances.front,
        "knee_chance": chances.knee,
        "most_efficient_chance": chances.most_efficient,
        "efficiency": chances.efficiency,
        "efficiency_range": chances.efficiency_range,
    }


def _footnotes(result: ParetoResult, errors: Uncertainty) -> Iterator[str]:
    """Yield explanations of the columns of `_chances`."""
    if any(chances.efficiency is not None for chances in errors.trials.values()):
        baseline = shorten(result.baseline)
        yield f"efficiency: improvement on {baseline} per {errors.unit}, with its 95 % interval"
    if errors.draws:
        trials = counted(len(result.points), "trial")
        paired = f"; those of {errors.paired} of {trials} are paired by sequence" if errors.paired else ""
        seeds = f"; with the spread over seeds, {errors.spread.sd:.2g}" if errors.spread else ""
        yield f"%: in how many of {errors.draws} draws from the standard errors of {result.y}{paired}{seeds}"
    else:
        yield f"chances need standard errors: there is no column {result.y}_sem with any"
    if errors.hypervolume is not None and errors.reference is not None:
        reference = ", ".join(shorten(float(value)) for value in errors.reference)
        yield f"hypervolume {shorten(errors.hypervolume)} within the reference point ({reference})"


def _print_bought(bought: Answer, *, to_stderr: bool) -> None:
    """Print what the budget buys, and warnings to stderr."""
    lengths = ""
    if bought.stage1_9 is not None:
        low_high = bought.stage1_9_interval
        reach = f" (95 %: {low_high[0]} to {low_high[1]})" if low_high else ""
        lengths = (
            f" with {counted(bought.stage1_9, 'step')} of Stage 1.9{reach} and {bought.stage2} of Stage 2"
        )
    echo(
        f"{shorten(bought.budget)} {bought.x} buy {bought.y} {shorten(bought.value)} "
        f"(95 %: {shorten(bought.low)} to {shorten(bought.high)}){lengths}",
        err=to_stderr,
    )
    echo(f"fitted: {bought.formula}, through {bought.through}", err=to_stderr)
    for warning in bought.warnings:
        echo(f"sweep: warning: {warning}", err=True)


def _rows(result: ParetoResult, *, all_points: bool) -> list[dict[str, Any]]:
    from analysis import labels
    from analysis.table import apart

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
                "confirmed_by_seeds": result.confirmed.get(point.trial, 0),
            }
            for point in result.points
        ]
    shown = [*result.front]
    if result.most_efficient is not None and result.most_efficient not in front:
        shown.append(result.most_efficient)
    words = {result.knee: "knee", result.most_efficient: "most efficient"}
    if result.knee is not None and result.knee == result.most_efficient:
        words[result.knee] = "knee, most efficient"
    confirmed = {trial: labels.confirmed(seeds) for trial, seeds in result.confirmed.items()}
    return [
        {
            "trial": trial,
            apart(result.x, {_EFFICIENCY}): shorten(points[trial].x),
            apart(result.y, {_EFFICIENCY}): shorten(points[trial].y),
            "": ", ".join(
                filter(
                    None, ["front" if trial in front else "", words.get(trial, ""), confirmed.get(trial, "")]
                )
            ),
        }
        for trial in shown
    ]
