"""Draws and expected gains of a joint normal posterior, against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sweeps.search.joint_posterior import JointPosterior

HALF_NORMAL = 1 / math.sqrt(2 * math.pi)
"""Expected improvement of a standard normal loss on 0."""


def gains(posterior: JointPosterior, trials: int, count: int = 4000) -> list[float]:
    rng = np.random.default_rng(0)
    draws = posterior.draws(count, rng)
    found: list[float] = posterior.expected_gains([0], trials, draws, rng).tolist()
    return found


def test_draws_have_the_mean_and_the_covariance() -> None:
    covariance = np.array([[1.0, 0.6], [0.6, 0.5]])
    draws = JointPosterior(mean=np.array([3.0, -1.0]), covariance=covariance, noise=0.0).draws(
        20_000, np.random.default_rng(1)
    )
    assert draws.mean(axis=0) == pytest.approx([3.0, -1.0], abs=0.03)
    assert np.cov(draws.T) == pytest.approx(covariance, abs=0.03)


def test_a_covariance_that_is_none_is_refused() -> None:
    broken = JointPosterior(mean=np.zeros(2), covariance=np.array([[1.0, 2.0], [2.0, 1.0]]), noise=0.0)
    with pytest.raises(ArithmeticError, match="not positive"):
        broken.draws(3, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("noise", "expected"), [(0.0, HALF_NORMAL), (1.0, HALF_NORMAL / math.sqrt(2))], ids=["exact", "noisy"]
)
def test_gain_of_one_trial_is_the_knowledge_gradient(noise: float, expected: float) -> None:
    """The first point is known; a noisy result of the other moves its mean by less than an exact one."""
    posterior = JointPosterior(mean=np.zeros(2), covariance=np.diag([1e-12, 1.0]), noise=noise)
    assert gains(posterior, 1) == pytest.approx([expected], abs=0.02)


def test_two_points_gain_the_least_of_two_normals() -> None:
    posterior = JointPosterior(mean=np.zeros(3), covariance=np.diag([1e-12, 1.0, 1.0]), noise=0.0)
    rng = np.random.default_rng(5)
    expected = -np.minimum(0.0, rng.standard_normal((200_000, 2)).min(axis=1)).mean()
    found = gains(posterior, 2)
    assert found[1] == pytest.approx(expected, abs=0.03)
    assert found[0] < found[1]


def test_correlated_points_gain_less_than_independent_ones() -> None:
    covariance = np.array([[1e-12, 0, 0], [0, 1.0, 0.95], [0, 0.95, 1.0]])
    alike = JointPosterior(mean=np.zeros(3), covariance=covariance, noise=0.0)
    apart = JointPosterior(mean=np.zeros(3), covariance=np.diag([1e-12, 1.0, 1.0]), noise=0.0)
    assert gains(alike, 2)[1] < gains(apart, 2)[1] - 0.05


def test_nothing_is_gained_where_the_rest_is_known_to_be_worse() -> None:
    posterior = JointPosterior(mean=np.array([0.0, 1.0]), covariance=np.diag([1e-4, 1e-4]), noise=0.01)
    assert gains(posterior, 3, 200) == pytest.approx([0.0] * 3, abs=2e-3)


def test_luck_in_the_noise_is_no_gain() -> None:
    """With the lowest result in place of the posterior mean, the gain would be several times the noise."""
    posterior = JointPosterior(mean=np.zeros(2), covariance=1e-6 * np.eye(2), noise=1.0)
    assert gains(posterior, 12, 500)[-1] < 0.01
