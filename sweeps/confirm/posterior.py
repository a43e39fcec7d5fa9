"""The posterior of the candidates' losses, given those of their runs with fresh seeds.

Model (two-way, with random effects): loss of candidate i with seed j = m + a_i + b_j + e_ij, where a, b and e
are independent and normal with variances τ², ω² and σ². What a seed does to all candidates (b) cancels in
their differences, and counts in how well the expected loss m + a_i is known. Priors: flat for m, 1/σ² for σ²,
and uniform for the shrinkage τ²/(τ² + σ²) and the intraclass correlation ω²/(ω² + σ²) (the uniform shrinkage
prior: Daniels, A prior for the variance in hierarchical models, Canadian Journal of Statistics 27, 1999).

The winner is the luckiest of its round too. A posterior that shrinks the candidates towards each other allows
for that, and does not depend on when the runs were stopped, nor on which candidates left (Gelman, Hill and
Yajima, Why we (usually) don't have to worry about multiple comparisons, JREE 5, 2012).

Shapes: G points of a grid over both ratios, K candidates, S seeds, P = 1 + K + S.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import expit, stdtr

from sweeps.confirm.race import Losses

Floats = npt.NDArray[np.float64]

LOGITS = np.arange(-7.0, 17.1, 0.75)
"""Grid of ln(τ²/σ²) and of ln(ω²/σ²): from no difference to a noise of a five-thousandth of it."""

DRAWS = 20_000
"""Of the posterior, for the chances: their Monte Carlo error is at most 0.4 points."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the confirmation found.

    Args:
        winner: the candidate with the lowest posterior mean on the selection text, which is the choice of
            the least expected regret; of equal ones, the lowest index.
        mean: posterior mean of the winner's expected loss (over seeds) on the test text.
        low: lower end of the interval of that loss.
        high: upper end. The text is taken as given: what another text would change is `test_loss_sem`.
        on_test: whether mean, low and high are on the test text; without test losses of the winner, they are
            on the selection text.
        chances: of each candidate to have the lowest expected loss on the selection text; they sum to 1.
        means: posterior mean of each candidate's expected loss on the selection text.
        luck: the winner's first loss minus its mean on the selection text, negative if the first was too
            good to be true; None without a first loss.
    """

    winner: int
    mean: float
    low: float
    high: float
    on_test: bool
    chances: Mapping[int, float]
    means: Mapping[int, float]
    luck: float | None


def estimate(selection: Losses, test: Losses, first: Mapping[int, float], *, level: float = 0.95) -> Estimate:
    """Return the winner and what is known of its loss. Deterministic.

    Missing and non-finite losses are left out, and so are candidates without any. With a single run in all
    the interval is infinite.

    Args:
        selection: final losses on the selection text of the runs with fresh seeds.
        test: losses of the same runs on the test text; may lack some or all.
        first: losses that the search observed. They were selected for being low, so they only enter `luck`.
        level: probability of the interval.

    Raises:
        ValueError: no candidate has a loss, or `level` is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1; got {level}")
    selected = _posterior(selection)
    averages = selected.weights @ selected.means
    means = dict(zip(selected.candidates, map(float, averages), strict=True))
    winner = min(means, key=lambda candidate: (means[candidate], candidate))
    tested = any(math.isfinite(loss) for loss in test.get(winner, {}).values())
    final = _posterior(test) if tested else selected
    column = final.candidates.index(winner)
    low, high = final.interval(column, level)
    return Estimate(
        winner=winner,
        mean=float(final.weights @ final.means[:, column]),
        low=low,
        high=high,
        on_test=tested,
        chances=dict(zip(selected.candidates, map(float, selected.chances()), strict=True)),
        means=means,
        luck=first[winner] - means[winner] if winner in first else None,
    )


