"""The front and the knee of bare points."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.errors import AnalysisError
from analysis.statistics.pareto import Goal, front, knee

GOALS: list[Goal] = ["minimize", "maximize"]
MINIMIZE: list[Goal] = ["minimize", "minimize"]

# Few distinct values, so that ties, duplicates and missing values are common.
COORDINATE = st.one_of(
    st.integers(-3, 3).map(float), st.floats(allow_nan=True, allow_infinity=True), st.just(-0.0)
)


@st.composite
def clouds(draw: st.DrawFn, objectives: int | None = None) -> tuple[list[list[float]], list[Goal]]:
    k = objectives or draw(st.integers(1, 4))
    goals = draw(st.lists(st.sampled_from(GOALS), min_size=k, max_size=k))
    return draw(st.lists(st.lists(COORDINATE, min_size=k, max_size=k), max_size=25)), goals


def brute_force(points: list[list[float]], goals: list[Goal]) -> list[int]:
    """The definition, word for word."""

    def dominates(a: list[float], b: list[float]) -> bool:
        better = [x < y if goal == "minimize" else x > y for x, y, goal in zip(a, b, goals, strict=True)]
        equal = [x == y for x, y in zip(a, b, strict=True)]
        return any(better) and all(b or e for b, e in zip(better, equal, strict=True))

    there = [i for i, point in enumerate(points) if np.isfinite(point).all()]
    return [i for i in there if not any(dominates(points[j], points[i]) for j in there)]


@settings(deadline=None)  # the machine is shared
@given(clouds())
def test_front_is_what_the_definition_says(cloud: tuple[list[list[float]], list[Goal]]) -> None:
    points, goals = cloud
    assert front(points, goals).tolist() == brute_force(points, goals)


@settings(deadline=None)  # the machine is shared
@given(clouds(), st.randoms(use_true_random=False))
def test_front_does_not_depend_on_the_order_of_the_points(
    cloud: tuple[list[list[float]], list[Goal]], random: np.random.Generator
) -> None:
    points, goals = cloud
    order = list(range(len(points)))
    random.shuffle(order)
    shuffled = front([points[i] for i in order], goals)
    assert sorted(order[i] for i in shuffled) == front(points, goals).tolist()


@settings(deadline=None)  # the machine is shared
@given(clouds())
def test_somebody_is_on_the_front_if_there_is_a_point(cloud: tuple[list[list[float]], list[Goal]]) -> None:
    points, goals = cloud
    assert bool(front(points, goals).size) == any(np.isfinite(point).all() for point in points)


def test_equal_points_are_all_on_the_front() -> None:
    assert front([[1, 2], [1, 2], [2, 1], [2, 2], [1, 2]], MINIMIZE).tolist() == [0, 1, 2, 4]


def test_a_tie_in_one_objective_is_decided_by_the_other() -> None:
    assert front([[1, 3], [1, 2], [2, 2]], MINIMIZE).tolist() == [1]


@pytest.mark.parametrize("hole", [float("nan"), float("inf"), float("-inf")])
def test_a_point_with_a_hole_is_no_point(hole: float) -> None:
    assert front([[hole, 0.0], [1.0, 1.0], [0.0, hole]], MINIMIZE).tolist() == [1]


def test_maximizing_is_minimizing_the_negative() -> None:
    points = np.random.default_rng(0).normal(size=(200, 3))
    mixed: list[Goal] = ["minimize", "maximize", "minimize"]
    flipped = points * [1, -1, 1]
    assert front(points, mixed).tolist() == front(flipped, ["minimize"] * 3).tolist()


def test_no_points_have_no_front() -> None:
    assert front([], MINIMIZE).tolist() == []
    assert front(np.empty((0, 3)), ["minimize"] * 3).tolist() == []


@pytest.mark.parametrize(
    ("points", "goals"),
    [
        pytest.param([[1, 2, 3]], MINIMIZE, id="a column too many"),
        pytest.param([1, 2, 3], MINIMIZE, id="no rows"),
        pytest.param([[1, 2]], [], id="no goals"),
        pytest.param([[1, 2]], ["minimize", "smaller"], id="unknown goal"),
    ],
)
def test_points_that_do_not_fit_the_goals_are_refused(points: object, goals: list[Goal]) -> None:
    with pytest.raises(AnalysisError, match=r"goal"):
        front(points, goals)  # type: ignore[arg-type]  # that is what the test is about


def test_ten_thousand_points_take_less_than_a_tenth_of_a_second() -> None:
    random = np.random.default_rng(0)
    cloud = random.random((10_000, 4))
    # Points of one line or plane are all on the front: the worst case.
    line = np.column_stack((cloud[:, 0], 1 - cloud[:, 0]))
    plane = np.column_stack((cloud[:, :2], -cloud[:, :2].sum(axis=1)))
    for points in (cloud[:, :2], line, cloud[:, :3], plane, cloud):
        taken = []
        for _ in range(3):
            start = time.process_time()
            found = front(points, ["minimize"] * points.shape[1])
            taken.append(time.process_time() - start)
        assert min(taken) < 0.1
        assert len(found) == 10_000 if points is plane or points is line else len(found) < 2000


def test_knee_of_the_length_sweep() -> None:
    points = [[300, 7.52], [400, 6.92], [600, 6.39], [1200, 5.39], [2200, 4.84]]
    # Worked by hand: distances to the chord 0, .121, .186, .227, 0 (times the root of two: .171 .264 .321).
    assert knee(points) == 3


@pytest.mark.parametrize(
    "points",
    [
        pytest.param([], id="none"),
        pytest.param([[1, 2]], id="one"),
        pytest.param([[1, 2], [2, 1]], id="two"),
        pytest.param([[1, 3], [1, 3], [3, 1], [3, 1]], id="two different ones"),
        pytest.param([[1, 2], [3, 4], [5, 6]], id="one on the front"),
        pytest.param([[0, 3], [1, 2], [2, 1], [3, 0]], id="straight"),
        pytest.param([[0.1 + 0.3 * i, 2.2 - 0.7 * i] for i in range(12)], id="straight but for rounding"),
        pytest.param([[0, 3], [2, 2], [3, 0]], id="bulging"),
        pytest.param([[0, 3], [1, float("nan")], [3, 0]], id="the middle is missing"),
    ],
)
def test_a_front_that_does_not_turn_has_no_knee(points: list[list[float]]) -> None:
    assert knee(points) is None


def test_knee_is_sought_on_the_front_only() -> None:
    assert knee([[0, 10], [1, 9], [2, 1], [1.5, 9.5], [10, 0]]) == 2


def test_knee_follows_the_goals() -> None:
    assert knee([[0, 0], [1, 8], [10, 10]], ["minimize", "maximize"]) == 1
    assert knee([[0, -10], [-1, -2], [-10, 0]], ["maximize", "maximize"]) == 1


def test_first_of_equal_points_is_the_knee() -> None:
    assert knee([[10, 0], [1, 1], [1, 1], [0, 10]]) == 1


def test_knee_does_not_overflow_on_the_widest_front() -> None:
    big = 1.7e308
    assert knee([[-big, big], [-big / 2, -big / 2], [big, -big]]) == 1


@settings(deadline=None)  # the machine is shared
@given(clouds(objectives=2))
def test_knee_is_a_point_of_the_front(cloud: tuple[list[list[float]], list[Goal]]) -> None:
    points, goals = cloud
    found = knee(points, goals)
    assert found is None or found in front(points, goals).tolist()


@settings(deadline=None)  # the machine is shared
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=3, max_size=20),
    st.sampled_from([0.25, 0.5, 2.0, 1024.0]),
    st.sampled_from([-8.0, 0.0, 64.0]),
)
def test_knee_does_not_depend_on_the_units(points: list[tuple[int, int]], scale: float, shift: float) -> None:
    # Powers of two keep the arithmetic exact.
    assert knee(points) == knee([(x * scale + shift, y * 2 * scale - shift) for x, y in points])


def test_a_knee_needs_two_objectives() -> None:
    with pytest.raises(AnalysisError, match="two objectives"):
        knee([[1, 2, 3]], ["minimize"] * 3)
