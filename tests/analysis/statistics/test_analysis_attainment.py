"""The bootstrap of the front: against closed forms, a slow reference, and what must not change it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from analysis.statistics.attainment import Baseline, attainment, membership
from analysis.statistics.efficiency import most_efficient
from analysis.statistics.pareto import Goal, front, knee

MINIMIZE: list[Goal] = ["minimize", "minimize"]
LENGTHS = [300.0, 400.0, 600.0, 1200.0, 2200.0]
LOSSES = [7.52, 6.92, 6.39, 5.39, 4.84]
COORDINATE = st.integers(0, 6)


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_chances_of_two_points_of_equal_cost(goal: Goal) -> None:
    sign = 1 if goal == "minimize" else -1
    found = attainment([1, 1], [sign * 3.0, sign * 3.1], [0.06, 0.08], goals=("minimize", goal), draws=20_000)
    first = norm.cdf(0.1 / np.hypot(0.06, 0.08))  # 0.841
    assert found.front == pytest.approx([first, 1 - first], abs=0.01)


def test_who_costs_least_is_always_on_the_front() -> None:
    found = attainment([1, 2], [3.0, 3.0], [0.1, 0.1], draws=20_000)
    assert found.front == pytest.approx([1.0, 0.5], abs=0.012)


@settings(deadline=None)  # the machine is shared
@given(
    st.lists(st.tuples(COORDINATE, COORDINATE), min_size=1, max_size=12),
    st.sampled_from(["minimize", "maximize"]),
)
def test_without_noise_chances_are_0_or_1(points: list[tuple[int, int]], goal: Goal) -> None:
    xs, ys = zip(*points, strict=True)
    found = attainment(xs, ys, [0.0] * len(xs), goals=("minimize", goal), baseline=Baseline(3.0), draws=2)
    assert np.flatnonzero(found.front == 1).tolist() == front(points, ["minimize", goal]).tolist()
    assert set(found.front) <= {0.0, 1.0}
    at = [knee(points, ("minimize", goal))]
    assert np.flatnonzero(found.knee).tolist() == [position for position in at if position is not None]
    best = [most_efficient(ys, xs, 3.0, goal)]
    assert np.flatnonzero(found.most_efficient).tolist() == [p for p in best if p is not None]
    assert found.exact == len(xs)


@pytest.mark.parametrize("y_goal", ["minimize", "maximize"])
@pytest.mark.parametrize("x_goal", ["minimize", "maximize"])
def test_the_knee_of_a_draw_is_that_of_its_front(x_goal: Goal, y_goal: Goal) -> None:
    random, knees = np.random.default_rng(2), 0
    for _ in range(100):
        xs, ys = random.integers(0, 9, (2, 25)).astype(float)  # with ties
        found = attainment(xs, ys, np.zeros(25), goals=(x_goal, y_goal), draws=1)
        expected = knee(np.column_stack((xs, ys)), (x_goal, y_goal))
        assert np.flatnonzero(found.knee).tolist() == ([] if expected is None else [expected])
        knees += expected is not None
    assert 10 < knees < 100


def test_it_is_what_asking_each_draw_by_itself_gives() -> None:
    random = np.random.default_rng(4)
    xs, ys = random.integers(0, 8, 30).astype(float), random.normal(size=30)
    sems = np.full(30, 0.4)
    fast = attainment(xs, ys, sems, draws=4000).front
    slow = membership(
        np.column_stack((xs, ys)), np.column_stack((0 * sems, sems)), MINIMIZE, draws=4000, seed=1
    )
    assert np.abs(fast - slow).max() < 0.05  # five standard errors of the difference
    assert 0.1 < fast.mean() < 0.9


def test_units_and_far_beaten_points_change_nothing() -> None:
    sems = [0.3] * 5
    reference = attainment(LENGTHS, LOSSES, sems, baseline=Baseline(7.83))
    scaled = attainment(
        [4 * x for x in LENGTHS], [2 * y for y in LOSSES], [0.6] * 5, baseline=Baseline(2 * 7.83)
    )
    assert scaled.front.tolist() == reference.front.tolist()
    assert scaled.most_efficient.tolist() == reference.most_efficient.tolist()
    beaten = attainment([*LENGTHS, 5000.0], [*LOSSES, 99.0], [*sems, 0.3], baseline=Baseline(7.83))
    assert beaten.front[5] == beaten.most_efficient[5] == 0
    assert beaten.front[:5] == pytest.approx(reference.front, abs=0.07)  # other draws, same chances


def test_the_length_sweep_with_a_standard_error_of_a_tenth() -> None:
    found = attainment(LENGTHS, LOSSES, [0.1] * 5, baseline=Baseline(7.83, sem=0.1), draws=4000)
    assert found.front == pytest.approx([1, 1, 1, 1, 1], abs=0.01)
    # 200 steps of Stage 1.9 lead by 0.24 to 0.23 and 0.20 per hundred steps: no more than likely.
    assert found.most_efficient.argmax() == 2
    assert 0.45 < found.most_efficient[2] < 0.75
    assert found.most_efficient.sum() == pytest.approx(1.0)
    assert found.knee.argmax() == 3


def test_the_same_seed_gives_the_same_answer_in_whatever_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    first = attainment(LENGTHS, LOSSES, [0.5] * 5, draws=50)
    assert attainment(LENGTHS, LOSSES, [0.5] * 5, draws=50).front.tolist() == first.front.tolist()
    monkeypatch.setattr("analysis.statistics.attainment.CHUNK", 35)
    assert attainment(LENGTHS, LOSSES, [0.5] * 5, draws=50).front.tolist() == first.front.tolist()
    assert attainment(LENGTHS, LOSSES, [0.5] * 5, draws=50, seed=1).front.tolist() != first.front.tolist()


def test_points_without_an_error_are_taken_as_exact_and_counted() -> None:
    found = attainment([1, 2, 3, 4], [4, 3, 2, 1], [0.1, np.nan, -1, np.inf])
    assert found.exact == 3
    assert found.front.tolist() == [1, 1, 1, 1]


def test_nothing_to_ask() -> None:
    found = attainment([], [], [], baseline=Baseline(1.0))
    assert found.front.size == found.knee.size == found.most_efficient.size == 0
    assert attainment([1, 2], [2, 1], [1, 1]).most_efficient.tolist() == [0, 0]
    more_is_better = attainment(
        [1, 2], [1, 2], [0, 0], goals=("maximize", "minimize"), baseline=Baseline(3.0)
    )
    assert more_is_better.most_efficient.tolist() == [0, 0]
    assert more_is_better.front.tolist() == [1, 1]


def test_membership_takes_noise_in_every_objective() -> None:
    points, errors = [[0, 0, 0], [0, 0, 0]], [[1, 1, 1], [1, 1, 1]]
    found = membership(points, errors, ["minimize"] * 3, draws=4000)
    # One beats the other in all three with probability 1/8.
    assert found == pytest.approx([7 / 8, 7 / 8], abs=0.03)
    assert membership([], np.empty((0, 2)), MINIMIZE).tolist() == []


def test_common_errors_do_not_change_the_order() -> None:
    common = attainment([1, 2], [3.0, 2.98], [0.1, 0.1], joint=[[0.1], [0.1]])
    assert common.front.tolist() == [1, 1]
    alone = attainment([1, 2], [3.0, 2.98], [0.1, 0.1])
    assert alone.front[1] == pytest.approx(norm.cdf(0.02 / (0.1 * 2**0.5)), abs=0.05)


def test_chance_follows_from_the_covariance() -> None:
    factors = np.array([[0.1, 0.0], [0.08, 0.03]])
    own = 0.04  # of the second point, beside what it has in common
    total = [0.1, (0.08**2 + 0.03**2 + own**2) ** 0.5]
    found = attainment([1, 2], [3.0, 2.95], total, joint=factors, draws=20_000)
    spread = (0.02**2 + 0.03**2 + own**2) ** 0.5
    assert found.front == pytest.approx([1.0, norm.cdf(0.05 / spread)], abs=0.01)


def test_a_baseline_from_the_points_moves_with_them() -> None:
    """With all noise in common the gain is exact: the second is always the most efficient."""
    options: dict[str, Any] = {"baseline": Baseline(3.0, points=[0]), "draws": 200}
    values = ([1, 2], [3.0, 2.99], [0.1, 0.1])
    assert attainment(*values, joint=[[0.1], [0.1]], **options).most_efficient.tolist() == [0, 1]
    assert attainment(*values, **options).most_efficient[1] < 0.7


def test_membership_takes_common_noise_in_an_objective() -> None:
    points, sems = [[0.0, 0.0], [0.01, 0.01]], [[0.1, 0.0], [0.1, 0.0]]
    alone = membership(points, sems, MINIMIZE)
    common = membership(points, sems, MINIMIZE, joint=[[[0.1], [0.1]], None])
    assert alone[1] == pytest.approx(norm.cdf(-0.01 / (0.1 * 2**0.5)), abs=0.05)
    assert common.tolist() == [1.0, 0.0]
