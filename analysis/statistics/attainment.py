"""How sure is the front? Each point's chance of being on it, being the knee and being the most efficient.

Measured losses are noisy, and a front picks the lucky ones. Here every value is drawn again from a normal
distribution around what was measured, with its standard error (a parametric bootstrap: Efron and Tibshirani,
An Introduction to the Bootstrap, 1993, ch. 6.5), and the question is asked of each draw. `summary` calls
this.

It answers: if everything were measured again, how often would this point be on the front? Noise that the
standard errors do not cover (the seed, where there is one run per configuration) is not in it.
Shapes: N points, D draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.statistics.efficiency import efficiency
from analysis.statistics.pareto import Floats, Goal, front, knee

DRAWS = 1000
"""The Monte Carlo error of a probability is at most 1.6 points (one standard error) at this number."""

CHUNK = 2_000_000
"""Numbers held at once: draws are made in batches of at most so many, 16 MB."""


@dataclass(frozen=True, kw_only=True)
class Attainment:
    """Shares of the draws, each [N]; positions are those of the input.

    Args:
        front: on the Pareto front.
        knee: the knee of that front. Some draws may have none.
        most_efficient: has the highest efficiency; all zero without a baseline.
        draws: D.
        exact: points without a standard error, which were taken as exact.
    """

    front: Floats
    knee: Floats
    most_efficient: Floats
    draws: int
    exact: int


def attainment(
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    y_sem: npt.ArrayLike,
    *,
    x_goal: Goal = "minimize",
    y_goal: Goal = "minimize",
    baseline: float | None = None,
    baseline_sem: float = 0.0,
    baseline_at: Sequence[int] = (),
    knees: bool = True,
    draws: int = DRAWS,
    seed: int = 0,
) -> Attainment:
    """Ask `draws` times who is on the front, with y drawn anew each time and x (compute, a count) as it is.

    Args:
        x, y: [N] finite numbers.
        y_sem: [N] standard errors of y; missing, infinite or negative ones count as 0 (see
            `Attainment.exact`).
        baseline, baseline_sem: as in `efficiency.most_efficient`; the baseline is drawn anew, too.
        baseline_at: positions of the points whose best is the baseline: its draws are then theirs.
        knees: also find the knee of each draw, the only part that costs a call per draw.
        seed: same seed and points, same answer.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    errors = np.asarray(y_sem, dtype=np.float64)
    errors = np.where(np.isfinite(errors) & (errors > 0), errors, 0.0)
    on_front, at_knee, efficient = (np.zeros(len(xs)) for _ in range(3))
    generator = np.random.default_rng(seed)
    turned = xs if x_goal == "minimize" else -xs
    for size in _batches(draws, len(xs)):
        drawn = ys + errors * generator.standard_normal((size, len(xs)))
        member = _on_front(turned, drawn if y_goal == "minimize" else -drawn)
        on_front += member.sum(axis=0)
        if baseline is not None and x_goal == "minimize":
            bases = baseline + baseline_sem * generator.standard_normal(size)
            if len(baseline_at):
                mine = drawn[:, list(baseline_at)]
                bases = mine.min(axis=1) if y_goal == "minimize" else mine.max(axis=1)
            np.add.at(efficient, _winners(drawn, xs, bases, y_goal), 1)
        if knees:
            for row, members in zip(drawn, member, strict=True):
                at = np.flatnonzero(members)
                found = knee(np.column_stack((xs[at], row[at])), (x_goal, y_goal))
                if found is not None:
                    at_knee[at[found]] += 1
    count = max(draws, 1)
    return Attainment(
        front=on_front / count,
        knee=at_knee / count,
        most_efficient=efficient / count,
        draws=draws,
        exact=int((errors == 0).sum()),
    )


def membership(
    points: npt.ArrayLike,
    sems: npt.ArrayLike,
    goals: Sequence[Goal],
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Floats:
    """Each point's share of draws on the front, for any number of objectives with errors in all of them.

    Args:
        points: [N, K] finite numbers.
        sems: [N, K] standard errors, 0 or missing where a value is exact.
        goals: K goals.

    Returns:
        [N] between 0 and 1.

    Raises:
        AnalysisError: as `pareto.front`.
    """
    means, errors = (np.asarray(told, dtype=np.float64).reshape(-1, len(goals)) for told in (points, sems))
    errors = np.where(np.isfinite(errors) & (errors > 0), errors, 0.0)
    generator = np.random.default_rng(seed)
    count = np.zeros(len(means))
    for _ in range(draws):
        count[front(means + errors * generator.standard_normal(means.shape), goals)] += 1
    return count / max(draws, 1)


def _batches(draws: int, points: int) -> list[int]:
    size = max(1, CHUNK // max(points, 1))
    return [min(size, draws - start) for start in range(0, draws, size)]


def _on_front(costs: Floats, drawn: Floats) -> npt.NDArray[np.bool_]:
    """[D, N] whether each point is on the front of its draw. `costs` [N] are common to all draws."""
    if not costs.size:
        return np.zeros(drawn.shape, dtype=np.bool_)
    order = np.argsort(costs, kind="stable")
    ordered, values = costs[order], drawn[:, order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])  # points of equal cost form a group
    group = np.repeat(np.arange(len(starts)), np.diff(np.r_[starts, len(ordered)]))
    lowest = np.minimum.reduceat(values, starts, axis=1)
    before = np.minimum.accumulate(np.c_[np.full(len(drawn), np.inf), lowest], axis=1)[:, :-1]
    # As good as the best of its own group, and better than all that cost less.
    member = (values == lowest[:, group]) & (values < before[:, group])
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return np.asarray(member[:, back])


def _winners(drawn: Floats, spent: Floats, baselines: Floats, goal: Goal) -> npt.NDArray[np.intp]:
    """The most efficient point of each draw that has one; ties go to who spent least, then to the first."""
    order = np.lexsort((np.arange(len(spent)), spent))
    gains = np.stack([efficiency(row, spent, base, goal) for row, base in zip(drawn, baselines, strict=True)])
    gains = np.where(gains > 0, gains, -np.inf)[:, order]  # NaN compares false
    best = np.argmax(gains, axis=1) if gains.shape[1] else np.zeros(0, dtype=np.intp)
    found = np.isfinite(gains[np.arange(len(best)), best]) if len(best) else np.zeros(0, dtype=np.bool_)
    return np.asarray(order[best[found]], dtype=np.intp)
