"""A race between the candidates of `sweep confirm`: those that cannot win any more leave.

A round is one new seed for every candidate that remains. All of them run with the same seeds, so that what a
seed does to all alike cancels (common random numbers), and the variance of what is left is pooled over the
candidates: five of them in two rounds give it four degrees of freedom instead of one.

The test is Dunnett's, one-sided (A multiple comparison procedure for comparing several treatments with a
control, JASA 50, 1955): whichever candidate is truly the best is the control, and it leaves a round in which
another has a mean so much lower that chance alone gives this with the round's share of the error rate. The
rounds that can still save a run have equal shares (Bonferroni), as in the races of Maron and Moore (Hoeffding
races, NeurIPS 1993), whose error rate is that of the race, not of a test as in irace (López-Ibáñez et al.,
Operations Research Perspectives 3, 2016). So the truly best ever leaves with probability at most
`error_rate`, where noise is normal with one variance. Where the variances differ, a pair's own variance
replaces the pooled one if it is larger.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.optimize import brentq
from scipy.special import ndtr

from sweeps.search.arrays import Floats, Mask

Losses = Mapping[int, Mapping[int, float]]
"""Loss of each candidate (index of its trial) by seed; lower is better."""

ROUNDING = 1e-12
"""Differences this small beside the losses are rounding, not evidence."""


def remaining(
    losses: Losses, *, seeds: int, error_rate: float = 0.05, cannot_win: Collection[int] = ()
) -> frozenset[int]:
    """Return the candidates that can still be the best; the others have left for good.

    The answer depends on the numbers alone, not on the order in which they arrived: round r is that of the
    r-th lowest seed that any candidate has, so the seeds of a plan must ascend. All rounds are judged again
    from the first, each by its own losses and those before; a candidate that has left stays out, whatever
    was measured of it later.

    Missing and non-finite losses are failed runs: the candidate is judged by its others, and without any
    it stays. Nobody leaves in the first round, where nothing says how large the noise is, nor in the last,
    after which there are no runs to save. Without any noise those that are not among the best leave.

    Args:
        losses: what was measured so far, in complete rounds: a run that is still going counts as failed.
        error_rate: greatest probability that the truly best candidate ever leaves.
        cannot_win: candidates because of which nobody leaves, whatever their losses.

    Raises:
        ValueError: `seeds` is not positive, or `error_rate` is not between 0 and 1.
    """
    if seeds < 1 or not 0 < error_rate < 1:
        raise ValueError(f"seeds must be positive and error_rate between 0 and 1; got {seeds}, {error_rate}")
    candidates, rounds = sorted(losses), sorted({seed for runs in losses.values() for seed in runs})
    table = np.array([[losses[c].get(seed, math.nan) for seed in rounds] for c in candidates], dtype=float)
    staying, may_win = np.ones(len(candidates), dtype=bool), ~np.isin(candidates, list(cannot_win))
    with np.errstate(over="ignore", invalid="ignore"):  # losses near the largest float are no evidence
        for count in range(2, min(len(rounds), seeds - 1) + 1):
            staying &= ~_beaten(table[:, :count], staying, may_win, error_rate / (seeds - 2))
    return frozenset(c for c, stays in zip(candidates, staying, strict=True) if stays)


def _beaten(table: Floats, staying: Mask, may_win: Mask, error_rate: float) -> Mask:
    """Return which candidates [K] are beaten by one that stays and may win, by their losses [K, rounds]."""
    row, column = np.nonzero(np.isfinite(table) & staying[:, None])
    measured, beaten = np.unique(row), np.zeros(len(table), dtype=bool)
    # Effects of the candidates and of the seeds by least squares, which is the two-way analysis of variance
    # where no run has failed.
    design = np.hstack([row[:, None] == measured, column[:, None] == np.unique(column)[1:]]).astype(float)
    freedom = len(row) - int(np.linalg.matrix_rank(design)) if len(measured) > 1 else 0
    if freedom < 1 or not may_win[measured].any():
        return beaten
    values = table[row, column]
    center = values.mean()  # losses that are large beside their differences lose digits otherwise
    inverse = np.linalg.pinv(design.T @ design)
    effects = inverse @ design.T @ (values - center)
    means, spread = effects[: len(measured)], inverse[: len(measured), : len(measured)]
    pooled = float(np.square(values - center - design @ effects).sum()) / freedom
    leader = int(np.argmin(np.where(may_win[measured], means, np.inf)))
    own, shared = _own_variances(table[measured] - table[measured[leader]])
    variance = np.maximum(pooled, own) * (np.diag(spread) + spread[leader, leader] - 2 * spread[leader])
    limit = dunnett(len(table) - 1, freedom, error_rate) * np.sqrt(variance.clip(min=0))
    # Without a shared seed the difference may have been made up of those of others, or of nothing.
    beaten[measured] = (shared > 0) & (means - means[leader] > limit + ROUNDING * np.abs(values).max())
    return beaten


def _own_variances(differences: Floats) -> tuple[Floats, npt.NDArray[np.int_]]:
    """Return the variance of one run and the number of shared seeds of pairs, by differences [K, rounds]."""
    shared = np.isfinite(differences)
    count = shared.sum(axis=1)
    differences = np.where(shared, differences, 0.0)
    mean = differences.sum(axis=1) / count.clip(min=1)
    squares = np.where(shared, np.square(differences - mean[:, None]), 0.0).sum(axis=1)
    return squares / (2 * (count - 1).clip(min=1)), count


@cache
def dunnett(others: int, freedom: int, error_rate: float) -> float:
    """Return the value that the largest of `others` t-statistics against one control exceeds by chance.

    One-sided, with equal numbers of runs, so that any two statistics correlate by 1/2 (Dunnett 1955, eq. 6).

    Args:
        others: number of candidates compared with the control.
        freedom: degrees of freedom of the pooled variance.
    """
    # The control's mean is normal (z), the pooled sd over the true one is chi (s); given both, the others
    # are independent. Both integrals run over their quantiles, by Gauss-Legendre's rule.
    nodes, weights = np.polynomial.legendre.leggauss(96)
    shares, weights = (nodes + 1) / 2, weights / 2
    z = stats.norm.ppf(shares)[:, None]
    s = np.sqrt(stats.chi2.ppf(shares, freedom) / freedom)[None, :]

    def excess(value: float) -> float:
        below = ndtr(math.sqrt(2) * value * s + z) ** others
        return float(weights @ below @ weights) - (1 - error_rate)

    return float(brentq(excess, 0.0, 1e7))
