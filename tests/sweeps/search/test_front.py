"""Fronts of costs: which points are on them, and which adds most hypervolume to others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.statistics.hypervolume import hypervolume
from sweeps.search.front import MARGIN, best_by_front, most_added, on_front

COSTS = np.array([[0.0, 1.0], [1.0, 0.0], [0.2, 0.2], [0.3, 0.3], [1.0, 1.0], [0.0, 1.0]])


def test_front_has_what_nothing_beats():
    assert on_front(COSTS).tolist() == [True, True, True, False, False, True]
    assert on_front(np.array([[1.0, 1.0], [1.0, 2.0], [2.0, 1.0], [1.0, 1.0]])).tolist() == [
        *(True, False, False, True)
    ]


def test_best_trials_are_whole_fronts():
    assert best_by_front(COSTS, 1) == [0, 1, 2, 5]
    assert best_by_front(COSTS, 5) == [0, 1, 2, 5, 3]
    assert best_by_front(COSTS, 9) == [0, 1, 2, 5, 3, 4]


def test_with_one_objective_the_front_is_the_best():
    costs = np.array([[3.0], [1.0], [2.0]])
    assert best_by_front(costs, 2) == [1, 2]
    assert most_added(costs, np.empty((0, 1))) == 1


def test_points_are_spread_over_the_front():
    """First the middle, then the ends, though one objective counts in billions."""
    costs, chosen = COSTS * [1.0, 1e9], list[int]()
    while (found := most_added(costs, costs[chosen])) is not None:
        chosen.append(found)
    assert chosen == [2, 0, 1]


def test_equal_points_are_one():
    costs = np.array([[2.0, 5.0], [2.0, 5.0]])
    assert most_added(costs, costs[:0]) == 0
    assert most_added(costs, costs[:1]) is None


@given(
    st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=2, max_size=8),
    st.lists(st.tuples(*[st.integers(0, 9)] * 3), max_size=3),
)
def test_chosen_point_adds_most(points, taken):
    """By the hypervolumes of the analysis, which are computed in another way."""
    costs, others = np.array(points, dtype=float), np.array(taken, dtype=float).reshape(-1, 3)
    front = costs[on_front(costs)]
    size = np.where(np.ptp(front, axis=0) > 0, np.ptp(front, axis=0), 1.0)
    reference = (front.min(axis=0) + (1 + MARGIN) * size).tolist()
    goals = ("minimize",) * 3

    def volume(members):
        return hypervolume(members, goals, reference) / size.prod() if len(members) else 0.0

    added = [volume(np.vstack([others, point])) - volume(others) for point in front]
    found = most_added(costs, others)
    if found is None:
        assert max(added) == pytest.approx(0, abs=1e-6)
    else:
        own = volume(np.vstack([others, costs[found]])) - volume(others)
        assert own == pytest.approx(max(added), abs=1e-6)
