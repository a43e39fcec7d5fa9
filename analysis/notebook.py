"""Tables and figures of the notebooks, each from one call; notebooks have no logic of their own.

If a table cannot answer a question, the answer is the reason, as text, so that a notebook runs to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.errors import AnalysisError, TableError
from analysis.report import efficiency_figures, figures, many_objective_figures, reuse_figures, trunk_figures
from analysis.report.figure import Figure
from analysis.report.trunk_layout import layouts
from analysis.statistics.lengths import fit_surface, step_costs
from analysis.statistics.pareto import Goal
from analysis.summaries import budget as budgets
from analysis.summaries.compute import MEASURES, column_of, measure_of
from analysis.summaries.many_objective import many_objective_front
from analysis.summaries.paired import Paired, compare_trials
from analysis.summaries.reuse import Reuse, reuse
from analysis.summaries.seeds import over_seeds
from analysis.summaries.summary import ParetoResult, pareto
from analysis.summaries.summary_line import objectives as read_objectives
from analysis.summaries.uncertainty import Uncertainty, estimate_uncertainty
from analysis.table import TableLike, TrialsTable, apart


@dataclass(frozen=True, kw_only=True, repr=False)
class Picture:
    """A figure and its two files."""

    figure: Figure
    png: Path
    svg: Path

    def __repr__(self) -> str:
        return str(self.png)

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        return self.figure._repr_png_()


TRIALS = "trials.csv"
"""Where the notebooks look unless another table is named."""

EXAMPLE = Path(__file__).parent / "examples" / "stage19_length_sweep.csv"


def read_trials(path: str) -> TrialsTable:
    """Read the table in a file, with effective steps where its lengths say them.

    Without TRIALS, it says how to make it and reads the example that ships with the package. Another path
    has to be there.

    Raises:
        AnalysisError: no trial is completed; or see `TrialsTable.open`.
    """
    pd.set_option("display.max_colwidth", None)  # show warnings and verdicts in full
    if path == TRIALS and not Path(path).exists():
        print(
            f"EXAMPLE, not your sweep: there is no {TRIALS} in {Path.cwd()}; `sweep export {TRIALS}` writes "
            f"it. Shown is {EXAMPLE.name}: SmolLM2-135M, five lengths of Stage 1.9."
        )
        path = str(EXAMPLE)
    table = TrialsTable.open(path)
    if not table.completed.any():
        problem = "there are no trials yet" if not len(table) else "no trial is completed yet"
        raise TableError(path, f"{problem}; run `sweep export` again when some are")
    return table.with_effective_steps()


def load(path: str, compute: str = "effective_steps") -> tuple[TrialsTable, str]:
    """Read the table in a file as `read_trials` does, and find the column of compute.

    Args:
        compute: a measure of compute, or any column of numbers.

    Raises:
        AnalysisError: the table has no values of it; or see `read_trials`.
    """
    table = read_trials(path)
    try:
        return table, column_of(compute, table)
    except AnalysisError as error:
        if table.is_known(compute):
            return table, compute
        there = [name for name, measure in MEASURES.items() if any(map(table.is_known, measure.columns))]
        known = ", ".join(repr(name) for name in there)
        raise AnalysisError(
            f"{error}; set `compute` to {f'{known}, or ' if known else ''}a column of numbers"
        ) from None


def tradeoff(
    table: TableLike, x: str, y: str, baseline: float | None = None, goal: Goal = "minimize"
) -> tuple[ParetoResult, Uncertainty]:
    """Return the trade-off of loss and compute, and its uncertainty."""
    table = TrialsTable.from_frame(table)
    result = pareto(table, x=x, y=y, baseline=baseline, y_goal=goal)
    return result, estimate_uncertainty(table, result)


def points(result: ParetoResult, uncertainty: Uncertainty) -> pd.DataFrame:
    """Return a row per trial by ascending compute: its tags, its efficiency and its chances."""
    tags = {"knee": result.knee, "most efficient": result.most_efficient}
    x, y = (apart(column, {"front", *tags}) for column in (result.x, result.y))
    rows = []
    for point in sorted(result.points, key=lambda p: (p.x, p.y)):
        chances = uncertainty.trials[point.trial]
        rows.append(
            {
                "trial": point.trial,
                x: point.x,
                y: point.y,
                "front": point.trial in result.front,
                **{tag: point.trial == trial for tag, trial in tags.items()},
                **({"confirmed by seeds": result.confirmed.get(point.trial, 0)} if result.confirmed else {}),
                f"efficiency per {uncertainty.unit}": chances.efficiency,
                "± (95 %)": chances.efficiency_range,
                "chance: front": chances.front,
                "chance: knee": chances.knee,
                "chance: most efficient": chances.most_efficient,
            }
        )
    return pd.DataFrame(rows).dropna(axis="columns", how="all").set_index("trial") if rows else pd.DataFrame()


def tradeoff_picture(table: TableLike, result: ParetoResult, out: str) -> Picture:
    """Draw the trade-off, with a fitted curve if possible; saved in `out` as `pareto.png` and `.svg`."""
    table = TrialsTable.from_frame(table)
    try:
        curve = budgets.fit_trials(table, x=result.x, y=result.y, y_goal=result.y_goal).curve
    except AnalysisError:
        curve = None
    return _save(figures.tradeoff(table, result, curve), out, "pareto")


FEW = "Up to two objectives: the picture above says it all."


def pairs_picture(table: TableLike, objectives: Sequence[Sequence[str]], out: str) -> Picture | str:
    """Draw each pair of three objectives or more, `[metric, goal]` each; saved as `pairs.png` and `.svg`."""
    try:
        goals = [{"metric": metric, "goal": goal} for metric, goal in objectives]
        found = many_objective_front(table, read_objectives({"objectives": goals}))
    except AnalysisError as error:
        return str(error)
    return FEW if found is None else _save(many_objective_figures.pairs(found), out, "pairs")


def efficiency_picture(result: ParetoResult, uncertainty: Uncertainty, out: str) -> Picture | str:
    """Draw efficiency against compute; saved as `efficiency.png` and `.svg`."""
    if result.baseline is None:
        return "Efficiency needs a baseline: no completed trial has zero steps of Stage 1.9; set `baseline`."
    return _save(efficiency_figures.efficiency(result, uncertainty), out, "efficiency")


def hypervolume(result: ParetoResult, uncertainty: Uncertainty) -> str:
    """Describe the hypervolume with its reference point."""
    if uncertainty.hypervolume is None or uncertainty.reference is None:
        return "There are no points."
    x, y = uncertainty.reference
    return (
        f"{uncertainty.hypervolume:.5g} within the reference point {result.x} = {x:.5g}, {result.y} = {y:.5g}"
    )


def what_buys(
    table: TableLike, x: str, y: str, amounts: Sequence[float], goal: Goal = "minimize"
) -> pd.DataFrame | str:
    """Return a row per budget: the fitted loss with its interval, the lengths, and the caveats."""
    table = TrialsTable.from_frame(table)
    try:
        found = [budgets.answer(table, x=x, y=y, budget=amount, y_goal=goal) for amount in amounts]
    except AnalysisError as error:
        return str(error)
    x, y = (apart(column, {"to", "warnings"}) for column in (x, y))
    rows = [
        {
            x: bought.budget,
            y: bought.value,
            "95 % from": bought.low,
            "to": bought.high,
            "Stage 1.9 steps": bought.stage1_9,
            "Stage 2 steps": bought.stage2,
            "warnings": "; ".join(bought.warnings),
        }
        for bought in found
    ]
    return pd.DataFrame(rows).set_index(x)


def iso_compute(
    table: TableLike, y: str, amounts: Sequence[float], out: str, goal: Goal = "minimize"
) -> Picture | str:
    """Draw the loss along every split of each budget; saved as `iso_compute.png` and `.svg`."""
    if goal != "minimize":
        return f"The split is fitted to a loss, and more of {y} is better."
    table = TrialsTable.from_frame(table).with_effective_steps().configurations
    if table.length_columns is None:
        return "The table has no lengths of the two stages."
    rows = table.take(table.completed)
    stage1_9, stage2 = (rows.floats(column) for column in table.length_columns)
    try:
        costs = step_costs(stage1_9, stage2, rows.floats("effective_steps"))
        surface = fit_surface(stage1_9, stage2, rows.floats(y), rows.standard_errors(y), costs=costs)
        figure = efficiency_figures.iso_compute(surface, amounts, y)
    except AnalysisError as error:
        return str(error)
    return _save(figure, out, "iso_compute")


def shared(table: TableLike, y: str, goal: Goal = "minimize") -> Reuse | None:
    """Return what the trials shared; None if nothing was reused and none branched off a trunk."""
    return reuse(TrialsTable.from_frame(table), y, goal)


def paid_picture(found: Reuse | None, y: str, out: str) -> Picture | str:
    """Draw the best loss against paid compute; saved as `paid.png` and `.svg`."""
    if found is None:
        return "Nothing was reused: each trial has computed all of its stages."
    if not np.isfinite(found.best).any():
        return f"{found.summary()}; no completed trial has a value of {y}."
    return _save(reuse_figures.best_by_compute(found, y), out, "paid")


def trunks_picture(found: Reuse | None, out: str) -> Picture | None:
    """Draw the trunks of stages, and which trials branched off; saved as `trunks.png` and `.svg`."""
    if found is None or not found.trunks:
        return None
    return _save(trunk_figures.all_trunks(layouts(found.trunks, found.goal), found), out, "trunks")


def lengths_picture(found: Reuse | None, y: str, out: str) -> Picture | None:
    """Draw the loss against the length of each stage with trunks; saved as `lengths.png` and `.svg`."""
    if found is None or not found.lengths:
        return None
    return _save(trunk_figures.all_lengths(found, y), out, "lengths")


def prefixes_picture(found: Reuse | None, out: str) -> Picture | None:
    """Draw what each prefix that trials share has cost and saved; saved as `prefixes.png` and `.svg`."""
    if found is None or not found.prefixes:
        return None
    return _save(reuse_figures.prefixes(found), out, "prefixes")


def ablations(
    table: TableLike, questions: Sequence[Sequence[object]], y: str
) -> tuple[list[tuple[str, Paired]], pd.DataFrame]:
    """Compare the values of each question `[parameter, a, b]`.

    Returns:
        The comparisons that the table has pairs for, by name, and a row about every question.
    """
    table = TrialsTable.from_frame(table)
    pairs, rows = [], []
    for parameter, a, b in questions:
        row: dict[str, object] = {"parameter": parameter, "a": a, "b": b}
        try:
            found = compare_trials(table, str(parameter), a, b, y)
        except AnalysisError as error:
            rows.append(row | {"note": str(error)})
            continue
        pairs.append((f"{parameter}\n{a} − {b}", found))
        low, high = found.interval
        rows.append(
            row
            | {
                "mean a − b": found.mean,
                "95 % from": low,
                "to": high,
                "± of the text": found.text_sem or None,
                "a lower in": f"{found.lower} of {len(found.differences)}",
                "p (sign test)": found.p,
                "verdict": found.verdict,
            }
        )
    frame, text = pd.DataFrame(rows), "± of the text"
    unknown = text in frame and bool(frame[text].isna().all())
    return pairs, frame.drop(columns=text) if unknown else frame


def ablation_picture(pairs: Sequence[tuple[str, Paired]], y: str, out: str) -> Picture | str:
    """Draw the differences of all pairs; saved as `ablation.png` and `.svg`."""
    if not pairs:
        return "The table has no pairs for any of the questions."
    return _save(efficiency_figures.comparison(pairs, y), out, "ablation")


def means(table: TableLike) -> pd.DataFrame | str:
    """Return the means over seeds, a row per configuration."""
    try:
        return over_seeds(table)
    except AnalysisError as error:
        return str(error)


def unit(x: str) -> str:
    """Return the unit of compute in which efficiency is given for a column."""
    return measure_of(x).unit


def _save(figure: Figure, out: str, name: str) -> Picture:
    png, svg = figure.save(Path(out) / name)
    return Picture(figure=figure, png=png, svg=svg)
