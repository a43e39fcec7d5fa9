"""The Pareto front and its knee, over bare arrays.

Shapes: N points of K objectives, [N, K]; D of them distinct, F on the front.
Positions are zero-based row numbers of the input.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from analysis.errors import AnalysisError

Goal = Literal["minimize", "maximize"]
Floats = npt.NDArray[np.float64]
Positions = npt.NDArray[np.intp]

# Normalised distances below this are rounding, not curvature: the points lie on one line.
FLAT = 1e-9


def front(points: npt.ArrayLike, goals: Sequence[Goal]) -> Positions:
    """Return the positions of the points that no other point dominates, in ascending order.

    A point dominates another if it is at least as good in every objective and better in one. Equal points
    do not dominate each other: all of them are on the front, or none. A row with a missing or infinite
    value is ignored: it is never on the front and dominates nothing.

    O(N log N) for up to three objectives (Kung, Luccio, Preparata: On Finding the Maxima of a Set of Vectors,
    Journal of the ACM 22, 1975); O(N · front) beyond, one vectorised comparison per point of the front.

    Args:
        points: [N, K] numbers; N may be 0.
        goals: K goals, one per column.

    Raises:
        AnalysisError: the shape of `points` does not fit `goals`, or a goal is unknown.
    """
    costs, kept = finite_costs(points, goals)
    # Equal points stand or fall together, and the distinct ones come out sorted by first, second, … cost:
    # a point can only be dominated by one before it.
    distinct, group = np.unique(costs, axis=0, return_inverse=True)
    on_front = SEARCHES.get(distinct.shape[1], _cull)(distinct)
    return kept[on_front[group.reshape(-1)]]


def finite_costs(points: npt.ArrayLike, goals: Sequence[Goal]) -> tuple[Floats, Positions]:
    """Return the finite rows of [N, K] points as costs (less is better in each), and their positions."""
    unknown = [goal for goal in goals if goal not in ("minimize", "maximize")]
    if unknown or not goals:
        raise AnalysisError(f"goals must be 'minimize' or 'maximize', one per objective; got {list(goals)!r}")
    values = np.asarray(points, dtype=np.float64)
    if values.size == 0:
        values = values.reshape(0, len(goals))
    if values.ndim != 2 or values.shape[1] != len(goals):
        raise AnalysisError(
            f"points have the shape {values.shape}; {len(goals)} goals need [N, {len(goals)}]"
        )
    kept = np.flatnonzero(np.isfinite(values).all(axis=1))
    signs = np.array([1.0 if goal == "minimize" else -1.0 for goal in goals])
    return values[kept] * signs, kept


def _sweep(distinct: Floats) -> npt.NDArray[np.bool_]:
    """Return the front of one or two costs, rows distinct and sorted: rows that lower the last cost."""
    last = distinct[:, -1]
    best_before = np.minimum.accumulate(np.concatenate(([np.inf], last)))[:-1]
    return last < best_before


def _staircase(distinct: Floats) -> npt.NDArray[np.bool_]:
    """Return the front of three costs, rows distinct and sorted, by a running front of the last two."""
    stairs = Staircase()
    return np.array([stairs.add(second, third) for _, second, third in distinct.tolist()], dtype=np.bool_)


def _cull(distinct: Floats) -> npt.NDArray[np.bool_]:
    """Return the front of any number of costs, rows distinct: each point found drops those it dominates."""
    on_front = np.zeros(len(distinct), dtype=np.bool_)
    # Points that rank well in all costs come first: they are on or near the front and drop the most. A
    # dominating point has the smaller sum of ranks, so a point that is reached undropped is on the front.
    ranks = sum(np.unique(column, return_inverse=True)[1] for column in distinct.T)
    left = np.argsort(ranks, kind="stable")
    while left.size:
        first, left = left[0], left[1:]
        on_front[first] = True
        left = left[(distinct[left] < distinct[first]).any(axis=1)]
    return on_front


SEARCHES = {1: _sweep, 2: _sweep, 3: _staircase}


class Staircase:
    """Incremental front of points with two costs; `hypervolume` measures the area under it."""

    def __init__(self) -> None:
        self.first: list[float] = []  # ascending; of two steps that begin alike the earlier has no width
        self.second: list[float] = []  # strictly descending

    def add(self, first: float, second: float) -> bool:
        """Add a point and drop those that it dominates; return False if one is as good in both costs."""
        start, end = self.gap(first, second)
        if start is None:
            return False
        self.first[start:end], self.second[start:end] = [first], [second]
        return True

    def gap(self, first: float, second: float) -> tuple[int | None, int]:
        """Return the range of steps that a point would replace; its start is None for a dominated point."""
        start = bisect_right(self.first, first)
        if start and self.second[start - 1] <= second:
            return None, start
        end = start
        while end < len(self.second) and self.second[end] >= second:
            end += 1
        return start, end


def knee(points: npt.ArrayLike, goals: Sequence[Goal] = ("minimize", "minimize")) -> int | None:
    """Return the position of the front's knee, beyond which a further gain costs much more.

    The front is scaled to the unit square; the knee is the front point farthest from the chord between the
    front's two ends, on the side of the ideal point. That is the criterion of Kneedle for a discrete curve
    (Satopää, Albrecht, Irwin, Raghavan: Finding a "Kneedle" in a Haystack, ICDCS Workshops 2011), and of
    Das, On characterizing the "knee" of the Pareto curve (Structural Optimization 18, 1999), for two
    objectives. Of equally distant points the one with the least first cost is the knee, of equal points the
    first.

    Args:
        points: [N, 2] numbers.
        goals: two goals, one per column.

    Returns:
        None if the front has fewer than three different points, or none of them lies beyond the chord
        (a straight or bulging front has no knee).

    Raises:
        AnalysisError: as `front`, or there are not two goals.
    """
    if len(goals) != 2:
        raise AnalysisError(f"a knee is defined for two objectives; got {len(goals)} goals")
    costs, kept = finite_costs(points, goals)
    distinct, first = np.unique(costs, axis=0, return_index=True)
    on_front = _sweep(distinct)
    edge = distinct[on_front]
    if len(edge) < 3:
        return None
    low, high = edge.min(axis=0), edge.max(axis=0)
    # Halves keep the range finite when the costs span more than the largest float.
    scaled = (edge / 2 - low / 2) / (high / 2 - low / 2)
    distance = (1.0 - scaled.sum(axis=1)) / np.sqrt(2.0)
    farthest = int(np.argmax(distance))
    if not distance[farthest] > FLAT:
        return None
    return int(kept[first[on_front][farthest]])
