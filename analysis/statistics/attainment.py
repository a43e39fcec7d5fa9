"""Chances of each point to be on the front, its knee, and the most efficient.

Measured losses are noisy, and a front picks those that came out low by chance. Every value is drawn again
from a normal distribution around its measurement, with its standard error (a parametric bootstrap: Efron and
Tibshirani, An Introduction to the Bootstrap, 1993, ch. 6.5). Errors that points have in common are drawn
together. A chance is the share of draws: if everything were measured again, how often would this point be on
the front? Noise that the standard errors do not cover is not included.

Shapes: N points, D draws, R common sources of noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.statistics.efficiency import efficiency
from analysis.statistics.pareto import FLAT, Floats, Goal, front

DRAWS = 1000
"""The Monte Carlo error of a probability is at most 1.6 points (one standard error) at this number."""

CHUNK = 2_000_000
"""Numbers per batch of draws: 16 MB."""


@dataclass(frozen=True, kw_only=True)
class Attainment:
    """Shares of the draws, each [N]; positions are those of the input.

    Args:
        front: on the Pareto front.
        knee: the knee of that front; some draws may have none.
        most_efficient: the highest efficiency; all zero without a baseline.
        draws: D.
        exact: number of points without a standard error, which were taken as exact.
    """

    front: Floats
    knee: Floats
    most_efficient: Floats
    draws: int
    exact: int


@dataclass(frozen=True)
class Baseline:
    """The baseline of efficiency, which is drawn anew in each draw as well.

    Args:
        value: see `efficiency.most_efficient`.
        points: positions of the points whose best y is the baseline: its draws are then theirs, without
            `sem`.
    """

    value: float
    sem: float = 0.0
    points: Sequence[int] = ()

    def draw(self, ys: Floats, goal: Goal, generator: np.random.Generator) -> Floats:
        """Return [D] draws of the baseline that belong to the draws of y [D, N]."""
        drawn = self.value + self.sem * generator.standard_normal(len(ys))
        if not len(self.points):
            return np.asarray(drawn)
        own = ys[:, list(self.points)]
        return np.asarray(own.min(axis=1) if goal == "minimize" else own.max(axis=1))


def attainment(
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    y_sem: npt.ArrayLike,
    *,
    goals: tuple[Goal, Goal] = ("minimize", "minimize"),
    joint: npt.ArrayLike | None = None,
    baseline: Baseline | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Attainment:
    """Find front, knee and most efficient point of each draw, with y drawn anew and x (compute) exact.

    Args:
        x: [N] finite numbers.
        y: [N] finite numbers.
        y_sem: [N] standard errors of y; missing, infinite or negative ones count as 0 (see
            `Attainment.exact`).
        goals: of x and y. Efficiency is undefined where more x is better.
        joint: [N, R] factors F of the part of the errors that points have in common: the covariance of y is
            F @ F.T, and what `y_sem` has beyond that is each point's own. None: all of it is.
        baseline: None: no point is the most efficient.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    errors = Errors.from_sems(y_sem, joint)
    on_front, at_knee, efficient = (np.zeros(len(xs)) for _ in range(3))
    generator = np.random.default_rng(seed)
    costs = xs if goals[0] == "minimize" else -xs
    for drawn in _batches(ys, errors, draws, generator):
        members = _on_front(costs, drawn if goals[1] == "minimize" else -drawn)
        on_front += members.sum(axis=0)
        if baseline is not None and goals[0] == "minimize":
            bases = baseline.draw(drawn, goals[1], generator)
            np.add.at(efficient, _winners(drawn, xs, bases, goals[1]), 1)
        np.add.at(at_knee, _knees(xs, drawn, members, goals), 1)
    count = max(draws, 1)
    return Attainment(
        front=on_front / count,
        knee=at_knee / count,
        most_efficient=efficient / count,
        draws=draws,
        exact=int((errors.total == 0).sum()),
    )


