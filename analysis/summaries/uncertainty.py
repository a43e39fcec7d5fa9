"""Uncertainty of a `ParetoResult`: chances, intervals and the hypervolume."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from analysis.statistics.attainment import DRAWS, Attainment, Baseline, Errors, attainment
from analysis.statistics.efficiency import efficiency, efficiency_sem
from analysis.statistics.hypervolume import hypervolume, reference_point
from analysis.statistics.pareto import Floats
from analysis.summaries.compute import measure_of
from analysis.summaries.paired import NORMAL_95
from analysis.summaries.summary import ParetoResult, baseline_rows
from analysis.table import Spread, TrialsTable


@dataclass(frozen=True, kw_only=True)
class Chances:
    """The chances of one trial, as shares of the draws; None without any standard errors.

    Args:
        most_efficient: to be the most efficient; also None without a baseline.
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
    """The uncertainty of a trade-off.

    Args:
        trials: chances by the index of the trial.
        draws: number of draws; 0 if no point has a standard error.
        exact: number of points without a standard error, taken as exact.
        paired: number of points whose losses of each sequence are known: what is hard about the text cancels
            between them. The errors of all others are taken as independent.
        spread: over seeds, which the errors include; None without repeats.
        unit: unit of compute that efficiency is given per.
        hypervolume: of the front, within the reference point; None without points.
        reference: the reference point (x, y); None without points.
    """

    trials: Mapping[int, Chances]
    draws: int
    exact: int
    paired: int
    spread: Spread | None
    unit: str
    hypervolume: float | None
    reference: tuple[float, ...] | None

    def to_json(self) -> dict[str, Any]:
        """Return the value of `chances` in the document of `sweep pareto --chances --format json`."""
        is_finite = self.hypervolume is not None and math.isfinite(self.hypervolume)
        return {
            "draws": self.draws,
            "trials": {str(trial): asdict(chances) for trial, chances in self.trials.items()},
            "hypervolume": self.hypervolume if is_finite else None,  # JSON has no infinity
            "reference": None if self.reference is None else list(map(float, self.reference)),
        }


def estimate_uncertainty(
    table: TrialsTable, result: ParetoResult, *, draws: int = DRAWS, seed: int = 0
) -> Uncertainty:
    """Estimate chances and intervals of a result.

    Args:
        table: the table that `result` was made from; column `<y>_sem` holds the standard errors.
    """
    table = TrialsTable.from_frame(table).configurations
    xs, ys = (np.array([getattr(point, axis) for point in result.points], dtype=np.float64) for axis in "xy")
    rows = [table.row_of[point.trial] for point in result.points]
    sems = table.standard_errors(result.y)[rows]
    joint = joint_factors(table, result.y, [point.trial for point in result.points])
    errors = Errors.from_sems(sems, joint)
    goals = (result.x_goal, result.y_goal)
    own = _own_baseline(table, result, rows)
    shares = attainment(
        xs,
        ys,
        sems,
        goals=goals,
        joint=joint,
        baseline=None if result.baseline is None else Baseline(result.baseline, points=own),
        draws=draws if errors.total.any() else 0,
        seed=seed,
    )
    points = np.column_stack((xs, ys))
    reference = reference_point(points, goals)
    return Uncertainty(
        trials=_chances(result, shares, *_efficiencies(result, xs, ys, errors, own)),
        draws=shares.draws,
        exact=shares.exact,
        paired=int(joint.any(axis=1).sum()),
        spread=table.repeats.spreads.get(result.y),
        unit=measure_of(result.x).unit,
        hypervolume=None if reference is None else hypervolume(points, goals, reference),
        reference=reference,
    )


def joint_factors(table: TrialsTable, column: str, trials: Sequence[int]) -> Floats:
    """Return [N, n] factors of the errors that trials of a table of configurations have in common."""
    return table.held_out.factors(column, [table.repeats.runs.get(trial, (trial,)) for trial in trials])


def _chances(result: ParetoResult, shares: Attainment, gained: Floats, spread: Floats) -> dict[int, Chances]:
    noisy = shares.draws > 0
    measured = result.baseline is not None and result.x_goal == "minimize"
    return {
        point.trial: Chances(
            front=float(shares.front[at]) if noisy else None,
            knee=float(shares.knee[at]) if noisy else None,
            most_efficient=float(shares.most_efficient[at]) if noisy and measured else None,
            efficiency=_finite_or_none(gained[at]),
            efficiency_range=_finite_or_none(spread[at]),
        )
        for at, point in enumerate(result.points)
    }


def _efficiencies(
    result: ParetoResult, xs: Floats, ys: Floats, errors: Errors, own: list[int]
) -> tuple[Floats, Floats]:
    """Return [N] efficiencies and half their 95 % intervals, NaN where they are not known."""
    if result.baseline is None or result.x_goal != "minimize":
        return np.full(len(xs), np.nan), np.full(len(xs), np.nan)
    per = measure_of(result.x).per
    base_sem, shared = 0.0, np.zeros(len(xs))
    if own:
        best = min(own, key=lambda at: ys[at] if result.y_goal == "minimize" else -ys[at])
        base_sem, shared = float(errors.total[best]), errors.covariances(best)
    sems = np.where(errors.total > 0, errors.total, np.nan)
    spread = NORMAL_95 * efficiency_sem(sems, xs, base_sem, per, shared)
    spread[own] = np.nan  # the baseline against itself is exactly zero
    return efficiency(ys, xs, result.baseline, result.y_goal, per), spread


def _own_baseline(table: TrialsTable, result: ParetoResult, rows: list[int]) -> list[int]:
    """Return the points that the baseline was taken from, given their rows; none if it was given."""
    candidates = set(baseline_rows(table, result.y).tolist())
    found = [at for at, row in enumerate(rows) if row in candidates]
    values = [result.points[at].y for at in found]
    return found if result.baseline in values else []


def _finite_or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
