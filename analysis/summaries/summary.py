"""What `sweep pareto` prints and `report` shows: the points, the front, the knee, the most efficient trial.

Three different words: the *front* holds every trial that no other one beats in both respects; the *knee* is
where the front turns; the *most efficient* trial bought the most improvement over the baseline per step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.errors import AnalysisError
from analysis.statistics import efficiency
from analysis.statistics import pareto as arrays
from analysis.statistics.pareto import Goal, Positions
from analysis.summaries.compute import MEASURES
from analysis.table import (
    finished,
    is_trials_table,
    metric_column,
    numbers,
    trial_indices,
    with_effective_steps,
)

COMPUTE = tuple(column for name, measure in MEASURES.items() if name != "usd" for column in measure.columns)
"""Measures of compute, the best first: what a sweep with one objective is shown against."""

STAGE1_9_STEPS = "param.stage1_9.max_steps"


@dataclass(frozen=True, kw_only=True)
class Point:
    """One trial: its index (a foreign table's: zero-based row number) and its two coordinates."""

    trial: int
    x: float
    y: float


@dataclass(frozen=True, kw_only=True)
class ParetoResult:
    """The trade-off between two columns.

    Args:
        x, y: names of the columns.
        points: every trial with both values, in the table's order.
        front: indices of the trials on the Pareto front, by ascending x.
        most_efficient: index of the trial with the highest efficiency, None without a baseline.
        knee: index of the front's knee, None where it has none.
        baseline: what `most_efficient` was measured against.
        x_goal, y_goal: which way is better.
    """

    x: str
    y: str
    points: tuple[Point, ...]
    front: tuple[int, ...]
    most_efficient: int | None
    knee: int | None
    baseline: float | None = None
    x_goal: Goal = "minimize"
    y_goal: Goal = "minimize"

    def to_json(self) -> dict[str, Any]:
        """The document of `sweep pareto --format json`."""
        return {
            "x": self.x,
            "y": self.y,
            "points": [{"trial": p.trial, "x": p.x, "y": p.y} for p in self.points],
            "front": list(self.front),
            "most_efficient": self.most_efficient,
            "knee": self.knee,
        }


def pareto(
    table: pd.DataFrame,
    *,
    x: str,
    y: str,
    baseline: float | None = None,
    x_goal: Goal = "minimize",
    y_goal: Goal = "minimize",
) -> ParetoResult:
    """The trade-off between columns `x` (compute, as a rule) and `y` (loss) of a table.

    Of a sweep's own table only completed trials count; of any other, every row with both values.
    `effective_steps` may be asked for where the table has only the steps of the two stages.

    Args:
        baseline: the y without the spending that x measures; None: the best y among completed trials with
            zero steps of Stage 1.9, if there are any.
        x_goal, y_goal: which way is better. Efficiency is undefined (None) where more x is better.

    Raises:
        MissingColumn, NotNumeric: `x` or `y` is not a column of numbers.
        AnalysisError: `x` and `y` are the same column, or the baseline is not a finite number.
    """
    if x == y:
        raise AnalysisError(f"x and y are both {x!r}; a trade-off needs two different columns")
    if baseline is not None and not np.isfinite(baseline):
        raise AnalysisError(f"the baseline is {baseline}; give a finite number")
    if "effective_steps" in (x, y):
        table = with_effective_steps(table)
    xs, ys = numbers(table, x), numbers(table, y)
    if baseline is None:
        baseline = find_baseline(table, y, y_goal)
    kept = np.flatnonzero(np.isfinite(xs) & np.isfinite(ys) & finished(table))
    names = trial_indices(table)[kept]
    xs, ys = xs.iloc[kept], ys.iloc[kept]
    points = np.column_stack((xs.to_numpy("float64"), ys.to_numpy("float64")))
    knee = arrays.knee(points, (x_goal, y_goal))
    spent_best = efficiency.most_efficient(ys, xs, baseline, y_goal) if x_goal == "minimize" else None
    on_front = arrays.front(points, (x_goal, y_goal))
    by_x = on_front[np.lexsort((names[on_front], points[on_front, 0]))]
    return ParetoResult(
        x=x,
        y=y,
        points=tuple(
            Point(trial=t, x=a, y=b) for t, a, b in zip(names.tolist(), xs.tolist(), ys.tolist(), strict=True)
        ),
        front=tuple(names[by_x].tolist()),
        most_efficient=None if spent_best is None else int(names[spent_best]),
        knee=None if knee is None else int(names[knee]),
        baseline=baseline,
        x_goal=x_goal,
        y_goal=y_goal,
    )


def find_baseline(table: pd.DataFrame, y: str, goal: Goal = "minimize") -> float | None:
    """The best y among the completed trials of a sweep that spent no step on Stage 1.9; None without one."""
    without = baseline_rows(table, y)
    if not without.size:
        return None
    values = numbers(table, y).to_numpy("float64")[without]
    return float(values.min() if goal == "minimize" else values.max())


def baseline_rows(table: pd.DataFrame, y: str) -> Positions:
    """Positions of the completed trials that `find_baseline` chooses from."""
    if not is_trials_table(table) or STAGE1_9_STEPS not in table.columns:
        return np.empty(0, dtype=np.intp)
    values = numbers(table, y).to_numpy("float64")
    without = (numbers(table, STAGE1_9_STEPS) == 0).to_numpy()
    return np.flatnonzero(without & finished(table) & np.isfinite(values))


def default_axes(table: pd.DataFrame, objectives: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """Which columns to show a sweep by, as (x, y). None where there is nothing to go by.

    Of two objectives, the second against the first. With one, and with three or more, of which no two are the
    whole (see `several`): the best measure of compute that the table has, against the first.
    """
    if not objectives:
        return None
    y, *others = [metric_column(str(objective["metric"])) for objective in objectives]
    if len(others) != 1:
        table = with_effective_steps(table)
        for x in COMPUTE:
            if x != y and x in table.columns and table[x].notna().any():
                return x, y
    return (others[0], y) if others else None
