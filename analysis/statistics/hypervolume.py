"""Hypervolume: the volume that a front dominates within a reference point, over bare arrays.

Zitzler and Thiele: Multiobjective Evolutionary Algorithms, IEEE Transactions on Evolutionary Computation 3,
1999. The number means nothing without its reference point; always show both.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from analysis.errors import AnalysisError
from analysis.statistics.pareto import Floats, Goal, Staircase, finite_costs, front

MARGIN = 0.1
"""Distance of the default reference point beyond the worst value, as a share of the range."""


def hypervolume(points: npt.ArrayLike, goals: Sequence[Goal], reference: Sequence[float]) -> float:
    """Return the volume of the space that the points dominate within the reference point.

    O(N log N) for up to three objectives, times N for each further one (slices along the last objective).

    Args:
        points: [N, K] numbers; ignored are rows with a missing or infinite value, and rows that are not
            better than the reference in every objective.
        goals: K goals, one per column.
        reference: K numbers, in the units of the columns.

    Raises:
        AnalysisError: as `pareto.front`, or the reference is not K finite numbers.
    """
    bound = np.asarray(reference, dtype=np.float64)
    if bound.shape != (len(goals),) or not np.isfinite(bound).all():
        raise AnalysisError(f"the reference point must be {len(goals)} finite numbers; got {reference!r}")
    costs, _ = finite_costs(points, goals)
    limit = finite_costs(bound[None], goals)[0][0]
    with np.errstate(over="ignore"):  # a volume beyond the largest float is infinite
        return _measure(costs[(costs < limit).all(axis=1)], limit)


def reference_point(points: npt.ArrayLike, goals: Sequence[Goal]) -> tuple[float, ...] | None:
    """Return a default reference: a tenth of each objective's range beyond its worst value.

    It moves with the worst point: good for following one sweep, useless for comparing two.

    Args:
        points: [N, K] numbers.
        goals: K goals, one per column.

    Returns:
        K numbers in the units of the columns; None without points, or if the reference would be infinite.
    """
    costs, kept = finite_costs(points, goals)
    if not kept.size:
        return None
    low, high = costs.min(axis=0), costs.max(axis=0)
    # Where all values are equal, any distance beyond rounding will do. A tenth of each end, because the
    # range itself may exceed the largest float.
    span = MARGIN * high - MARGIN * low
    with np.errstate(over="ignore"):
        behind = high + np.where(span > 0, span, np.maximum(np.abs(high), 1.0) * MARGIN)
    if not np.isfinite(behind).all():
        return None
    signs = [1.0 if goal == "minimize" else -1.0 for goal in goals]
    return tuple(float(sign * value) for sign, value in zip(signs, behind, strict=True))


def _measure(costs: Floats, limit: Floats) -> float:
    """Return the volume between the costs, each below the limit, and the limit."""
    if not len(costs):
        return 0.0
    dimensions = costs.shape[1]
    edge = np.unique(costs[front(costs, ["minimize"] * dimensions)], axis=0)
    if dimensions == 1:
        return float(limit[0] - edge[0, 0])
    if dimensions == 2:
        right = np.append(edge[1:, 0], limit[0])
        return float(((right - edge[:, 0]) * (limit[1] - edge[:, 1])).sum())
    edge = edge[np.argsort(edge[:, -1], kind="stable")]
    depths = np.diff(np.append(edge[:, -1], limit[-1]))
    if dimensions == 3:
        return float(np.dot(depths, _areas(edge, limit)))
    slices = (_measure(edge[: count + 1, :-1], limit[:-1]) for count in range(len(edge)))
    return float(sum(depth * area for depth, area in zip(depths, slices, strict=True) if depth > 0))


def _areas(edge: Floats, limit: Floats) -> list[float]:
    """Return for each point the area that it and those before it dominate in the first two costs."""
    stairs, area, areas = Staircase(), 0.0, []
    for first, second, _ in edge.tolist():
        start, end = stairs.gap(first, second)
        if start is not None:
            # The point adds the strips between the steps that it replaces and its own height.
            last = stairs.first[end] if end < len(stairs.first) else float(limit[0])
            ceiling = [stairs.second[start - 1] if start else float(limit[1]), *stairs.second[start:end]]
            strips = zip(pairwise([first, *stairs.first[start:end], last]), ceiling, strict=True)
            area += sum((right - left) * (height - second) for (left, right), height in strips)
            stairs.add(first, second)
        areas.append(area)
    return areas
