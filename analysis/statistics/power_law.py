"""Saturating power laws, `y = a + Σ b_k · s_k^(-c_k)`, with draws that show how uncertain they are.

`curve` (loss against compute) and `lengths` (loss over both stages' lengths) call `fit`. The form is the one
that scaling laws of language models take (Hestness et al., arXiv:1712.00409; Hoffmann et al.,
arXiv:2203.15556, eq. 10).

For given exponents the model is linear, so that `a` and `b` are solved exactly and only the exponents are
searched (variable projection: Golub and Pereyra, SIAM Journal on Numerical Analysis 10, 1973). Uncertainty: a
parametric bootstrap of the fitted values; where the noise is estimated from few residuals, each draw has a
noise level of its own (χ² with the residuals' degrees of freedom), which for linear models gives Student's
intervals exactly.
Shapes: N points, K terms, D draws.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from analysis.errors import AnalysisError
from analysis.labels import counted
from analysis.statistics.pareto import Floats

EXPONENTS = (0.02, 4.0)
"""Where the exponents are sought. Below, the law cannot be told from a logarithm; above, from a step."""

GRID = {1: 97, 2: 19}
"""How many exponents are tried per term: steps of 6 % with one term, of a third with two."""

LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Law:
    """A fitted law. The first row of the arrays is the fit itself, the others are the draws.

    Args:
        offset: [1 + D] a.
        factor: [1 + D, K] b, in the units of `scale`: the term is `b_k · (s_k / scale_k)^(-c_k)`.
        exponent: [1 + D, K] c.
        scale: [K] geometric means of s.
        noise: standard deviation of a single y around the law, NaN where it is told by standard errors alone.
        freedom: points less parameters.
        at_edge: whether an exponent ended at an end of `EXPONENTS`: the data do not show how the law bends.
    """

    offset: Floats
    factor: Floats
    exponent: Floats
    scale: Floats
    noise: float
    freedom: int
    at_edge: bool

    def values(self, s: Floats) -> Floats:
        """[1 + D, M] the law and its draws at M places. `s`: [M, K], positive."""
        ratio = np.log(np.asarray(s, dtype=np.float64) / self.scale)  # [M, K]
        terms = self.factor[:, None, :] * np.exp(-self.exponent[:, None, :] * ratio[None])
        return np.asarray(self.offset[:, None] + terms.sum(axis=-1))

    def plain_factor(self) -> Floats:
        """[1 + D, K] b for s as it is, without `scale`."""
        return np.asarray(self.factor * self.scale**self.exponent)


def interval(draws: Floats, level: float = LEVEL) -> tuple[Floats, Floats]:
    """Ends of the central interval of the draws, over the first axis."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def fit(
    s: Floats, y: Floats, sem: Floats | None = None, *, floor: float | None = None, draws: int, seed: int = 0
) -> Law:
    """Fit the law by least squares, with `b` not negative.

    Args:
        s: [N, K] positive.
        y: [N] finite.
        sem: [N] positive standard errors: points then count by them, and if they scatter more than that, the
            errors are taken for too small by one common factor. None: one unknown noise for all.
        floor: what `a` is not below, such as 0 for a loss; None for no bound.
        draws: D.

    Raises:
        AnalysisError: there are no more points than parameters, so that nothing would tell how wrong it is.
    """
    points, terms = s.shape
    freedom = points - (2 * terms + 1)
    if freedom < 1:
        raise AnalysisError(
            f"{counted(points, 'point')} cannot tell a law of {2 * terms + 1} parameters and its "
            f"uncertainty; {2 * terms + 2} or more are needed"
        )
    size = float(np.abs(y).max()) or 1.0  # squares of what a program may report overflow
    y, sem = y / size, None if sem is None else sem / size
    scale = np.exp(np.log(s).mean(axis=0))
    ratio = np.log(s / scale)
    weights = np.full(points, 1.0) if sem is None else sem**-2.0
    base = 0.0 if floor is None else floor / size
    first = _solve(ratio, (y - base)[None], weights, bounded=floor is not None)
    exponent = _polished(ratio, y - base, weights, first.exponent[0], bounded=floor is not None)
    design = _design(ratio, exponent[None])
    beta = _linear(design, (y - base)[None], weights, bounded=floor is not None)[0][0, 0]
    fitted = design[0] @ beta
    chi2 = float((weights * (y - base - fitted) ** 2).sum())
    generator = np.random.default_rng(seed)
    spread = _spread(chi2, freedom, draws, generator, known=sem is not None)
    errors = generator.standard_normal((draws, points)) / np.sqrt(weights)
    drawn = _solve(
        ratio, fitted + spread[:, None] * errors, weights, bounded=floor is not None, also=exponent
    )
    edges = np.isclose(exponent, EXPONENTS[0]) | np.isclose(exponent, EXPONENTS[1])
    return Law(
        offset=size * (np.r_[beta[0], drawn.beta[:, 0]] + base),
        factor=size * np.vstack((beta[1:], drawn.beta[:, 1:])),
        exponent=np.vstack((exponent[None], drawn.exponent)),
        scale=scale,
        noise=size * float(np.sqrt(chi2 / freedom)) if sem is None else float("nan"),
        freedom=freedom,
        at_edge=bool((edges & (beta[1:] > 0)).any()),
    )


