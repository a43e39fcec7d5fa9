"""Lines over the logarithm of the size: how often their intervals cover, and when they widen."""

from __future__ import annotations

import numpy as np
import pytest

from sweeps.search.size_line import through


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
