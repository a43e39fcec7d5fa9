"""The headline of a report: the objectives, how far the sweep is, and the best trial or why there is none.

`contents` calls this.
"""

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
from analysis.table import PARAMETER, TRIAL_COLUMNS, metric_column, numbers

STATUSES = ("completed", "running", "pending", "failed", "early_stopped", "abandoned")


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What the sweep optimises: the column of a metric, and the way it should go."""

    metric: str
    goal: Goal


@dataclass(frozen=True, kw_only=True)
class Best:
    """The headline: the best completed trial by the first objective.

    Args:
        column: of the value.
        parameters, metrics: (name for people, value, column).
    """

    trial: int
    generator: str
    title: str
    value: str
    column: str
    parameters: tuple[tuple[str, str, str], ...]
    metrics: tuple[tuple[str, str, str], ...]


def objectives(document: Mapping[str, Any]) -> tuple[Objective, ...]:
    """What the document says that the sweep optimises. Raises `TableError`."""
    try:
        told = [(str(o["metric"]), str(o.get("goal", "minimize"))) for o in document.get("objectives") or ()]
    except (KeyError, TypeError, AttributeError):
        raise TableError("the sweep's export", "objectives must be a list of {metric, goal}") from None
    for metric, goal in told:
        if goal not in ("minimize", "maximize"):
            raise TableError(
                "the sweep's export", f"the goal of {metric!r} is {goal!r}: minimize or maximize"
            )
    return tuple(Objective(metric=metric_column(metric), goal=cast("Goal", goal)) for metric, goal in told)


def progress(table: pd.DataFrame) -> tuple[tuple[str, int], ...]:
    """How many trials are in each status, of those that there are."""
    counts = table["status"].astype(str).value_counts()
    names = [*STATUSES, *sorted(set(counts.index) - set(STATUSES))]
    return tuple((name, int(counts[name])) for name in names if name in counts.index)


def headline(table: pd.DataFrame, goals: Sequence[Objective], named: object) -> tuple[Best | None, str]:
    """The headline, or None and the reason for it."""
    if table.empty:
        return None, "No trial has been asked for yet. Start a worker: sweep worker"
    if not goals:
        return None, "The export names no objective, so no trial can be called the best."
    first = goals[0]
    try:
        values = numbers(table, first.metric).to_numpy("float64")
    except AnalysisError as error:
        return None, _without_metric(table, first.metric, error)
    told = (table["status"] == "completed").to_numpy() & np.isfinite(values)
    if not told.any():
        return None, _without_result(table, first.metric)
    position = int(np.argmin(np.where(told, values if first.goal == "minimize" else -values, np.inf)))
    for row in np.flatnonzero((table["trial"] == named).to_numpy() & told):
        position = int(row)
    return _headline(table, position, first.metric), ""


def _without_metric(table: pd.DataFrame, metric: str, error: AnalysisError) -> str:
    if not (table["status"] == "completed").any():
        return _without_result(table, metric)
    return f"No completed trial can be ranked: {error}."


def _without_result(table: pd.DataFrame, metric: str) -> str:
    counts = dict(progress(table))
    if counts.get("failed", 0) == len(table):
        all_of_them = "The only trial" if len(table) == 1 else f"All {len(table)} trials"
        return f"{all_of_them} failed; why, is told below."
    if not counts.get("completed"):
        told = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items())
        return f"No trial has completed yet ({told})."
    return f"No completed trial reported a finite {metric}."


def _headline(table: pd.DataFrame, position: int, metric: str) -> Best:
    row = table.iloc[position]
    skipped = {*TRIAL_COLUMNS, metric, f"{metric}_sem"}
    others = [
        str(name) for name in table.columns if name not in skipped and not str(name).startswith(PARAMETER)
    ]
    return Best(
        trial=int(row["trial"]),
        generator=labels.cell(row["generator"]),
        title=labels.title(metric),
        value=value(table, metric, position),
        column=metric,
        parameters=tuple(
            (str(name).removeprefix(PARAMETER), labels.cell(row[name]), str(name))
            for name in table.columns
            if str(name).startswith(PARAMETER) and not missing(row[name])
        ),
        metrics=tuple(
            (labels.title(name), value(table, name, position), name)
            for name in others
            if not name.endswith("_sem") and not missing(row[name])
        ),
    )


def value(table: pd.DataFrame, column: str, position: int) -> str:
    """A cell of the table for people, with its standard error where `<column>_sem` has one."""
    return values(table, column, [position])[0]


def values(table: pd.DataFrame, column: str, positions: Sequence[int]) -> list[str]:
    """Cells of a column as `value` has them; the column is taken out once."""
    told, sem = table[column].iloc[list(positions)].tolist(), f"{column}_sem"
    if sem not in table.columns:
        return [labels.cell(cell) for cell in told]
    errors = table[sem].iloc[list(positions)].tolist()
    return [
        labels.with_error(_finite(cell), _finite(error)) or labels.cell(cell)
        for cell, error in zip(told, errors, strict=True)
    ]


def _finite(told: object) -> float | None:
    """The cell as a number, None where it is none."""
    if isinstance(told, np.generic):
        told = told.item()
    if isinstance(told, bool) or not isinstance(told, int | float):
        return None
    return float(told) if math.isfinite(told) else None


def missing(value: object) -> bool:
    """Whether a cell is empty."""
    return value is None or bool(pd.isna(cast("Any", value)))
