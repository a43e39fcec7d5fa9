"""The tables of the front as the report shows them: heads that say where their column comes from, and rows.

`contents` calls this.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from analysis import labels
from analysis.summaries.many_objective import Several
from analysis.summaries.summary import ParetoResult
from analysis.summaries.summary_line import value
from analysis.summaries.uncertainty import Chances, Uncertainty

ROWS = 1000
"""Trials in a table of the page: beyond so many it is slow and unread. The export has them all."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """The head of a column: its name, and from which column and formula its numbers come."""

    name: str
    how: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """A trial on the front: the words for it, and a cell for each head."""

    trial: int
    names: tuple[str, ...]
    cells: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FrontTable:
    """The first ROWS trials of a front, and how many more there are."""

    heads: tuple[Head, ...]
    rows: tuple[Row, ...]
    left_out: int


def of_tradeoff(table: pd.DataFrame, result: ParetoResult, sure: Uncertainty) -> FrontTable:
    """The front of two columns. Shares are percentages, left out where nothing is known of the noise."""
    x, y = result.x, result.y
    heads = [told_as_it_is(x), told_as_it_is(y, sem=f"{y}_sem" in table.columns)]
    draws = f"share of {sure.draws} draws, each of column {y} with the error in column {y}_sem"
    if result.baseline is not None:
        per = f"per {sure.unit}"
        gain = f"({labels.number(result.baseline)} − {y})" if result.y_goal == "minimize" else (
            f"({y} − {labels.number(result.baseline)})"
        )  # fmt: skip
        heads.append(
            Head(name=f"efficiency {per}", how=f"{gain} {per}, from column {y} and column {x}; ±: 95 %")
        )
    if sure.draws:
        heads.append(Head(name="chance to be on the front", how=draws))
        if result.baseline is not None:
            heads.append(Head(name="chance to be most efficient", how=draws))
    at = {point.trial: point for point in result.points}
    row_of = {int(trial): row for row, trial in enumerate(table["trial"].tolist())}
    words = (("knee", result.knee), ("most efficient", result.most_efficient))
    rows = []
    for trial in result.front[:ROWS]:
        chances = sure.trials[trial]
        cells = [labels.number(at[trial].x), value(table, y, row_of[trial])]
        if result.baseline is not None:
            cells.append(_efficiency(chances))
        if sure.draws:
            cells.append(labels.share(chances.front))
            cells += [labels.share(chances.most_efficient)] if result.baseline is not None else []
        names = tuple(name for name, holder in words if holder == trial)
        rows.append(Row(trial=trial, names=names, cells=tuple(cells)))
    return FrontTable(heads=tuple(heads), rows=tuple(rows), left_out=max(0, len(result.front) - ROWS))


def of_several(table: pd.DataFrame, told: Several) -> FrontTable:
    """The front of three objectives or more: a column each; the best of each objective is named."""
    heads = [told_as_it_is(o.metric, sem=f"{o.metric}_sem" in table.columns) for o in told.objectives]
    if told.draws:
        noisy = [f"column {o.metric}_sem" for o in told.objectives if f"{o.metric}_sem" in table.columns]
        drawn = f"share of {told.draws} draws of all objectives with the errors in {' and '.join(noisy)}"
        heads.append(Head(name="chance to be on the front", how=drawn))
    row_of = {int(trial): row for row, trial in enumerate(table["trial"].tolist())}
    best = [
        told.values[:, at].min() if o.goal == "minimize" else told.values[:, at].max()
        for at, o in enumerate(told.objectives)
    ] if told.trials else []  # fmt: skip
    rows = [
        Row(
            trial=told.trials[at],
            names=tuple(
                f"best {o.metric}"
                for o, v, extreme in zip(told.objectives, told.values[at], best, strict=True)
                if v == extreme
            ),
            cells=(
                *(value(table, o.metric, row_of[told.trials[at]]) for o in told.objectives),
                *([labels.share(told.chances[at])] if told.draws else []),
            ),
        )
        for at in told.front[:ROWS]
    ]
    return FrontTable(heads=tuple(heads), rows=tuple(rows), left_out=max(0, len(told.front) - ROWS))


def told_as_it_is(column: str, *, sem: bool = False) -> Head:
    """The head of a column that the page shows as the table has it."""
    error = f"; ±: one standard error, column {column}_sem" if sem else ""
    return Head(name=labels.title(column), how=f"column {column}{error}")


def _efficiency(chances: Chances) -> str:
    reach = chances.efficiency_range
    if chances.efficiency is None or reach is None or reach == 0:
        return labels.number(chances.efficiency, digits=2)
    return labels.with_error(chances.efficiency, reach)
