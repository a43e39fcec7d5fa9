"""Loss against compute as a curve, `loss = a + b · compute^(-c)`, with uncertainty."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.errors import AnalysisError
from analysis.statistics.pareto import Floats, Goal
from analysis.statistics.power_law import Law, fit, interval

DRAWS = 1000
DISTINCT = 4
"""Different amounts of compute needed: a curve of three parameters goes through any three points."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A fitted curve.

    Args:
        low: smallest compute among the points; below it the curve extrapolates.
        high: largest compute among the points; above it the curve extrapolates.
        sign: 1 where less y is better, -1 where the curve was fitted to -y.
    """

    law: Law
    low: float
    high: float
    sign: float

    def predict(self, x: npt.ArrayLike) -> tuple[Floats, Floats, Floats]:
        """Return the curve at [M] amounts of compute and its 95 % interval (value, low, high), each [M].

        The interval is that of the curve; a single run scatters more.
        """
        xs = np.atleast_1d(np.asarray(x, dtype=np.float64))
        values = self.sign * self.law.values(xs[:, None])
        low, high = interval(values[1:])
        return values[0], low, high

    def parameters(self) -> dict[str, tuple[float, float, float]]:
        """Return a, b and c as (value, low, high), low and high being the 95 % interval."""
        samples = {
            "a": self.sign * self.law.offset,
            "b": self.sign * self.law.plain_factor()[:, 0],
            "c": self.law.exponent[:, 0],
        }
        ends = {name: interval(draws[1:]) for name, draws in samples.items()}
        return {n: (float(samples[n][0]), float(ends[n][0]), float(ends[n][1])) for n in samples}

    def holds(self, x: float) -> bool:
        """Return whether x lies within the compute of the points."""
        return self.low <= x <= self.high


def fit_curve(
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    sem: npt.ArrayLike | None = None,
    *,
    goal: Goal = "minimize",
    draws: int = DRAWS,
    seed: int = 0,
) -> Curve:
    """Fit loss against compute.

    Args:
        x: [N] compute; rows where it is not positive, or y is missing, are ignored.
        y: [N] losses or scores.
        sem: [N] standard errors of y; used if every point has one.
        goal: whether less or more y is better. A loss (all y positive, less is better) is bounded below by
            zero.

    Raises:
        AnalysisError: fewer than four different x.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    kept = np.isfinite(xs) & np.isfinite(ys) & (xs > 0)
    xs, ys = xs[kept], ys[kept]
    different = len(np.unique(xs))
    if different < DISTINCT:
        raise AnalysisError(
            f"a curve of loss against compute needs {DISTINCT} different amounts of compute; there are "
            f"{different}"
        )
    errors = known_errors(sem, kept)
    sign = 1.0 if goal == "minimize" else -1.0
    floor = 0.0 if goal == "minimize" and (ys > 0).all() else None
    law = fit(xs[:, None], sign * ys, errors, floor=floor, draws=draws, seed=seed)
    return Curve(law=law, low=float(xs.min()), high=float(xs.max()), sign=sign)


def known_errors(sem: npt.ArrayLike | None, kept: npt.NDArray[np.bool_]) -> Floats | None:
    """Return the [N] standard errors of the kept points if all of them have one, else None."""
    if sem is None:
        return None
    errors = np.asarray(sem, dtype=np.float64)[kept]
    return errors if (np.isfinite(errors) & (errors > 0)).all() else None
