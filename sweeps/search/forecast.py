"""Prediction of a trial's final value from those of completed trials: a small linear regression, pure.

`curve_rule` calls it for each objective of a running trial. A learning curve says little beyond its level
(Viering and Loog, *The Shape of Learning Curves*, 2023), and five to thirty curves do not carry the mixtures
of parametric curves of Domhan, Springenberg and Hutter (IJCAI 2015). As there, a wrong belief must show in
the error: it comes from leave-one-out residuals, and grows with everything that was extrapolated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from sweeps.search.arrays import Floats

FEWEST = 5
"""Values that a prediction needs, and of the better ones that it is fitted to."""

BETTER = 0.6
"""Share of the values that it is fitted to: what bad runs do says little about good ones."""

SIGMAS = 3.0
_CHANCE = 0.9986501019683699  # of a normal value below 3 standard deviations
_OVERSHOOT = 2.0
"""A run may end so many times as far below its prediction, or below its level, as any completed one has.
By its prediction alone, one of a hundred near-best runs of `benchmarks.early_stopping` died: of a late decay
like none before it."""


@dataclass(frozen=True)
class Forecast:
    """Predicted value.

    Args:
        sd: a third of the distance to the bound that the value hardly falls below.
        error: the standard error towards both sides: not less, and as large as that of predictions for all
            completed trials. One that ends badly often does so by more than anything fitted would suggest.
    """

    mean: float
    sd: float
    error: float

    @property
    def best(self) -> float:
        """Return the lowest plausible value."""
        return self.mean - SIGMAS * self.sd


def forecast(features: Floats, values: Floats, at: Floats, floor: float) -> Forecast | None:
    """Return the prediction of the value at a point, or None where there is too little to predict from.

    Where the other features explain the values to 1 % of their variance, as they do compute, they are enough.
    Otherwise the first one, the level of the curve, is used if it takes 30 % of the leave-one-out error away
    (PRESS; Allen, *Technometrics* 1974), then others by forward selection: one for six values, one for three
    if the error falls to a tenth, as where the value is a function of the settings. The bound is Student's,
    so that few values widen it, and never above the worst value of the fit: how much worse a run can end was
    not measured.

    Args:
        features: [trials, features] of completed trials.
        values: [trials], their values, lower is better.
        at: [features] of the trial to predict.
        floor: the least standard deviation of a residual.
    """
    if len(values) < FEWEST:
        return None
    fitted = np.argsort(values, kind="stable")[: max(FEWEST, math.ceil(BETTER * len(values)))]
    with np.errstate(all="ignore"):  # losses may be as large as floats; what overflows is no prediction
        centre, scale = features[fitted].mean(axis=0), features[fitted].std(axis=0)
        varies = np.isfinite(scale) & (scale > 1e-12 * (1.0 + np.abs(centre)))
        rows = np.where(varies, (features - centre) / np.where(varies, scale, 1.0), 0.0)
        target = values[fitted]
        usable = [int(column) for column in np.flatnonzero(varies)]
        columns = _selected(rows[fitted], target, [column for column in usable if column > 0])
        depends_on_level = _press(_design(rows[fitted], columns), target) > 0.01 * _press(
            _design(rows[fitted], []), target
        )
        if depends_on_level:
            columns = _selected(rows[fitted], target, usable)
        design = _design(rows, columns)
        q, r = np.linalg.qr(design[fitted])
        weights = np.linalg.solve(r, q.T @ target)
        point = np.concatenate(([1.0], ((at - centre) / scale)[columns]))
        leverage = float((np.linalg.solve(r.T, point) ** 2).sum())
        mean = float(point @ weights)
        alone = _residuals(design[fitted], target)
        residual = max(math.sqrt(float((alone**2).mean())), floor)
        student = float(stdtrit(len(target) - 1 - len(columns), _CHANCE))
        misses = values - design @ weights
        misses[fitted] = alone  # the others were not fitted anyway
        lowest = _lowest(features[:, 0], values, float(at[0])) if depends_on_level else mean
        widths = (
            student * residual * math.sqrt(1.0 + leverage),
            -_OVERSHOOT * float(misses.min()),
            mean - lowest,
            mean - float(target.max()),
            float(target.min()) - mean,
        )
        sd = max(widths) / SIGMAS
        error = max(sd, math.sqrt(float((misses**2).mean())))
    return Forecast(mean, sd, error) if math.isfinite(mean) and math.isfinite(error) else None


def _lowest(levels: Floats, values: Floats, level: float) -> float:
    """Return where the run ends if it falls much further from its level than any other has.

    Along the line of equal spreads (reduced major axis), so that the level may be of another metric. It
    covers what no regression on good runs knows: a late decay, a late warmup.
    """
    slope = float(values.std() / max(levels.std(), 1e-300))
    falls = values - slope * levels
    return slope * level + float(falls.mean()) + _OVERSHOOT * float((falls - falls.mean()).min())


def _selected(rows: Floats, target: Floats, usable: list[int]) -> list[int]:
    """Return the usable columns that the regression takes, in the order of their selection."""
    columns: list[int] = []
    error = _press(_design(rows, columns), target)
    while len(columns) < max(1, (len(target) - 1) // 3):
        errors = {
            column: _press(_design(rows, [*columns, column]), target)
            for column in usable
            if column not in columns
        }
        best = min(errors, key=errors.__getitem__, default=None)
        if 0 in errors and not columns and errors[0] < 0.7 * error:
            best = 0
        enough = 0.7 if len(columns) < max(1, (len(target) - 1) // 6) else 0.1
        if best is None or not errors[best] < enough * error:
            break
        columns, error = [*columns, best], errors[best]
    return columns


def _design(rows: Floats, columns: list[int]) -> Floats:
    return np.column_stack([np.ones(len(rows)), rows[:, columns]])


def _press(design: Floats, target: Floats) -> float:
    """Return the sum of squared leave-one-out residuals."""
    return float((_residuals(design, target) ** 2).sum())


def _residuals(design: Floats, target: Floats) -> Floats:
    """Return the leave-one-out residuals; infinite where a point decides the fit alone."""
    q, _ = np.linalg.qr(design)
    alone = 1.0 - (q * q).sum(axis=1)
    return np.where(alone > 1e-3, (target - q @ (q.T @ target)) / alone, math.inf)
