"""Lines over the logarithm of the size: how often their intervals cover, and when they widen."""

from __future__ import annotations

import numpy as np
import pytest

from sweeps.search.size_line import are_apart, through


@pytest.mark.parametrize("sizes", [(1, 4), (1, 4, 16), (1, 3, 10, 40)], ids=len)
def test_interval_covers_as_often_as_it_claims(sizes):
    """Of 400 power laws, and optima as uncertain as they are said to be; with a quarter more noise it is below 0.90."""
    rng, covered = np.random.default_rng(5), []
    for _ in range(400):
        level, slope = rng.normal(size=2)
        sds = rng.uniform(0.05, 0.3, len(sizes))
        values = level + slope * np.log(sizes) + sds * rng.standard_normal(len(sizes))
        value, reach = through(sizes, values.tolist(), sds.tolist()).at(256)
        covered.append(abs(value - level - slope * np.log(256)) <= reach)
    assert 0.92 <= np.mean(covered) <= 0.98


def test_interval_covers_where_sweeps_differ_in_length_too():
    """The same over two quantities, of five sweeps, at a target beyond both."""
    rng, covered = np.random.default_rng(6), []
    sizes, lengths = np.array([1, 4, 16, 4, 1]), np.log([1, 1, 2, 8, 8])
    for _ in range(400):
        level, slope, other = rng.normal(size=3)
        sds = rng.uniform(0.05, 0.3, len(sizes))
        values = level + slope * np.log(sizes) + other * lengths + sds * rng.standard_normal(len(sizes))
        line = through(sizes.tolist(), values.tolist(), sds.tolist(), (lengths - np.log(20)).tolist())
        value, reach = line.at(256)
        covered.append(abs(value - level - slope * np.log(256) - other * np.log(20)) <= reach)
        assert line.other is not None
    assert 0.92 <= np.mean(covered) <= 0.98


def test_three_sweeps_fit_any_effects_of_two_quantities():
    away = np.log([10, 10, 40]) - np.log(20)
    values = 1.0 - 0.5 * np.log([1, 4, 4]) + 0.3 * away
    line = through([1, 4, 4], values.tolist(), [0.1] * 3, away.tolist())
    assert line.other is not None
    assert (line.slope, line.other[0]) == pytest.approx((-0.5, 0.3))
    assert line.at(16)[0] == pytest.approx(1.0 - 0.5 * np.log(16))
    assert line.misfit is None


@pytest.mark.parametrize(
    ("sizes", "lengths", "apart"),
    [
        ([1, 4], None, True),
        ([4, 4], None, False),
        ([1, 4, 4], [10, 10, 40], True),
        ([1, 4, 16], [10, 40, 160], False),
        ([1, 4, 16], [10, 10, 10], False),
        ([1, 4, 4], [10, 40, 40.5], False),
        ([1, 4], [10, 20], False),
        ([1, 4, 16], [20, 88, 320], False),
        ([1, 4, 4], [10, 10, 14], False),
        ([1, 4, 4], [10, 10, 17], True),
    ],
)
def test_what_tells_size_and_length_apart(sizes, lengths, apart):
    assert are_apart(sizes, None if lengths is None else np.log(lengths).tolist()) is apart


def test_two_sizes_make_a_line_that_nothing_checks():
    line = through([2, 8], [1.0, 3.0], [0.1, 0.2])
    value, reach = line.at([2, 8, 32])
    assert value == pytest.approx([1.0, 3.0, 5.0])
    assert reach[:2] == pytest.approx([0.196, 0.392], rel=0.02)
    assert line.misfit is None


def test_interval_grows_with_the_distance():
    reach = through([1, 4, 16], [0.0, 1.0, 2.0], [0.1] * 3).at([4, 64, 256, 4096])[1]
    assert np.all(np.diff(reach) > 0)


def test_an_uncertain_point_counts_little():
    near = through([1, 4, 16], [0.0, 1.0, 9.0], [0.1, 0.1, 10.0]).at(16)[0]
    assert near == pytest.approx(2.0, abs=0.05)


def test_points_off_the_line_widen_the_interval():
    on, off = (through([1, 4, 16], [0.0, y, 2.0], [0.1] * 3) for y in (1.05, 3.0))
    assert off.misfit is not None
    assert off.misfit < 0.001
    assert on.misfit is not None
    assert on.misfit > 0.5
    assert off.at(64)[1] > 10 * on.at(64)[1]