def membership(
    points: npt.ArrayLike,
    sems: npt.ArrayLike,
    goals: Sequence[Goal],
    *,
    joint: Sequence[npt.ArrayLike | None] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Floats:
    """Return each point's share of draws on the front of K objectives, with errors in all of them.

    Args:
        points: [N, K] finite numbers.
        sems: [N, K] standard errors, 0 or missing where a value is exact.
        goals: K goals.
        joint: K factors [N, R], as of `attainment`.

    Returns:
        [N] between 0 and 1.

    Raises:
        AnalysisError: as `pareto.front`.
    """
    means = np.asarray(points, dtype=np.float64).reshape(-1, len(goals))
    sems = np.asarray(sems, dtype=np.float64).reshape(-1, len(goals))
    errors = [Errors.from_sems(sem, f) for sem, f in zip(sems.T, joint or [None] * len(goals), strict=True)]
    own = np.column_stack([error.own for error in errors])
    generator = np.random.default_rng(seed)
    count = np.zeros(len(means))
    for _ in range(draws):
        drawn = means + own * generator.standard_normal(means.shape)
        for column, error in enumerate(errors):
            drawn[:, column] += error.draw_joint(1, generator)[0]
        count[front(drawn, goals)] += 1
    return count / max(draws, 1)


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Errors of N values.

    Args:
        total: [N] standard errors, 0 where a value is exact.
        own: [N] the part of each that no other value shares.
        joint: [N, R] factors F of the rest, whose covariance is F @ F.T.
    """

    total: Floats
    own: Floats
    joint: Floats

    @classmethod
    def from_sems(cls, sems: npt.ArrayLike, joint: npt.ArrayLike | None = None) -> Errors:
        """Return the errors; standard errors that are missing, infinite or negative count as 0."""
        given = np.asarray(sems, dtype=np.float64)
        factors = np.zeros((len(given), 0)) if joint is None else np.asarray(joint, dtype=np.float64)
        shared = (factors**2).sum(axis=1)
        squares = np.where(np.isfinite(given) & (given > 0), given, 0.0) ** 2
        total = np.sqrt(np.maximum(squares, shared))
        return cls(total=total, own=np.sqrt(np.maximum(squares - shared, 0.0)), joint=factors)

    def draw_joint(self, draws: int, generator: np.random.Generator) -> Floats:
        """Return [D, N] draws of the errors that values have in common."""
        if not self.joint.shape[1]:
            return np.zeros((draws, len(self.own)))
        return np.asarray(generator.standard_normal((draws, self.joint.shape[1])) @ self.joint.T)

    def covariances(self, at: int) -> Floats:
        """Return [N] covariances with the value at a position, as far as errors are in common."""
        return np.asarray(self.joint @ self.joint[at])


def _batches(ys: Floats, errors: Errors, draws: int, generator: np.random.Generator) -> Iterator[Floats]:
    """Yield the draws of y in batches [D, N] of limited size."""
    size = max(1, CHUNK // max(len(ys), 1))
    for start in range(0, draws, size):
        count = min(size, draws - start)
        drawn = ys + errors.own * generator.standard_normal((count, len(ys)))
        yield drawn + errors.draw_joint(count, generator)


def _on_front(costs: Floats, drawn: Floats) -> npt.NDArray[np.bool_]:
    """Return [D, N] whether each point is on the front of its draw; `costs` [N] are common to all draws."""
    if not costs.size:
        return np.zeros(drawn.shape, dtype=np.bool_)
    order = np.argsort(costs, kind="stable")
    ordered, values = costs[order], drawn[:, order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])  # points of equal cost form a group
    group = np.repeat(np.arange(len(starts)), np.diff(np.r_[starts, len(ordered)]))
    lowest = np.minimum.reduceat(values, starts, axis=1)
    before = np.minimum.accumulate(np.c_[np.full(len(drawn), np.inf), lowest], axis=1)[:, :-1]
    # As good as the best of its own group, and better than all that cost less.
    members = (values == lowest[:, group]) & (values < before[:, group])
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return np.asarray(members[:, inverse])


def _knees(
    xs: Floats, drawn: Floats, members: npt.NDArray[np.bool_], goals: tuple[Goal, Goal]
) -> npt.NDArray[np.intp]:
    """Return the knee of each draw that has one, as `pareto.knee` does, given who is on its front [D, N]."""
    if not xs.size:
        return np.zeros(0, dtype=np.intp)
    signs = np.array([1.0 if goal == "minimize" else -1.0 for goal in goals])
    order = np.argsort(signs[0] * xs, kind="stable")
    costs, values, members = signs[0] * xs[order], signs[1] * drawn[:, order], members[:, order]
    scaled = np.zeros(values.shape)
    for column in (np.broadcast_to(costs, values.shape), values):
        low, high = (
            end(column, axis=1, where=members, initial=initial, keepdims=True)
            for end, initial in ((np.min, np.inf), (np.max, -np.inf))
        )
        with np.errstate(invalid="ignore", divide="ignore"):  # a front of one point has no width
            scaled += (column / 2 - low / 2) / (high / 2 - low / 2)
    distance = np.where(members, (1.0 - scaled) / np.sqrt(2.0), -np.inf)
    farthest = np.argmax(distance, axis=1)
    has_knee = distance[np.arange(len(values)), farthest] > FLAT  # of a front of two points 0, of one NaN
    return np.asarray(order[farthest[has_knee]], dtype=np.intp)


def _winners(drawn: Floats, spent: Floats, baselines: Floats, goal: Goal) -> npt.NDArray[np.intp]:
    """Return the most efficient point of each draw with one; ties go to the least compute, then the first."""
    order = np.lexsort((np.arange(len(spent)), spent))
    gains = np.stack([efficiency(row, spent, base, goal) for row, base in zip(drawn, baselines, strict=True)])
    gains = np.where(gains > 0, gains, -np.inf)[:, order]  # NaN compares false
    best = np.argmax(gains, axis=1) if gains.shape[1] else np.zeros(0, dtype=np.intp)
    found = np.isfinite(gains[np.arange(len(best)), best]) if len(best) else np.zeros(0, dtype=np.bool_)
    return np.asarray(order[best[found]], dtype=np.intp)
