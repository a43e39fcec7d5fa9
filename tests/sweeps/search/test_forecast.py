"""The prediction of a final value: exact lines, wide errors where little is known, and hostile numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.search.forecast import forecast

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def sweep(count: int, *, noise: float, seed: int = 0):
    """Levels and two settings; the final value is a line in the level."""
    rng = np.random.default_rng(seed)
    features = rng.uniform(size=(count, 3))
    return features, 2.0 + 0.5 * features[:, 0] + rng.normal(scale=noise, size=count)


def test_line_in_level_is_predicted_within_noise():
    features, values = sweep(40, noise=0.01)
    found = forecast(features, values, np.array([0.3, 0.5, 0.5]), floor=1e-3)
    assert found.mean == pytest.approx(2.15, abs=0.01)
    assert 0.01 < found.sd < 0.03
    assert found.error >= found.sd


def test_a_function_of_two_settings_is_found_with_enough_trials():
    features, _ = sweep(40, noise=0.0)
    values = 2.0 * features[:, 1] + features[:, 2]
    found = forecast(features, values, np.array([0.5, 0.25, 0.25]), floor=1e-6)
    assert found.mean == pytest.approx(0.75, abs=1e-6)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_fewer_than_five_values_predict_nothing(count):
    features, values = sweep(count, noise=0.01)
    assert forecast(features, values, np.full(3, 0.5), floor=1e-3) is None


def test_few_values_widen_the_error():
    errors = [forecast(*sweep(n, noise=0.02), np.full(3, 0.5), floor=0.02).sd for n in (5, 12, 40)]
    assert errors[0] > errors[1] > errors[2]


def test_values_without_scatter_keep_the_floor():
    features, values = sweep(30, noise=0.0)
    assert forecast(features, values, np.full(3, 0.1), floor=0.05).sd >= 0.05


def test_uninformative_level_bound_reaches_best_value():
    rng = np.random.default_rng(3)
    features, values = rng.uniform(size=(20, 3)), rng.normal(size=20)
    assert forecast(features, values, np.array([9.0, 0.5, 0.5]), floor=1e-3).best < values.min()


def test_the_bound_is_never_above_the_worst_value_of_the_fit():
    features, values = sweep(20, noise=0.0)
    fitted = np.sort(values)[:12]
    assert forecast(features, values, np.array([50.0, 0.5, 0.5]), floor=1e-3).best <= fitted.max() + 1e-9


def test_one_run_that_plunged_late_saves_others_at_its_level():
    features, values = sweep(20, noise=0.0)
    at = np.array([0.9, 0.5, 0.5])
    assert forecast(features, values, at, floor=1e-3).best > values.min()
    worst = int(features[:, 0].argmax())
    features[worst, 0], values[worst] = 1.2, 2.2
    assert forecast(features, values, at, floor=1e-3).best < values.min()


def test_the_better_part_alone_is_fitted():
    features, values = sweep(20, noise=0.01)
    at = np.array([0.2, 0.5, 0.5])
    worst = np.argsort(values)[-8:]
    bad = values.copy()
    bad[worst] += np.linspace(1, 50, 8)
    assert forecast(features, bad, at, floor=1e-3).mean == forecast(features, values, at, floor=1e-3).mean


@given(
    rows=st.lists(st.lists(FINITE, min_size=4, max_size=4), min_size=5, max_size=12),
    at=st.lists(FINITE, min_size=3, max_size=3),
)
def test_any_finite_numbers_give_a_finite_prediction_or_none(rows, at):
    numbers = np.array(rows)
    found = forecast(numbers[:, :3], numbers[:, 3], np.array(at), floor=1e-3)
    assert found is None or (
        np.isfinite([found.mean, found.sd, found.error]).all() and found.error >= found.sd > 0
    )


@given(seed=st.integers(0, 1000), shift=st.floats(-5, 5), factor=st.floats(0.1, 10))
def test_units_do_not_matter(seed, shift, factor):
    features, values = sweep(12, noise=0.05, seed=seed)
    at = np.array([0.7, 0.2, 0.9])
    plain = forecast(features, values, at, floor=0.01)
    other = forecast(features * factor + shift, values, at * factor + shift, floor=0.01)
    assert other.mean == pytest.approx(plain.mean, abs=1e-6)
    assert other.sd == pytest.approx(plain.sd, rel=1e-5)
