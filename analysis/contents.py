"""What the report says, as values: `report` turns these into HTML, tests read them as they are.

Everything a page needs to say about a sweep that is empty, has failed or is not finished is decided here;
the template only lays it out.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd

from analysis import labels, summary
from analysis.efficiency import efficiency
from analysis.errors import AnalysisError, TableError
from analysis.pareto import Goal
from analysis.summary import ParetoResult
from analysis.table import PARAMETER, TRIAL_COLUMNS, from_document, metric_column, numbers, trial_indices

STATUSES = ("completed", "running", "pending", "failed", "early_stopped", "abandoned")
UNLUCKY = ("failed", "early_stopped", "abandoned")


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What the sweep optimises: the column of a metric, and the way it should go."""

    metric: str
    goal: Goal


@dataclass(frozen=True, kw_only=True)
class Best:
    """The headline: the best completed trial by the first objective."""

    trial: int
    generator: str
    title: str
    value: str
    parameters: tuple[tuple[str, str], ...]
    metrics: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class FrontRow:
    """A row of the front's table."""

    trial: int
    x: str
    y: str
    efficiency: str
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A trial without a result, and why."""

    trial: int
    status: str
    attempt: str
    reason: str
    last_words: str


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The whole page. `note` fields say in words why a part is missing."""

    name: str
    url: str
    run_cap: int | None
    objectives: tuple[Objective, ...]
    table: pd.DataFrame
    progress: tuple[tuple[str, int], ...]
    best: Best | None
    best_note: str
    command: str
    tradeoff: ParetoResult | None
    tradeoff_note: str
    front: tuple[FrontRow, ...]
    failures: tuple[Failure, ...]

    @property
    def trials(self) -> int:
        """How many trials there are, in whatever state."""
        return len(self.table)


def contents(document: Mapping[str, Any]) -> Contents:
    """Work out the page of an export document.

    Args:
        document: `{"schema", "name", "url", "objectives", "run_cap", "trials"}` and optionally
            `best_overrides`, a list of `key=value` for `python -m trainer`, and `best_trial`, the index they
            belong to (without it the best completed trial by the first objective).

    Raises:
        AnalysisError: the document is not an export of a sweep.
    """
    table = from_document(document, source="the sweep's export")
    table["trial"] = trial_indices(table)
    objectives = _objectives(document)
    best, best_note = _best(table, objectives, document.get("best_trial"))
    tradeoff, tradeoff_note = _tradeoff(table, objectives)
    run_cap = document.get("run_cap")
    overrides = [str(override) for override in document.get("best_overrides") or ()]
    return Contents(
        name=str(document.get("name") or "sweep"),
        url=str(document.get("url") or ""),
        run_cap=run_cap if isinstance(run_cap, int) else None,
        objectives=objectives,
        table=table,
        progress=_progress(table),
        best=best,
        best_note=best_note,
        command=f"python -m trainer {shlex.join(overrides)}" if overrides and best else "",
        tradeoff=tradeoff,
        tradeoff_note=tradeoff_note,
        front=_front(table, tradeoff),
        failures=_failures(table),
    )


def _objectives(document: Mapping[str, Any]) -> tuple[Objective, ...]:
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


def _progress(table: pd.DataFrame) -> tuple[tuple[str, int], ...]:
    counts = table["status"].astype(str).value_counts()
    names = [*STATUSES, *sorted(set(counts.index) - set(STATUSES))]
    return tuple((name, int(counts[name])) for name in names if name in counts.index)


def _best(table: pd.DataFrame, objectives: Sequence[Objective], named: int | None) -> tuple[Best | None, str]:
    """The headline, or None and the reason for it."""
    if table.empty:
        return None, "No trial has been asked for yet. Start a worker: sweep worker"
    if not objectives:
        return None, "The export names no objective, so no trial can be called the best."
    first = objectives[0]
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
    counts = dict(_progress(table))
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
        parameters=tuple(
            (str(name).removeprefix(PARAMETER), labels.cell(row[name]))
            for name in table.columns
            if str(name).startswith(PARAMETER) and not _missing(row[name])
        ),
        metrics=tuple(
            (labels.title(name), value(table, name, position))
            for name in others
            if not name.endswith("_sem") and not _missing(row[name])
        ),
    )


def value(table: pd.DataFrame, column: str, position: int) -> str:
    """A cell of the table for people, with its standard error where `<column>_sem` has one."""
    told, sem = table[column].iloc[position], f"{column}_sem"
    if sem not in table.columns:
        return labels.cell(told)
    return labels.with_error(_finite(told), _finite(table[sem].iloc[position])) or labels.cell(told)


def _finite(told: object) -> float | None:
    """The cell as a number, None where it is none."""
    if isinstance(told, np.generic):
        told = told.item()
    if isinstance(told, bool) or not isinstance(told, int | float):
        return None
    return float(told) if math.isfinite(told) else None


def _tradeoff(table: pd.DataFrame, objectives: Sequence[Objective]) -> tuple[ParetoResult | None, str]:
    if table.empty or not (table["status"] == "completed").any():
        return None, "There is nothing to trade off before a trial has completed."
    axes = summary.default_axes(table, [{"metric": o.metric} for o in objectives])
    if axes is None:
        return None, "No column measures compute (effective_steps, train_flops, train_seconds or seconds)."
    goals = {o.metric: o.goal for o in objectives}
    x, y = axes
    try:
        result = summary.pareto(
            table, x=x, y=y, x_goal=goals.get(x, "minimize"), y_goal=goals.get(y, "minimize")
        )
    except AnalysisError as error:
        return None, f"The trade-off cannot be shown: {error}."
    if not result.points:
        return None, f"No completed trial has both {x} and {y}."
    return result, ""


def _front(table: pd.DataFrame, result: ParetoResult | None) -> tuple[FrontRow, ...]:
    if result is None:
        return ()
    at = {point.trial: point for point in result.points}
    row_of = {int(trial): row for row, trial in enumerate(table["trial"].tolist())}
    rows = []
    for trial in result.front:
        point = at[trial]
        gained = math.nan
        if result.baseline is not None and result.x_goal == "minimize":
            gained = float(efficiency(point.y, point.x, result.baseline, result.y_goal))
        names = (("knee", result.knee), ("most efficient", result.most_efficient))
        rows.append(
            FrontRow(
                trial=trial,
                x=labels.number(point.x),
                y=value(table, result.y, row_of[trial]),
                efficiency=labels.number(gained, digits=2),
                names=tuple(name for name, holder in names if holder == trial),
            )
        )
    return tuple(rows)


def _failures(table: pd.DataFrame) -> tuple[Failure, ...]:
    failures = []
    for _, row in table[table["status"].isin(UNLUCKY)].iterrows():
        told = "" if _missing(row["error"]) else str(row["error"]).strip()
        reason, _, rest = told.partition("\n")
        failures.append(
            Failure(
                trial=int(row["trial"]),
                status=str(row["status"]).replace("_", " "),
                attempt=labels.cell(row["attempt"]),
                reason=reason or "no reason was recorded",
                last_words=rest.strip("\n"),
            )
        )
    return tuple(failures)


def _missing(value: object) -> bool:
    return value is None or bool(pd.isna(cast("Any", value)))
