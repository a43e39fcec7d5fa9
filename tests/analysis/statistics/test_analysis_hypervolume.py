"""Hypervolume against botorch's, hand-worked constants and what must not change it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.errors import AnalysisError
from analysis.statistics.hypervolume import hypervolume, reference_point
from analysis.statistics.pareto import Goal

MINIMIZE: list[Goal] = ["minimize", "minimize"]
GRID = st.integers(0, 8).map(float)


def botorch(points: np.ndarray, reference: list[float]) -> float:
    """Costs as botorch wants them: it maximizes."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # torch.jit is deprecated, and botorch's dependencies use it at import
        from botorch.utils.multi_objective.hypervolume import Hypervolume
        from botorch.utils.multi_objective.pareto import is_non_dominated

    values = -torch.from_numpy(np.asarray(points, dtype=np.float64))
    bound = -torch.tensor(reference, dtype=torch.float64)
    return float(Hypervolume(ref_point=bound).compute(values[is_non_dominated(values)]))


@pytest.mark.parametrize("objectives", [2, 3, 4, 5])
@pytest.mark.parametrize("seed", [0, 1])
def test_it_is_botorchs(objectives: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    points = random.random((25, objectives))
    points[::5] = points[1::5]  # equal points
    points[:, 0] = points[:, 0].round(1)  # and ties
    reference = [0.9] * objectives  # some points lie beyond it
    found = hypervolume(points, ["minimize"] * objectives, reference)
    assert found == pytest.approx(botorch(points, reference), rel=1e-12)
    assert found > 0


def test_the_length_sweeps_area_worked_by_hand() -> None:
    points = [[300, 7.52], [400, 6.92], [600, 6.39], [1200, 5.39], [2200, 4.84]]
    # Strips to the next x, under the baseline 7.83 and up to 2,500 effective steps.
    by_hand = 100 * 0.31 + 200 * 0.91 + 600 * 1.44 + 1000 * 2.44 + 300 * 2.99
    assert by_hand == pytest.approx(4414.0)
    assert hypervolume(points, MINIMIZE, [2500, 7.83]) == pytest.approx(by_hand)


def test_three_boxes_worked_by_hand() -> None:
    # Unit cubes at three corners of a cube of side 2, one unit shared: 3 * 4 - 3 * 2 + 1.
    points = [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    assert hypervolume(points, ["minimize"] * 3, [2, 2, 2]) == 2 + 2 + 2 - 1 - 1 - 1 + 1


@settings(deadline=None)  # the machine is shared
@given(
    st.integers(1, 4).flatmap(
        lambda k: st.tuples(
            st.just(k), st.lists(st.lists(GRID, min_size=k, max_size=k), min_size=1, max_size=12)
        )
    ),
    st.randoms(use_true_random=False),
)
def test_what_must_not_change_it(cloud: tuple[int, list[list[float]]], random: np.random.Generator) -> None:
    objectives, points = cloud
    goals: list[Goal] = ["minimize"] * objectives
    reference = [9.0] * objectives
    found = hypervolume(points, goals, reference)
    shuffled = points[:]
    random.shuffle(shuffled)
    assert hypervolume(shuffled, goals, reference) == pytest.approx(found)
    worse = [[value + 0.5 for value in point] for point in points]  # dominated by the originals
    assert hypervolume([*points, *worse], goals, reference) == pytest.approx(found)
    turned = [[value * 2 for value in point[::-1]] for point in points]  # scaled, and axes exchanged
    assert hypervolume(turned, goals, [18.0] * objectives) == pytest.approx(found * 2**objectives)
    flipped = [[-value for value in point] for point in points]
    assert hypervolume(flipped, ["maximize"] * objectives, [-9.0] * objectives) == pytest.approx(found)


@settings(deadline=None)  # the machine is shared
@given(st.lists(st.lists(GRID, min_size=3, max_size=3), max_size=10), st.lists(GRID, min_size=3, max_size=3))
def test_it_never_shrinks_when_a_point_comes(points: list[list[float]], new: list[float]) -> None:
    goals: list[Goal] = ["minimize"] * 3
    before = hypervolume(points, goals, [9, 9, 9])
    assert hypervolume([*points, new], goals, [9, 9, 9]) >= before - 1e-9


def test_points_that_do_not_count() -> None:
    nan = float("nan")
    assert hypervolume([], MINIMIZE, [1, 1]) == 0
    assert hypervolume([[nan, 0], [1, 0], [0, 2], [float("inf"), 0]], MINIMIZE, [1, 1]) == 0
    assert hypervolume([[0.5]], ["minimize"], [2]) == 1.5


@pytest.mark.parametrize("reference", [[1], [1, 2, 3], [1, float("nan")], [1, float("inf")]])
def test_a_reference_that_is_none_is_refused(reference: list[float]) -> None:
    with pytest.raises(AnalysisError, match="2 finite numbers"):
        hypervolume([[0, 0]], MINIMIZE, reference)


def test_the_default_reference_lies_a_tenth_behind_the_worst() -> None:
    assert reference_point([[0, 10], [10, 0]], ["minimize", "maximize"]) == pytest.approx((11, -1))
    assert reference_point([[5, 5]], MINIMIZE) == pytest.approx((5.5, 5.5))
    assert reference_point([[-1.7e308, 0], [1.7e308, 0]], MINIMIZE) is None  # it would be infinite
    assert reference_point([], MINIMIZE) is None
