"""Saturating power laws, `y = a + Σ b_k · s_k^(-c_k)`, with draws that show how uncertain they are.

The form of scaling laws of language models (Hestness et al., arXiv:1712.00409; Hoffmann et al.,
arXiv:2203.15556, eq. 10).

For given exponents the model is linear: `a` and `b` are solved exactly and only the exponents are searched
(variable projection: Golub and Pereyra, SIAM Journal on Numerical Analysis 10, 1973). Uncertainty comes from
a parametric bootstrap of the fitted values. Where the noise is estimated from few residuals, each draw has a
noise level of its own (χ² with the residuals' degrees of freedom), which for linear models gives Student's
intervals exactly.

Shapes: N points, K terms, D draws, G exponents on the grid, P = 1 + K coefficients.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from analysis.errors import AnalysisError
from analysis.statistics.pareto import Floats

EXPONENTS = (0.02, 4.0)
"""Range of the exponents. Below it, the law looks like a logarithm; above it, like a step."""

GRID = {1: 97, 2: 19}
"""Exponents tried per term, by number of terms: 6 % apart with one term, a third apart with two."""

LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Law:
    """A fitted law. The first row of the arrays is the fit itself, the others are the draws.

    Args:
        offset: [1 + D] a.
        factor: [1 + D, K] b, in the units of `scale`: the term is `b_k · (s_k / scale_k)^(-c_k)`.
        exponent: [1 + D, K] c.
        scale: [K] geometric means of s.
        noise: standard deviation of a single y around the law; NaN where standard errors were given.
        freedom: residual degrees of freedom, points less parameters.
        at_edge: whether an exponent lies at a bound of `EXPONENTS`: the data do not show how the law bends.
    """

    offset: Floats
    factor: Floats
    exponent: Floats
    scale: Floats
    noise: float
    freedom: int
    at_edge: bool

    def values(self, s: Floats) -> Floats:
        """Return [1 + D, M] values of the law and its draws at positive s [M, K]."""
        ratio = np.log(np.asarray(s, dtype=np.float64) / self.scale)  # [M, K]
        terms = self.factor[:, None, :] * np.exp(-self.exponent[:, None, :] * ratio[None])
        return np.asarray(self.offset[:, None] + terms.sum(axis=-1))

    def plain_factor(self) -> Floats:
        """Return [1 + D, K] b for unscaled s."""
        return np.asarray(self.factor * self.scale**self.exponent)


def interval(draws: Floats, level: float = LEVEL) -> tuple[Floats, Floats]:
    """Return the central interval of the draws (low, high), over the first axis."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def fit(
    s: Floats, y: Floats, sem: Floats | None = None, *, floor: float | None = None, draws: int, seed: int = 0
) -> Law:
    """Fit the law by least squares, with `b` not negative.

    Args:
        s: [N, K] positive, of more points than the 1 + 2·K parameters.
        y: [N] finite.
        sem: [N] positive standard errors, by which points are weighted; if the points scatter more than that,
            the errors are scaled up by one common factor. None: one unknown noise level for all.
        floor: lower bound of `a`, such as 0 for a loss; None for no bound.
        draws: D, bootstrap draws.

    Raises:
        AnalysisError: the points span too many orders of magnitude.
    """
    points, terms = s.shape
    freedom = points - (2 * terms + 1)
    size = float(np.abs(y).max()) or 1.0  # squares of what a program may report overflow
    y, sem = y / size, None if sem is None else sem / size
    scale = np.exp(np.log(s).mean(axis=0))
    base = 0.0 if floor is None else floor / size
    problem = _Problem(
        ratio=np.log(s / scale),
        weights=np.full(points, 1.0) if sem is None else sem**-2.0,
        bounded=floor is not None,
    )
    # The fit itself: exponents off the grid, from the best ones on it.
    exponent = _refine(problem, y - base, _solve(problem, (y - base)[None]).exponent[0])
    design = _design(problem.ratio, exponent[None])
    beta = _linear(problem, design, (y - base)[None])[0][0]
    best, fitted = _Solved(beta, exponent[None]), design[0] @ beta[0]
    chi2 = float((problem.weights * (y - base - fitted) ** 2).sum())
    generator = np.random.default_rng(seed)
    level = np.sqrt(chi2 / generator.chisquare(freedom, draws))
    if sem is not None:  # known errors hold unless the points scatter more (Birge, Physical Review 40, 1932)
        level = np.maximum(level, 1.0)
    errors = level[:, None] * (
        generator.standard_normal((draws, points)) / np.sqrt(problem.weights)
    )  # [D, N]
    drawn = _solve(problem, fitted + errors, also=best.exponent[0])
    edges = np.isclose(best.exponent, EXPONENTS[0]) | np.isclose(best.exponent, EXPONENTS[1])
    return Law(
        offset=size * (np.r_[best.beta[0, 0], drawn.beta[:, 0]] + base),
        factor=size * np.vstack((best.beta[:, 1:], drawn.beta[:, 1:])),
        exponent=np.vstack((best.exponent, drawn.exponent)),
        scale=scale,
        noise=size * float(np.sqrt(chi2 / freedom)) if sem is None else float("nan"),
        freedom=freedom,
        at_edge=bool((edges & (best.beta[:, 1:] > 0)).any()),
    )


