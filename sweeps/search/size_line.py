"""A straight line through quantities of sweeps of several sizes, over the logarithm of the size.

Sweeps may differ in a second quantity too, such as the length of training: then one regression on the
logarithms of both gives the line at the target's.

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

from sweeps.search.arrays import Floats

DRAWS = 20_000
LEVEL = 0.95
ALIKE = 0.05
"""Least spread, of logarithms, that counts as one: sizes 7 % apart."""
BOTH_ALIKE = 0.3
"""The same in the direction in which two quantities vary least: a factor of 1.6 between lengths of a size.

Noise of 5 % in the costs then becomes an interval of 95 % of a factor of 1.6 at four times a length; where
the two have grown together but for 10 % in one of three sweeps, of 5.
"""
UNLIKELY = 0.05
"""Probability of the residuals, below which they overrule the standard deviations."""


@dataclass(frozen=True, kw_only=True)
class SizeLine:
    """A fitted line.

    Args:
        centre: mean of the logarithms of the sizes, by weight.
        mean: of the values, by weight.
        slope: change where the size grows e times as large.
        other: the same of the second quantity, with its standard deviation; None without one.
        at_centre: value at the centre, the second quantity as at the target.
        covariance: of at_centre and slope, [2, 2], by the standard deviations of the points.
        reach: half of an interval of 95 %, in standard deviations: 1.96, or more with residuals.
        misfit: probability that chance alone puts points so far away; None where any points fit.
    """

    centre: float
    mean: float
    slope: float
    other: tuple[float, float] | None
    at_centre: float
    covariance: Floats
    reach: float
    misfit: float | None

    @property
    def slope_sd(self) -> float:
        return float(np.sqrt(self.covariance[1, 1]))

    def at(self, sizes: npt.ArrayLike) -> tuple[Floats, Floats]:
        """Return the values of the line at sizes [M], and half of their intervals."""
        away = np.log(np.asarray(sizes, dtype=np.float64)) - self.centre
        basis = np.stack([np.ones_like(away), away], axis=-1)
        variance = ((basis @ self.covariance) * basis).sum(axis=-1)
        return self.at_centre + self.slope * away, self.reach * np.sqrt(variance)


def are_apart(sizes: Sequence[float], others: Sequence[float] | None) -> bool:
    """Return whether these points tell the effect of the size, and that of a second quantity, apart.

    Args:
        others: logarithms of the second quantity; None without one.
    """
    columns = [np.log(sizes), *([] if others is None else [np.asarray(others, dtype=np.float64)])]
    centred = np.stack([each - each.mean() for each in columns], axis=1)
    tol = ALIKE if others is None else BOTH_ALIKE
    return bool(np.linalg.matrix_rank(centred, tol=tol) == len(columns))


def through(
    sizes: Sequence[float],
    values: Sequence[float],
    sds: Sequence[float],
    others: Sequence[float] | None = None,
) -> SizeLine:
    """Return the line through points of two or more different sizes; `sds` are above zero.

    Args:
        others: logarithm of a second quantity over that of the target, of each point: one fit to both follows
            the line at the target's. Size and it must be `are_apart`.
    """
    x, y, weights = np.log(sizes), np.asarray(values, dtype=np.float64), np.asarray(sds) ** -2.0
    centre = float(np.average(x, weights=weights))
    columns = [
        np.ones_like(x),
        x - centre,
        *([] if others is None else [np.asarray(others, dtype=np.float64)]),
    ]
    basis = np.stack(columns, axis=1)
    covariance = np.linalg.inv(basis.T @ (weights[:, None] * basis))
    found = covariance @ (basis.T @ (weights * y))
    chi2 = float((weights * (y - basis @ found) ** 2).sum())
    freedom, rng = len(x) - len(columns), np.random.default_rng(0)
    misfit, scale = None, np.ones(DRAWS)
    if freedom > 0:
        squares = rng.chisquare(freedom, DRAWS)
        misfit = float((squares >= chi2).mean())
        if misfit < UNLIKELY:
            scale = np.maximum(1.0, np.sqrt(chi2 / squares))
    return SizeLine(
        centre=centre,
        mean=float(np.average(y, weights=weights)),
        slope=float(found[1]),
        other=None if others is None else (float(found[2]), float(np.sqrt(covariance[2, 2]))),
        at_centre=float(found[0]),
        covariance=covariance[:2, :2],
        reach=float(np.quantile(np.abs(rng.standard_normal(DRAWS)) * scale, LEVEL)),
        misfit=misfit,
    )
