"""Joint normal posterior of the loss at many points: draws, and the expected gain of more trials; no Ax.

`optimizer.optimum` makes one from the surrogate. Losses are in any unit, and lower is better.

Shapes: N points, S draws, M simulated searches, K trials of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from sweeps.search.arrays import Floats

JITTERS = (1e-9, 1e-7, 1e-5)
"""Shares of the largest variance: the first that makes a covariance positive, which rounding spoilt."""


@dataclass(frozen=True, kw_only=True)
class JointPosterior:
    """Posterior of the true losses, without the noise of a run.

    Args:
        mean: [N].
        covariance: [N, N].
        noise: standard deviation of a result around the true loss.
    """

    mean: Floats
    covariance: Floats
    noise: float

    def draws(self, count: int, rng: np.random.Generator) -> Floats:
        """Return joint draws of all losses, [S, N].

        Raises:
            ArithmeticError: the covariance is none, even with some jitter.
        """
        size = float(np.diag(self.covariance).max())
        for jitter in JITTERS:
            try:
                root = np.linalg.cholesky(self.covariance + jitter * size * np.eye(len(self.mean)))
            except np.linalg.LinAlgError:
                continue
            drawn: Floats = self.mean + rng.standard_normal((count, len(self.mean))) @ root.T
            return drawn
        raise ArithmeticError("the posterior's covariance is not positive")

    def expected_gains(
        self, tried: Sequence[int], trials: int, draws: Floats, rng: np.random.Generator
    ) -> Floats:
        """Return by how much the chosen loss would be lower after 1 to `trials` further trials, [K].

        Searches are simulated, one for each draw, which is the truth there: the point of most expected
        improvement is tried, its noisy result updates the posterior, and then the point with the best
        posterior mean among those that were tried is chosen, as now. With the true model that is the mean
        gain of such searches; no gain comes from luck in the noise.

        Args:
            tried: indices of the points among which one is chosen now.
            trials: K.
            draws: [M, N], of `draws`.
        """
        searches, every = len(draws), np.arange(len(draws))
        means = np.tile(self.mean, (searches, 1))
        variances = np.tile(np.diag(self.covariance), (searches, 1))
        known = np.zeros(means.shape, dtype=bool)
        known[:, list(tried)] = True
        now = float(self.mean[list(tried)].min())
        # The posterior after t results, by t rows of a Cholesky factor, each of which takes some covariance.
        factors: list[Floats] = []
        gains = np.empty(trials)
        for trial in range(trials):
            incumbents = np.where(known, means, np.inf).min(axis=1)
            at = np.argmax(_improvement(incumbents[:, None] - means, variances), axis=1)
            results = draws[every, at] + self.noise * rng.standard_normal(searches)
            rows = self.covariance[at]
            for factor in factors:
                rows = rows - factor[every, at][:, None] * factor
            # A repeated point without noise has no variance left, and teaches nothing.
            spread = np.sqrt(
                np.maximum(variances[every, at] + self.noise**2, 1e-12 * self.covariance[at, at] + 1e-300)
            )
            row = rows / spread[:, None]
            means = means + row * ((results - means[every, at]) / spread)[:, None]
            variances = np.maximum(variances - row**2, 0.0)
            factors.append(row)
            known[every, at] = True
            gains[trial] = now - float(np.where(known, means, np.inf).min(axis=1).mean())
        return np.maximum.accumulate(np.maximum(gains, 0.0))


def _improvement(better: Floats, variances: Floats) -> Floats:
    """Return the expected improvement where the mean is so much better than the incumbent."""
    spread = np.sqrt(variances)
    ratio = np.clip(better / np.maximum(spread, 1e-300), -30.0, 30.0)  # whose square has no overflow
    found: Floats = better * ndtr(ratio) + spread * np.exp(-0.5 * ratio**2) / np.sqrt(2 * np.pi)
    return found
