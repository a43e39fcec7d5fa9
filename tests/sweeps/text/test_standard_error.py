"""The standard error of a mean loss, against closed forms and means whose spread is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sweeps.text.standard_error import independent, standard_error

VALUES = (1.0, 2.0, 4.0, 4.5)


@pytest.mark.parametrize("groups", [(), (7, 7, 7, 7), (3, 1, 2, 0)], ids=["unknown", "one", "each its own"])
def test_values_by_themselves_have_the_plain_error(groups: tuple[int, ...]) -> None:
    assert standard_error(VALUES, groups) == pytest.approx(stats.sem(VALUES))
    assert independent(4, groups) == 4


def test_equal_groups_have_the_error_of_their_means() -> None:
    """Of two groups of two, means 1.5 and 4.25: their error is half of the difference."""
    assert standard_error(VALUES, (0, 0, 1, 1)) == pytest.approx((4.25 - 1.5) / 2)
    assert independent(4, (0, 0, 1, 1)) == 2


def test_groups_of_different_sizes_by_hand() -> None:
    """The mean is 2.875; the deviations of the groups sum to -0.875, -1.875 + 1.125 and 1.625."""
    expected = np.sqrt(3 / 2 * (0.875**2 + 0.75**2 + 1.625**2)) / 4
    assert standard_error((2.0, 1.0, 4.0, 4.5), (0, 1, 1, 2)) == pytest.approx(expected)


def test_error_is_the_spread_of_means_over_other_documents() -> None:
    """Documents differ by 0.3, their sequences by 0.4: of 25 documents with 10 each the mean spreads by √(0.09/25 + 0.16/250)."""
    random, groups, errors = np.random.default_rng(0), np.repeat(np.arange(25), 10), []
    for _ in range(400):
        values = 3 + 0.3 * random.standard_normal(25)[groups] + 0.4 * random.standard_normal(250)
        errors.append(standard_error(values.tolist(), groups.tolist()))
    spread = (0.09 / 25 + 0.16 / 250) ** 0.5
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(spread, rel=0.05)