@dataclass(frozen=True)
class _Solved:
    """beta: [D, 1 + K]; exponent: [D, K]."""

    beta: Floats
    exponent: Floats


def _spread(chi2: float, freedom: int, draws: int, generator: np.random.Generator, *, known: bool) -> Floats:
    """[D] by how much each draw's errors are larger than the weights say."""
    level = np.sqrt(chi2 / generator.chisquare(freedom, draws))
    # Known errors are believed unless the points scatter more (Birge, Physical Review 40, 1932).
    return np.maximum(level, 1.0) if known else np.asarray(level)


def _design(ratio: Floats, exponents: Floats) -> Floats:
    """[G, N, 1 + K] the columns of the linear problem for G sets of exponents [G, K]."""
    terms = np.exp(-exponents[:, None, :] * ratio[None])
    return np.concatenate((np.ones((*terms.shape[:2], 1)), terms), axis=2)


def _solve(
    ratio: Floats, ys: Floats, weights: Floats, *, bounded: bool, also: Floats | None = None
) -> _Solved:
    """The best of all exponents on the grid, for every row of `ys` [D, N] by itself.

    `also`: [K] exponents between those of the grid. Without the fit's own, the draws of points that lie on
    the curve would all lie beside it.
    """
    terms = ratio.shape[1]
    grid = np.geomspace(*EXPONENTS, GRID[terms])
    axes = [grid] * terms if also is None else [np.append(grid, own) for own in also]
    exponents = np.array(list(itertools.product(*axes)))
    beta, gain = _linear(_design(ratio, exponents), ys, weights, bounded=bounded)
    at = gain.argmax(axis=0)
    return _Solved(beta[at, np.arange(len(ys))], exponents[at])


def _linear(design: Floats, ys: Floats, weights: Floats, *, bounded: bool) -> tuple[Floats, Floats]:
    """Weighted least squares of each row of `ys` with beta >= 0, but for the first where it is not bounded.

    Where the plain solution is not allowed, the minimum lies in a face of the allowed region: all are tried,
    there are at most eight.

    Args:
        design: [G, N, P] G problems.
        ys: [D, N]

    Returns:
        beta [G, D, P], and [G, D] by how much it shrinks the sum of squares.
    """
    weighted = design * weights[:, None]
    gram = np.einsum("gnp,gnq->gpq", design, weighted)
    projected = ys @ weighted  # [G, D, P]
    beta, gain = np.zeros_like(projected), np.full(projected.shape[:2], -np.inf)
    for free in itertools.product((True, False), repeat=design.shape[2]):
        if not (bounded or free[0]):
            continue
        at = np.flatnonzero(free)
        aims = projected[..., at]
        # Columns that cannot be told apart (all s equal) get the smallest solution instead of an error.
        solution = aims @ np.linalg.pinv(gram[:, at[:, None], at], hermitian=True)
        allowed = (solution[..., (at > 0) | bounded] >= 0).all(axis=-1)
        found = np.where(allowed, (solution * aims).sum(axis=-1), -np.inf)
        better = found > gain
        gain = np.where(better, found, gain)
        padded = np.zeros_like(beta)
        padded[..., at] = solution
        beta = np.where(better[..., None], padded, beta)
        if all(free) and allowed.all():
            break
    return beta, gain


def _polished(ratio: Floats, y: Floats, weights: Floats, start: Floats, *, bounded: bool) -> Floats:
    """The exponents of the fit itself, off the grid."""

    def residuals(log_exponent: Floats) -> Floats:
        design = _design(ratio, np.exp(log_exponent)[None])
        beta, _ = _linear(design, y[None], weights, bounded=bounded)
        return np.asarray(np.sqrt(weights) * (y - design[0] @ beta[0, 0]))

    low, high = np.log(EXPONENTS)
    inside = np.clip(np.log(start), low + 1e-9, high - 1e-9)
    found = optimize.least_squares(residuals, inside, bounds=(low, high), xtol=1e-12, ftol=1e-12)
    return np.asarray(np.exp(found.x))
