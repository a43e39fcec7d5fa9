"""Pareto fronts of costs, for the search: which trials are best, and which point adds most to others.

Costs are [N, M]: N points, M objectives, lower is better. With one objective the front is the best point.
"""

from __future__ import annotations

import itertools

import numpy as np

from sweeps.search.arrays import Floats, Mask

MARGIN = 0.1
"""Distance of the reference point beyond the worst of the front, in ranges of the front."""


def on_front(costs: Floats) -> Mask:
    """Return for each point whether no other is better in one objective and as good in all, [N]."""
    no_worse = (costs[:, None] <= costs[None]).all(axis=-1)
    better = (costs[:, None] < costs[None]).any(axis=-1)
    beaten: Mask = np.any(no_worse & better, axis=0)
    return ~beaten


def best_by_front(costs: Floats, least: int) -> list[int]:
    """Return the points of the front, then of the front of the others, …, until there are `least`."""
    found, left = list[int](), np.arange(len(costs))
    while len(found) < least and len(left):
        first = on_front(costs[left])
        found += left[first].tolist()
        left = left[~first]
    return found


def most_added(costs: Floats, others: Floats) -> int | None:
    """Return the point of the front that adds most hypervolume to other points; None: nothing adds any.

    The reference lies a little beyond the front, by whose ranges objectives in different units are compared.
    Of equal points it is the first.

    Args:
        others: [S, M], of few: it takes 2^S steps.
    """
    front = np.flatnonzero(on_front(costs))
    low, high = costs[front].min(axis=0), costs[front].max(axis=0)
    size = np.where(high > low, high - low, 1.0)
    inside, taken = (1 + MARGIN - (each - low) / size for each in (costs[front], others))
    added = np.zeros(len(front))
    for count in range(len(others) + 1):  # inclusion and exclusion: boxes from the reference to the points
        for members in itertools.combinations(taken, count):
            boxes = np.min([np.broadcast_to(each, inside.shape) for each in (inside, *members)], axis=0)
            added += (-1) ** count * np.maximum(boxes, 0.0).prod(axis=1)
    best = int(np.argmax(added))
    return int(front[best]) if added[best] > 1e-9 else None