@dataclass(frozen=True, kw_only=True)
class _Posterior:
    """A mixture of multivariate t distributions, one for each point of the grid.

    Args:
        candidates: K of them.
        weights: [G] probability of each point.
        means: [G, K] of the expected losses.
        covariances: [G, K, K] scale matrices.
        freedom: degrees of freedom, the same for all.
    """

    candidates: list[int]
    weights: Floats
    means: Floats
    covariances: Floats
    freedom: int

    def interval(self, column: int, level: float) -> tuple[float, float]:
        """Return the ends of the interval with equal tails of one candidate's loss."""
        if self.freedom < 1:
            return -math.inf, math.inf
        means = self.means[:, column]
        scales = np.sqrt(self.covariances[:, column, column])

        def quantile(share: float) -> float:
            reach = float(np.max(np.abs(means - center)) + scales.max()) or 1.0
            while not below(center - reach) < share < below(center + reach):
                reach *= 2
            return float(brentq(lambda value: below(value) - share, center - reach, center + reach))

        def below(value: float) -> float:
            return float(self.weights @ stdtr(self.freedom, (value - means) / scales))

        center = float(self.weights @ means)
        return quantile((1 - level) / 2), quantile((1 + level) / 2)

    def chances(self) -> Floats:
        """Return the probability of each candidate to be the lowest, [K], from seeded draws."""
        count = len(self.candidates)
        rng = np.random.default_rng(0)
        points = rng.choice(len(self.weights), size=DRAWS, p=self.weights)
        roots = np.linalg.cholesky(self.covariances)
        stretch = np.sqrt(max(self.freedom, 1) / rng.chisquare(max(self.freedom, 1), DRAWS))
        normal = np.einsum("dij,dj->di", roots[points], rng.standard_normal((DRAWS, count)))
        lowest = np.argmin(self.means[points] + stretch[:, None] * normal, axis=1)
        return np.bincount(lowest, minlength=count) / DRAWS


def _posterior(losses: Losses) -> _Posterior:
    """Return the posterior of the expected losses, by Henderson's mixed model equations."""
    runs = [(c, s, x) for c, by_seed in sorted(losses.items()) for s, x in sorted(by_seed.items())]
    runs = [run for run in runs if math.isfinite(run[2])]
    if not runs:
        raise ValueError("no candidate has a finite loss")
    candidates, seeds = sorted({c for c, _, _ in runs}), sorted({s for _, s, _ in runs})
    count, values = len(candidates), np.array([loss for _, _, loss in runs])
    design = np.zeros((len(runs), 1 + count + len(seeds)))
    design[:, 0] = 1
    for at, (candidate, seed, _) in enumerate(runs):
        design[at, 1 + candidates.index(candidate)] = design[at, 1 + count + seeds.index(seed)] = 1
    center = float(values.mean())
    values = values - center

    of_candidates, of_seeds = (grid.ravel() for grid in np.meshgrid(LOGITS, LOGITS))
    penalty = np.zeros((len(of_candidates), design.shape[1]))
    penalty[:, 1 : 1 + count] = np.exp(-of_candidates)[:, None]
    penalty[:, 1 + count :] = np.exp(-of_seeds)[:, None]
    matrix = design.T @ design + penalty[:, None, :] * np.eye(design.shape[1])  # [G, P, P]
    inverse = np.linalg.inv(matrix)
    solution = inverse @ (design.T @ values)  # [G, P]
    freedom = len(runs) - 1
    # What rounding leaves of losses that are all equal would be noise.
    least = (1e-12 * max(1.0, abs(center))) ** 2
    squares = np.maximum(values @ values - solution @ (design.T @ values), least)
    evidence = -0.5 * (count * of_candidates + len(seeds) * of_seeds + np.linalg.slogdet(matrix)[1])
    evidence -= 0.5 * freedom * np.log(squares)
    for logits in (of_candidates, of_seeds):  # uniform for the share, whose logit this is
        evidence += np.log(expit(logits) * expit(-logits))
    weights = np.exp(evidence - evidence.max())
    sums = np.hstack([np.ones((count, 1)), np.eye(count), np.zeros((count, len(seeds)))])  # m + a_i
    scale = squares / max(freedom, 1)
    return _Posterior(
        candidates=candidates,
        weights=weights / weights.sum(),
        means=center + solution @ sums.T,
        covariances=scale[:, None, None] * (sums @ inverse @ sums.T),
        freedom=freedom,
    )
