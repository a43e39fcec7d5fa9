"""Tables of the front for the report: heads that name the source of each column, and rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from analysis import labels
from analysis.summaries.many_objective import ManyObjectiveFront
from analysis.summaries.summary import ParetoResult
from analysis.summaries.summary_line import format_cell
from analysis.summaries.uncertainty import Uncertainty
from analysis.table import SEM, TrialsTable

ROWS = 500
"""Most trials in a table of the page, which would be slow with more. The export has them all."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """The head of a column: its name, and the column and formula of its numbers."""

    name: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """A trial on the front: its tags, and a cell for each head."""

    trial: int
    tags: tuple[str, ...]
    cells: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FrontTable:
    """The first ROWS trials of a front, and the number of further ones."""

    heads: tuple[Head, ...]
    rows: tuple[Row, ...]
    left_out: int


def tradeoff_table(table: TrialsTable, result: ParetoResult, uncertainty: Uncertainty) -> FrontTable:
    """Return the front of two columns, with chances as percentages if there are standard errors."""
    table = table.configurations
    x, y = result.x, result.y
    at = {point.trial: point for point in result.points}
    tags = (("knee", result.knee), ("most efficient", result.most_efficient))
    rows = []
    for trial in result.front[:ROWS]:
        chances = uncertainty.trials[trial]
        cells = [labels.number(at[trial].x), format_cell(table, y, table.row_of[trial])]
        if result.baseline is not None:
            interval = labels.with_error(chances.efficiency, chances.efficiency_range)
            cells.append(interval or labels.number(chances.efficiency, digits=2))
        if uncertainty.draws:
            cells.append(labels.share(chances.front))
            cells += [labels.share(chances.most_efficient)] if result.baseline is not None else []
        names = tuple(name for name, holder in tags if holder == trial) + _confirmation_tag(
            result.confirmed, trial
        )
        rows.append(Row(trial=trial, tags=names, cells=tuple(cells)))
    heads = [column_head(x, table, with_error=False), column_head(y, table)]
    if result.baseline is not None:
        baseline, per = labels.number(result.baseline), f"per {uncertainty.unit}"
        gain = f"({baseline} − {y})" if result.y_goal == "minimize" else f"({y} − {baseline})"
        source = f"{gain} {per}, from column {y} and column {x}; ±: 95 %"
        heads.append(Head(name=f"efficiency {per}", source=source))
    if uncertainty.draws:
        draws = f"share of {uncertainty.draws} draws of column {y} with its errors, see the footnote"
        heads.append(Head(name="chance to be on the front", source=draws))
        if result.baseline is not None:
            heads.append(Head(name="chance to be most efficient", source=draws))
    return FrontTable(heads=tuple(heads), rows=tuple(rows), left_out=max(0, len(result.front) - ROWS))


def many_objectives_table(table: TrialsTable, found: ManyObjectiveFront) -> FrontTable:
    """Return the front of three objectives or more: a column each; the best of each objective is tagged."""
    table, objectives, values = table.configurations, found.objectives, found.values
    heads = [column_head(o.metric, table) for o in objectives]
    if found.draws:
        noisy = [f"column {o.metric}{SEM}" for o in objectives if o.metric + SEM in table]
        source = f"share of {found.draws} draws of all objectives with the errors in {' and '.join(noisy)}"
        heads.append(Head(name="chance to be on the front", source=source))
    signs = [1.0 if o.goal == "minimize" else -1.0 for o in objectives]
    best = (values * signs).min(axis=0, initial=np.inf) * signs
    rows = []
    for at in found.front[:ROWS]:
        trial = found.trials[at]
        cells = [format_cell(table, o.metric, table.row_of[trial]) for o in objectives]
        cells += [labels.share(found.chances[at])] if found.draws else []
        tags = tuple(
            f"best {o.metric}" for o, v, b in zip(objectives, values[at], best, strict=True) if v == b
        )
        tags += _confirmation_tag(found.confirmed, trial)
        rows.append(Row(trial=trial, tags=tags, cells=tuple(cells)))
    return FrontTable(heads=tuple(heads), rows=tuple(rows), left_out=max(0, len(found.front) - ROWS))


def _confirmation_tag(seeds: Mapping[int, int], trial: int) -> tuple[str, ...]:
    """Return the tag of a confirmed trial; none if no trial is confirmed."""
    if not seeds:
        return ()
    return (labels.confirmed(seeds[trial]) if trial in seeds else "unconfirmed",)


def column_head(column: str, table: TrialsTable, *, with_error: bool = True) -> Head:
    """Return the head of a column that the page shows as the table has it."""
    has_error = with_error and column + SEM in table
    seeds = ", with the spread over seeds" if column in table.repeats.spreads else ""
    error = f"; ±: one standard error, column {column}{SEM}{seeds}" if has_error else ""
    return Head(name=labels.title(column), source=f"column {column}{error}")
