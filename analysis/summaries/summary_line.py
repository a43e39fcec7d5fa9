"""Summary line of a report: the objectives, the progress, and the best trial or why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd

from analysis import labels
from analysis.errors import AnalysisError, TableError
from analysis.statistics.pareto import Goal
from analysis.table import (
    PARAMETER,
    POINTS,
    SEM,
    STAGES,
    SWEEP_COLUMNS,
    TRIAL_COLUMNS,
    TrialsTable,
    metric_column,
)

STATUSES = ("completed", "running", "pending", "failed", "early_stopped", "abandoned")


@dataclass(frozen=True, kw_only=True)
class Objective:
    """An objective of the sweep: the column of a metric, and its goal."""

    metric: str
    goal: Goal


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """Result of the fresh runs of a trial.

    Args:
        low: lower end of the 95 % interval of their mean (Student's t: the spread over seeds is an estimate).
        first: the observation that the trial was selected for; None if it is not in the table.
        test: the column of the same metric on the test text, and its interval; None if it was not measured.
    """

    seeds: int
    low: float
    high: float
    first: float | None
    test: tuple[str, float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class BestTrial:
    """The best completed trial by the first objective.

    Args:
        title: of the value, for people.
        value: of the first objective, for people.
        parameters: (name for people, value, column).
        metrics: all others, as `parameters`.
        confirmation: None if it is one observation.
    """

    trial: int
    generator: str
    title: str
    value: str
    column: str
    parameters: tuple[tuple[str, str, str], ...]
    metrics: tuple[tuple[str, str, str], ...]
    confirmation: Confirmation | None = None


def objectives(document: Mapping[str, Any]) -> tuple[Objective, ...]:
    """Return the objectives of an export document.

    Raises:
        TableError: they are no list of {metric, goal}.
    """
    try:
        pairs = [(str(o["metric"]), str(o.get("goal", "minimize"))) for o in document.get("objectives") or ()]
    except (KeyError, TypeError, AttributeError):
        raise TableError("the sweep's export", "objectives must be a list of {metric, goal}") from None
    for metric, goal in pairs:
        if goal not in ("minimize", "maximize"):
            raise TableError(
                "the sweep's export", f"the goal of {metric!r} is {goal!r}: minimize or maximize"
            )
    return tuple(Objective(metric=metric_column(metric), goal=cast("Goal", goal)) for metric, goal in pairs)


def progress(table: TrialsTable) -> tuple[tuple[str, int], ...]:
    """Count the trials in each status that occurs."""
    counts = table.frame["status"].astype(str).value_counts()
    names = [*STATUSES, *sorted(set(counts.index) - set(STATUSES))]
    return tuple((name, int(counts[name])) for name in names if name in counts.index)


def best_trial(
    table: TrialsTable, objectives: Sequence[Objective], named: object
) -> tuple[BestTrial | None, str]:
    """Return the best trial, or None and the reason.

    If any configuration is confirmed, it is the best of these: no single observation counts against them.

    Args:
        objectives: those of the sweep, of which the first counts.
        named: index of the best trial as the export says, which is taken if that trial has a result.
    """
    if not len(table):
        return None, "No trial has been asked for yet. Start a worker: sweep worker"
    if not objectives:
        return None, "The export names no objective, so no trial can be called the best."
    first = objectives[0]
    try:
        values = table.floats(first.metric)
    except AnalysisError as error:
        if not table.completed.any():
            return None, _without_result(table, first.metric)
        return None, f"No completed trial can be ranked: {error}."
    if not (table.completed & np.isfinite(values)).any():
        return None, _without_result(table, first.metric)
    shown = table.configurations
    values = shown.floats(first.metric)
    finite = shown.feasible & np.isfinite(values)
    if not finite.any():
        return None, "No completed trial is within the outcome constraints."
    confirmed = finite & np.isin(shown.trials, list(shown.repeats.runs))
    candidates = confirmed if confirmed.any() else finite
    row = int(np.argmin(np.where(candidates, values if first.goal == "minimize" else -values, np.inf)))
    if isinstance(named, int) and finite[at := shown.row_of.get(shown.repeats.standing_for(named), row)]:
        row = at
    cells, metric = shown.frame.iloc[row], first.metric
    skipped = {*TRIAL_COLUMNS, *SWEEP_COLUMNS, STAGES, POINTS, metric, metric + SEM, *shown.parameters}
    errors = {name + SEM for name in shown.columns}
    others = [name for name in shown.columns if name not in skipped and name not in errors]
    best = BestTrial(
        trial=int(cells["trial"]),
        generator=labels.cell(cells["generator"]),
        title=labels.title(metric),
        value=format_cell(shown, metric, row),
        column=metric,
        parameters=tuple(
            (name.removeprefix(PARAMETER), labels.cell(cells[name]), name)
            for name in shown.parameters
            if not is_missing(cells[name])
        ),
        metrics=tuple(
            (labels.title(name), format_cell(shown, name, row), name)
            for name in others
            if not is_missing(cells[name])
        ),
        confirmation=_confirmation(table, row, metric),
    )
    return best, ""


def _confirmation(table: TrialsTable, row: int, metric: str) -> Confirmation | None:
    """Return what fresh seeds say of a row of the table's configurations; None without any."""
    shown = table.configurations
    trial = int(shown.trials[row])
    runs, found = shown.repeats.runs.get(trial), _interval(shown, row, metric)
    if runs is None or found is None:
        return None
    test_metric = f"test_{metric.removeprefix('final_')}"  # as the trainer calls it
    test = _interval(shown, row, test_metric)
    return Confirmation(
        seeds=len(runs),
        low=found[0],
        high=found[1],
        first=None if trial in runs else float(table.floats(metric)[table.row_of[trial]]),
        test=None if test is None else (test_metric, *test),
    )


def _interval(shown: TrialsTable, row: int, metric: str) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean over seeds; None if the metric was not repeated there."""
    spread = shown.repeats.spreads.get(metric)
    if spread is None or not math.isfinite(mean := float(shown.floats(metric)[row])):
        return None
    error = float(np.nan_to_num(shown.standard_errors(metric)[row]))
    from scipy.special import stdtrit

    reach = float(stdtrit(spread.freedom, 0.975)) * error
    return mean - reach, mean + reach


def _without_result(table: TrialsTable, metric: str) -> str:
    counts = dict(progress(table))
    if counts.get("failed", 0) == len(table):
        all_of_them = "The only trial" if len(table) == 1 else f"All {len(table)} trials"
        return f"{all_of_them} failed; the reasons are listed below."
    if not counts.get("completed"):
        listed = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items())
        return f"No trial has completed yet ({listed})."
    return f"No completed trial reported a finite {metric}."


def format_cell(table: TrialsTable, column: str, row: int) -> str:
    """Return a cell for people, with its standard error if `<column>_sem` has one."""
    return format_cells(table, column, [row])[0]


def format_cells(table: TrialsTable, column: str, rows: Sequence[int]) -> list[str]:
    """Return cells of a column as `format_cell` does, at once: cell by cell, pandas takes seconds."""
    cells, sem = table.frame[column].iloc[list(rows)].tolist(), column + SEM
    if sem not in table:
        return [labels.cell(cell) for cell in cells]
    errors = table.frame[sem].iloc[list(rows)].tolist()
    return [
        labels.with_error(_finite(cell), _finite(error)) or labels.cell(cell)
        for cell, error in zip(cells, errors, strict=True)
    ]


def _finite(cell: object) -> float | None:
    """Return the cell as a number, None if it is not a finite one."""
    if isinstance(cell, np.generic):
        cell = cell.item()
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return None
    return float(cell) if math.isfinite(cell) else None


def is_missing(value: object) -> bool:
    """Return whether a cell is empty."""
    return value is None or bool(pd.isna(cast("Any", value)))
