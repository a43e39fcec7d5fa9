"""How sure is what `summary.pareto` says? Chances, intervals and the hypervolume of a `ParetoResult`.

`sweep pareto`, `report` and the notebooks call this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.errors import MissingColumn, NotNumeric
from analysis.statistics.attainment import DRAWS, Baseline, attainment
from analysis.statistics.efficiency import efficiency, efficiency_sem
from analysis.statistics.hypervolume import hypervolume, reference_point
from analysis.statistics.pareto import Floats
from analysis.summaries.compute import of_column
from analysis.summaries.summary import ParetoResult, baseline_rows
from analysis.table import SEM, numbers, trial_indices

NORMAL_95 = 1.959963984540054
"""Half the width of a normal distribution's central 95 %, in standard deviations."""


@dataclass(frozen=True, kw_only=True)
class Chances:
    """One trial.

    Args:
        front, knee, most_efficient: in what share of the draws it is that; None where nothing is known of the
            noise (or, for the last, of a baseline).
        efficiency: None without a baseline.
        efficiency_range: half its 95 % interval, from the standard errors of loss and baseline; None without.
    """

    front: float | None
    knee: float | None
    most_efficient: float | None
    efficiency: float | None
    efficiency_range: float | None


@dataclass(frozen=True, kw_only=True)
class Uncertainty:
    """Of a whole trade-off.

    Args:
        trials: by index.
        draws: how often everything was drawn anew; 0 where no point has a standard error.
        exact: points without a standard error, taken as exact.
        unit: per what efficiency is given.
        hypervolume, reference: of the front, within the reference point (x, y); None without points.
    """

    trials: Mapping[int, Chances]
    draws: int
    exact: int
    unit: str
    hypervolume: float | None
    reference: tuple[float, ...] | None


def uncertainty(
    table: pd.DataFrame, result: ParetoResult, *, draws: int = DRAWS, seed: int = 0
) -> Uncertainty:
    """Chances and intervals of a result.

    Args:
        table: the table that `result` was made from; `<y>_sem` holds the standard errors.
    """
    xs, ys = (np.array([getattr(point, axis) for point in result.points], dtype=np.float64) for axis in "xy")
    row_of = {int(trial): row for row, trial in enumerate(trial_indices(table))}
    rows = [row_of[point.trial] for point in result.points]
    sems = standard_errors(table, result.y)[rows]
    noisy = bool((sems > 0).any())
    measure = of_column(result.x)
    position = {row: at for at, row in enumerate(rows)}
    own = _own_baseline(table, result, position)
    base_sem = 0.0
    if own:
        best = min(own, key=lambda at: ys[at] if result.y_goal == "minimize" else -ys[at])
        base_sem = float(np.nan_to_num(sems[best]))
    told = attainment(
        xs,
        ys,
        sems,
        goals=(result.x_goal, result.y_goal),
        baseline=None if result.baseline is None else Baseline(result.baseline, points=own),
        draws=draws if noisy else 0,
        seed=seed,
    )
    measured = result.baseline is not None and result.x_goal == "minimize"
    gained = np.full(len(xs), np.nan)
    if measured and result.baseline is not None:
        gained = efficiency(ys, xs, result.baseline, result.y_goal, measure.per)
    spread = NORMAL_95 * efficiency_sem(sems, xs, base_sem, measure.per)
    spread[own] = np.nan  # the baseline gains nothing over itself, and knows that exactly
    chances = {
        point.trial: Chances(
            front=float(told.front[at]) if noisy else None,
            knee=float(told.knee[at]) if noisy else None,
            most_efficient=float(told.most_efficient[at]) if noisy and measured else None,
            efficiency=_known(gained[at]),
            efficiency_range=_known(spread[at]) if measured else None,
        )
        for at, point in enumerate(result.points)
    }
    goals = (result.x_goal, result.y_goal)
    points = np.column_stack((xs, ys))
    reference = reference_point(points, goals)
    return Uncertainty(
        trials=chances,
        draws=told.draws,
        exact=told.exact,
        unit=measure.unit,
        hypervolume=None if reference is None else hypervolume(points, goals, reference),
        reference=reference,
    )


def standard_errors(table: pd.DataFrame, column: str) -> Floats:
    """[N] the standard errors of a column, NaN where there is none."""
    try:
        errors = numbers(table, column + SEM).to_numpy("float64")
    except (MissingColumn, NotNumeric):
        return np.full(len(table), np.nan)  # a point without its error is still a point
    return np.where(np.isfinite(errors) & (errors > 0), errors, np.nan)


def _own_baseline(table: pd.DataFrame, result: ParetoResult, position: Mapping[int, int]) -> list[int]:
    """Positions of the points that the baseline was taken from; none where it was given."""
    found = [position[row] for row in baseline_rows(table, result.y).tolist() if row in position]
    values = [result.points[at].y for at in found]
    return found if result.baseline in values else []


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
