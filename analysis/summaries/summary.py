"""The trade-off of two columns: the points, their front, its knee, and the most efficient trial.

These are three different things: the *front* holds every trial that no other one beats in both respects; the
*knee* is where the front turns; the *most efficient* trial has the most improvement over the baseline per
unit of compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.errors import AnalysisError
from analysis.statistics import efficiency
from analysis.statistics import pareto as arrays
from analysis.statistics.pareto import Goal, Positions
from analysis.summaries.compute import MEASURES
from analysis.table import TableLike, TrialsTable, is_finite, metric_column

COMPUTE = tuple(column for name, measure in MEASURES.items() if name != "usd" for column in measure.columns)
"""Columns of compute, the best first: the horizontal axis of a sweep with one objective."""

STAGE1_9_STEPS = "param.stage1_9.max_steps"


@dataclass(frozen=True, kw_only=True)
class Point:
    """One trial: its index (of a table that is no sweep's: its zero-based row) and its two coordinates."""

    trial: int
    x: float
    y: float


@dataclass(frozen=True, kw_only=True)
class ParetoResult:
    """The trade-off between two columns.

    Args:
        points: every trial with both values, in the table's order.
        front: indices of the trials on the Pareto front, by ascending x.
        most_efficient: index of the trial with the highest efficiency, None without a baseline.
        knee: index of the front's knee, None if it has none.
        baseline: the y that `most_efficient` was measured against.
        confirmed: by the trial of each confirmed configuration the number of fresh seeds that its point is
            the mean of; every other point is one observation.
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
    confirmed: Mapping[int, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the document of `sweep pareto --format json`; `confirmed` only where there are any."""
        return {
            "x": self.x,
            "y": self.y,
            "points": [
                {"trial": point.trial, "x": point.x, "y": point.y}
                | ({"confirmed_by_seeds": self.confirmed.get(point.trial, 0)} if self.confirmed else {})
                for point in self.points
            ],
            "front": list(self.front),
            "most_efficient": self.most_efficient,
            "knee": self.knee,
        }


def pareto(
    table: TableLike,
    *,
    x: str,
    y: str,
    baseline: float | None = None,
    x_goal: Goal = "minimize",
    y_goal: Goal = "minimize",
) -> ParetoResult:
    """Find the trade-off between two columns of a table: compute, as a rule, and loss.

    Of a sweep's own table only completed trials within its outcome constraints count, and each confirmed
    configuration is one point; of any other, every row with both values.

    Args:
        x: column of compute; `effective_steps` also if the table only has the steps of the two stages.
        baseline: the y without the compute that x measures; None for the best y among completed trials with
            zero steps of Stage 1.9, if there are any.
        x_goal: whether less or more x is better. Efficiency is undefined (None) if more is better.

    Raises:
        MissingColumn: there is no column `x` or `y`.
        NotNumeric: `x` or `y` is not a column of numbers.
        AnalysisError: `x` and `y` are the same column, or the baseline is not a finite number.
    """
    if x == y:
        raise AnalysisError(f"x and y are both {x!r}; a trade-off needs two different columns")
    if baseline is not None and not is_finite(baseline):
        raise AnalysisError(f"the baseline is {baseline!r:.80}; give a finite number")
    table = TrialsTable.from_frame(table).configurations
    if "effective_steps" in (x, y):
        table = table.with_effective_steps()
    xs, ys = table.numbers(x), table.numbers(y)
    if baseline is None:
        baseline = find_baseline(table, y, y_goal)
    kept = np.flatnonzero(np.isfinite(xs) & np.isfinite(ys) & table.feasible)
    names = table.trials[kept]
    xs, ys = xs.iloc[kept], ys.iloc[kept]
    points = np.column_stack((xs.to_numpy("float64"), ys.to_numpy("float64")))
    knee = arrays.knee(points, (x_goal, y_goal))
    best = efficiency.most_efficient(ys, xs, baseline, y_goal) if x_goal == "minimize" else None
    on_front = arrays.front(points, (x_goal, y_goal))
    by_x = on_front[np.lexsort((names[on_front], points[on_front, 0]))]
    return ParetoResult(
        x=x,
        y=y,
        points=tuple(
            Point(trial=t, x=a, y=b) for t, a, b in zip(names.tolist(), xs.tolist(), ys.tolist(), strict=True)
        ),
        front=tuple(names[by_x].tolist()),
        most_efficient=None if best is None else int(names[best]),
        knee=None if knee is None else int(names[knee]),
        baseline=baseline,
        x_goal=x_goal,
        y_goal=y_goal,
        confirmed=table.repeats.seeds(names.tolist()),
    )


def find_baseline(table: TrialsTable, y: str, goal: Goal = "minimize") -> float | None:
    """Return the best y among a sweep's completed trials without steps of Stage 1.9; None without any."""
    without = baseline_rows(table, y)
    if not without.size:
        return None
    values = table.floats(y)[without]
    return float(values.min() if goal == "minimize" else values.max())


def baseline_rows(table: TrialsTable, y: str) -> Positions:
    """Return the rows of the completed trials that `find_baseline` chooses from."""
    if not table.is_sweep or STAGE1_9_STEPS not in table:
        return np.empty(0, dtype=np.intp)
    without = table.floats(STAGE1_9_STEPS) == 0
    return np.flatnonzero(without & table.completed & np.isfinite(table.floats(y)))


def default_axes(table: TrialsTable, objectives: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """Choose the columns (x, y) to show a sweep by; None if the table has none.

    Of two objectives, the second is x and the first is y. With one, and with three or more (see
    `many_objective_front`), x is the best measure of compute that the table has.
    """
    if not objectives:
        return None
    y, *others = [metric_column(str(objective["metric"])) for objective in objectives]
    if len(others) != 1:
        table = table.with_effective_steps()
        for x in COMPUTE:
            if x != y and table.is_known(x):
                return x, y
    return (others[0], y) if others else None
