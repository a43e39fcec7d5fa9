"""Efficiency: improvement over a baseline per unit of compute.

The formulas are those of the length sweep in `examples/stage19_length_sweep.csv`: they must reproduce its
column `reported_efficiency` to two places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from analysis.statistics.pareto import Floats, Goal

PER = 100.0
"""Efficiency is improvement per this many units of compute."""

# A step of Stage 1.9 also runs the teacher, which about doubles the cost of a step of Stage 2.
STAGE1_9_WEIGHT = 2

if TYPE_CHECKING:
    import pandas as pd

Steps = TypeVar("Steps", int, float, Floats, "pd.Series[Any]")


def effective_steps(stage1_9_steps: Steps, stage2_steps: Steps) -> Steps:
    """Return the compute in steps of Stage 2: `2 * stage1_9_steps + stage2_steps`."""
    return STAGE1_9_WEIGHT * stage1_9_steps + stage2_steps


def efficiency(
    loss: npt.ArrayLike, steps: npt.ArrayLike, baseline: float, goal: Goal = "minimize", per: float = PER
) -> Floats:
    """Return the improvement per unit of compute, `(baseline - loss) / (steps / per)`, elementwise.

    Args:
        loss: [N] final losses.
        steps: [N] compute spent, usually in effective steps.
        baseline: loss without the spending in question, such as a run without Stage 1.9.
        goal: "maximize" flips the sign of the improvement.
        per: the unit of compute (see `compute.MEASURES`).

    Returns:
        [N] float64; NaN where a value is missing or infinite, or nothing was spent.
    """
    losses, spent = np.asarray(loss, dtype=np.float64), np.asarray(steps, dtype=np.float64)
    gain = (baseline - losses) if goal == "minimize" else (losses - baseline)
    defined = np.isfinite(gain) & np.isfinite(spent) & (spent > 0)
    result = np.full(np.broadcast(gain, spent).shape, np.nan)
    np.divide(gain * per, spent, out=result, where=defined)
    return result


def efficiency_sem(
    loss_sem: npt.ArrayLike,
    steps: npt.ArrayLike,
    baseline_sem: float = 0.0,
    per: float = PER,
    covariance: npt.ArrayLike = 0.0,
) -> Floats:
    """Return the standard error of `efficiency`, elementwise: √(Var(loss) + Var(baseline) - 2 Cov) per unit.

    Args:
        loss_sem: [N] standard errors of the losses.
        steps: [N] compute spent, exact.
        baseline_sem: standard error of the baseline.
        covariance: [N] of loss and baseline; errors of values on the same text largely cancel.

    Returns:
        [N] float64; NaN where the loss has no standard error, or nothing was spent.
    """
    errors, spent = np.asarray(loss_sem, dtype=np.float64), np.asarray(steps, dtype=np.float64)
    defined = np.isfinite(errors) & (errors >= 0) & np.isfinite(spent) & (spent > 0)
    result = np.full(np.broadcast(errors, spent).shape, np.nan)
    variance = np.square(errors) + baseline_sem**2 - 2 * np.asarray(covariance)
    np.divide(np.sqrt(np.maximum(variance, 0.0)) * per, spent, out=result, where=defined)
    return result


def most_efficient(
    loss: npt.ArrayLike, steps: npt.ArrayLike, baseline: float | None, goal: Goal = "minimize"
) -> int | None:
    """Return the position of the highest efficiency; None without a baseline, or if nothing improves on it.

    Only improvements count: among losses worse than the baseline, a higher ratio only means more compute
    wasted. Ties go to the point with the least compute, then to the first.

    Args:
        loss: [N] final losses.
        steps: [N] compute spent.
        baseline: see `efficiency`.
    """
    if baseline is None:
        return None
    values = efficiency(loss, steps, baseline, goal)
    candidates = np.flatnonzero(values > 0)  # NaN compares false
    if not candidates.size:
        return None
    spent = np.asarray(steps, dtype=np.float64)
    order = np.lexsort((candidates, spent[candidates], -values[candidates]))
    return int(candidates[order[0]])
