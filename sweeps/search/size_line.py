"""A straight line through quantities of sweeps of several sizes, over the logarithm of the size.

Each point has a standard deviation, by which it is weighted. With two sizes the line passes through both and
nothing checks it. With more, points that lie farther from the line than their standard deviations explain
widen the interval: it is then Student's, with a scale from the residuals alone. Until then the standard
deviations hold: a scale from one or two residuals in every case would make intervals several times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

DRAWS = 20_000
LEVEL = 0.95
UNLIKELY = 0.05
"""Probability of the residuals, below which they overrule the standard deviations."""


@dataclass(frozen=True, kw_only=True)
class SizeLine:
    """A fitted line.

    Args:
        centre: mean of the logarithms of the sizes, by weight: there level and slope are independent.
        level: value there.
        slope: change where the size grows e times as large.
        level_sd: standard deviation of the level by those of the points.
        reach: half of an interval of 95 %, in standard deviations: 1.96, or more with residuals.
        misfit: probability that chance alone puts points so far from the line; None with two sizes.
    """

    centre: float
    level: float
    slope: float
    level_sd: float
    slope_sd: float
    reach: float
    misfit: float | None

    def at(self, sizes: npt.ArrayLike) -> tuple[Floats, Floats]:
        """Return the values of the line at sizes [M], and half of their intervals."""
        away = np.log(np.asarray(sizes, dtype=np.float64)) - self.centre
        return self.level + self.slope * away, self.reach * np.hypot(self.level_sd, self.slope_sd * away)


def through(sizes: Sequence[float], values: Sequence[float], sds: Sequence[float]) -> SizeLine:
    """Return the line through points of two or more different sizes; `sds` are above zero."""
    x, y, weights = np.log(sizes), np.asarray(values, dtype=np.float64), np.asarray(sds) ** -2.0
    centre = float(np.average(x, weights=weights))
    spread = float((weights * (x - centre) ** 2).sum())
    level = float(np.average(y, weights=weights))
    slope = float((weights * (x - centre) * y).sum()) / spread
    chi2 = float((weights * (y - level - slope * (x - centre)) ** 2).sum())
    freedom, rng = len(x) - 2, np.random.default_rng(0)
    misfit, scale = None, np.ones(DRAWS)
    if freedom > 0:
        squares = rng.chisquare(freedom, DRAWS)
        misfit = float((squares >= chi2).mean())
        if misfit < UNLIKELY:
            scale = np.maximum(1.0, np.sqrt(chi2 / squares))
    return SizeLine(
        centre=centre,
        level=level,
        slope=slope,
        level_sd=float(weights.sum() ** -0.5),
        slope_sd=spread**-0.5,
        reach=float(np.quantile(np.abs(rng.standard_normal(DRAWS)) * scale, LEVEL)),
        misfit=misfit,
    )