@dataclass(frozen=True, kw_only=True)
class _Problem:
    """The inputs of a fit: log(s / scale) [N, K], weights [N], and whether `a` must not be negative."""

    ratio: Floats
    weights: Floats
    bounded: bool


@dataclass(frozen=True)
class _Solved:
    """beta: [D, 1 + K]; exponent: [D, K]."""

    beta: Floats
    exponent: Floats


def _design(ratio: Floats, exponents: Floats) -> Floats:
    """Return [G, N, P] the columns of the linear problem for exponents [G, K]."""
    terms = np.exp(-exponents[:, None, :] * ratio[None])
    return np.concatenate((np.ones((*terms.shape[:2], 1)), terms), axis=2)


def _solve(problem: _Problem, ys: Floats, *, also: Floats | None = None) -> _Solved:
    """Solve each row of `ys` [D, N] for the best exponents on the grid.

    `also`: [K] exponents to add to the grid. Without those of the fit itself, the draws of points that lie
    exactly on the curve would all miss it.
    """
    terms = problem.ratio.shape[1]
    grid = np.geomspace(*EXPONENTS, GRID[terms])
    axes = [grid] * terms if also is None else [np.append(grid, own) for own in also]
    exponents = np.array(list(itertools.product(*axes)))
    beta, gain = _linear(problem, _design(problem.ratio, exponents), ys)
    at = gain.argmax(axis=0)
    return _Solved(beta[at, np.arange(len(ys))], exponents[at])


def _linear(problem: _Problem, design: Floats, ys: Floats) -> tuple[Floats, Floats]:
    """Solve weighted least squares for each row of `ys` [D, N] and each design [G, N, P], with beta >= 0.

    The first coefficient may be negative if the problem is not bounded. Where the unconstrained solution is
    not allowed, the minimum lies on a face of the allowed region; all faces are tried, at most eight.

    Returns:
        beta [G, D, P], and the reduction of the sum of squares [G, D].
    """
    bounded = problem.bounded
    weighted = design * problem.weights[:, None]
    gram = np.einsum("gnp,gnq->gpq", design, weighted)
    projected = ys @ weighted  # [G, D, P]
    beta, gain = np.zeros_like(projected), np.full(projected.shape[:2], -np.inf)
    for free in itertools.product((True, False), repeat=design.shape[2]):
        if not (bounded or free[0]):
            continue
        at = np.flatnonzero(free)
        target = projected[..., at]
        # Collinear columns (all s equal) get the smallest solution instead of an error.
        solution = target @ np.linalg.pinv(gram[:, at[:, None], at], hermitian=True)
        allowed = (solution[..., (at > 0) | bounded] >= 0).all(axis=-1)
        found = np.where(allowed, (solution * target).sum(axis=-1), -np.inf)
        better = found > gain
        gain = np.where(better, found, gain)
        padded = np.zeros_like(beta)
        padded[..., at] = solution
        beta = np.where(better[..., None], padded, beta)
        if all(free) and allowed.all():
            break
    return beta, gain


def _refine(problem: _Problem, y: Floats, start: Floats) -> Floats:
    """Return [K] exponents of the best fit to y [N], from a start on the grid."""

    def residuals(log_exponent: Floats) -> Floats:
        design = _design(problem.ratio, np.exp(log_exponent)[None])
        beta, _ = _linear(problem, design, y[None])
        return np.asarray(np.sqrt(problem.weights) * (y - design[0] @ beta[0, 0]))

    from scipy import optimize  # 50 MB, of which a report without a curve needs nothing

    low, high = np.log(EXPONENTS)
    inside = np.clip(np.log(start), low + 1e-9, high - 1e-9)
    try:
        found = optimize.least_squares(residuals, inside, bounds=(low, high), xtol=1e-12, ftol=1e-12)
    except ValueError:  # a residual is infinite
        raise AnalysisError("the points span too many orders of magnitude for a curve") from None
    return np.asarray(np.exp(found.x))
