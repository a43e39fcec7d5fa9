"""The posterior of the candidates' losses, given those of their runs with fresh seeds.

Model: the loss of candidate i with seed j is m + a_i + b_j + e_ij, where a, b and e are independent and
normal with variances τ², ω² and σ². What a seed does to all candidates (b) cancels in their differences, but
not in how well the expected loss m + a_i is known. Priors: flat for m, 1/σ² for σ², half-Cauchy for τ/σ and
for ω/σ (Gelman, Prior distributions for variance parameters in hierarchical models, Bayesian Analysis 1,
2006): it shrinks candidates that are alike together, and leaves apart those that are not.

The winner is also the luckiest of its round. A posterior that shrinks the candidates towards each other
allows for that, and it does not depend on when the runs were stopped, nor on who left (Gelman, Hill and
Yajima, Why we (usually) don't have to worry about multiple comparisons, JREE 5, 2012).

Shapes: G points of a grid over both ratios of variances, K candidates, S seeds, P = 1 + K + S.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, stdtr

from sweeps.search.arrays import Floats
from sweeps.search.confirm.race import ROUNDING, Losses

CANDIDATES_SCALE = 1.0
SEEDS_SCALE = 0.25
"""Prior medians of τ/σ and ω/σ. In docs/explanation/findings/runs.csv ω/σ is
√(0.0098² - 0.0089²) / 0.0089 = 0.46; a median of 0.5 makes intervals a
tenth wider than covering 95 % of `benchmarks.confirm --coverage` takes."""

LOGITS = np.arange(-9.0, 12.1)
"""Grid of ln(τ²/σ²) and of ln(ω²/σ²): from a ninetieth of the noise to 400 times."""

EQUAL = 1e-9
"""Posterior means this close beside the losses are equal: solving the equations loses a few digits."""

DRAWS = 10_000
"""Number of draws of the posterior for the chances, whose Monte Carlo error is then at most 0.5 points."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Result of a confirmation.

    Args:
        winner: the candidate with the lowest posterior mean on the selection text, the choice of least
            expected regret (not always that of the largest chance); of equal ones, the lowest index.
        mean: posterior mean of the winner's expected loss, over seeds, on the test text.
        low: lower end of the interval of that expected loss. The text is given: how much another would
            differ is `test_loss_text_sem`, which is not in here.
        on_test: whether mean, low and high are on the test text. Without test losses of the winner they are
            on the selection text.
        chances: of each candidate to have the lowest expected loss on the selection text; they sum to 1.
        means: posterior mean of each candidate's expected loss on the selection text.
        luck: the winner's first loss minus its posterior mean on the selection text: negative if the first
            was too good to be true. None without a first loss.
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
    """Return the winner and what is known of its loss; the same losses give the same answer.

    Missing and non-finite losses are failed runs and left out, as are candidates without any loss. Two runs
    are the fewest that bound a loss: with one in all, the interval is infinite.

    Args:
        selection: final losses of the runs with fresh seeds, on the selection text.
        test: losses of the same runs on the test text; some or all may be missing.
        first: losses that the search observed. They were chosen for being low, so they enter `luck` alone.

    Raises:
        ValueError: no candidate has a finite loss, or `level` is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1; got {level}")
    selected = _posterior(selection)
    means = dict(zip(selected.candidates, map(float, selected.expected()), strict=True))
    equal = min(means.values()) + EQUAL * max(map(abs, means.values()))
    winner = min(candidate for candidate, mean in means.items() if mean <= equal)
    tested = any(math.isfinite(loss) for loss in test.get(winner, {}).values())
    final = _posterior(test) if tested else selected
    column = final.candidates.index(winner)
    low, high = final.interval(column, level)
    luck = first[winner] - means[winner] if math.isfinite(first.get(winner, math.nan)) else None
    if luck is not None and abs(luck) <= EQUAL * abs(means[winner]):
        luck = 0.0
    return Estimate(
        winner=winner,
        mean=float(final.expected()[column]),
        low=low,
        high=high,
        on_test=tested,
        chances=dict(zip(selected.candidates, map(float, selected.chances()), strict=True)),
        means=means,
        luck=luck,
    )


@dataclass(frozen=True, kw_only=True)
class _Posterior:
    """A mixture of multivariate t distributions, one for each point of the grid.

    Args:
        candidates: K of them.
        weights: [G] probabilities.
        means: [G, K] of the expected losses, in units of `unit`.
        roots: [G, K, K] Cholesky factors of the scale matrices, likewise.
        unit: size of the losses, a power of two.
    """

    candidates: list[int]
    weights: Floats
    means: Floats
    roots: Floats
    freedom: int
    unit: float

    def expected(self) -> Floats:
        """Return the posterior means, [K]."""
        return np.asarray(self.unit * (self.weights @ self.means))

    def interval(self, column: int, level: float) -> tuple[float, float]:
        """Return the ends of the interval of one candidate's loss, with equal tails."""
        if self.freedom < 1:
            return -math.inf, math.inf
        means = self.means[:, column]
        scales = np.linalg.norm(self.roots[:, column], axis=-1)
        center, step = float(self.weights @ means), float(scales.max())

        def below(value: float) -> float:
            return float(self.weights @ stdtr(self.freedom, (value - means) / scales))

        def quantile(share: float) -> float:
            reach = step
            while not below(center - reach) < share < below(center + reach):
                reach *= 2
            ends = (center - reach, center + reach)
            return float(brentq(lambda value: below(value) - share, *ends, xtol=1e-9 * step))

        return self.unit * quantile((1 - level) / 2), self.unit * quantile((1 + level) / 2)

    def chances(self) -> Floats:
        """Return the probability of each candidate to be the lowest, [K], from seeded draws."""
        count, freedom, rng = len(self.candidates), max(self.freedom, 1), np.random.default_rng(0)
        points = rng.choice(len(self.weights), size=DRAWS, p=self.weights)
        stretch = np.sqrt(freedom / rng.chisquare(freedom, DRAWS))[:, None]
        normal = np.einsum("dij,dj->di", self.roots[points], rng.standard_normal((DRAWS, count)))
        lowest = np.argmin(self.means[points] + stretch * normal, axis=1)
        return np.bincount(lowest, minlength=count) / DRAWS


def _posterior(losses: Losses) -> _Posterior:
    """Return the posterior of the expected losses, from Henderson's mixed model equations.

    With both ratios of variances given, (m, a, b) is multivariate t, and the evidence for the ratios is the
    restricted likelihood with σ² integrated out (Searle, Casella and McCulloch, Variance Components, 1992,
    ch. 7).
    """
    candidates, design, values = _table(losses)
    count, freedom = len(candidates), len(values) - 1
    unit = math.ldexp(1.0, math.frexp(float(np.abs(values).max()))[1] - 1)  # a power of two divides exactly
    center = float((values / unit).mean())
    rest = values / unit - center

    of_candidates, of_seeds = (axis.ravel() for axis in np.meshgrid(LOGITS, LOGITS))
    penalty = np.zeros((len(of_candidates), design.shape[1]))  # [G, P]: σ² over the variance of each effect
    penalty[:, 1 : 1 + count] = np.exp(-of_candidates)[:, None]
    penalty[:, 1 + count :] = np.exp(-of_seeds)[:, None]
    matrix = design.T @ design + penalty[:, None, :] * np.eye(design.shape[1])  # [G, P, P]
    inverse = np.linalg.inv(matrix)
    effects = inverse @ (design.T @ rest)  # [G, P]
    # What rounding leaves of equal losses is no noise, but the logarithm below needs some.
    squares = (rest @ rest - effects @ (design.T @ rest)).clip(min=ROUNDING**2)

    evidence = 0.5 * (np.log(penalty[:, 1:]).sum(axis=1) - np.linalg.slogdet(matrix)[1])
    evidence -= 0.5 * freedom * np.log(squares)
    for logits, scale in ((of_candidates, CANDIDATES_SCALE), (of_seeds, SEEDS_SCALE)):
        evidence += 0.5 * logits + np.log(expit(2 * math.log(scale) - logits))  # half-Cauchy, by ln(τ²/σ²)
    weights = np.exp(evidence - evidence.max())
    sums = np.eye(count, design.shape[1], k=1)  # m + a_i
    sums[:, 0] = 1
    roots = np.linalg.cholesky(sums @ inverse @ sums.T)
    return _Posterior(
        candidates=candidates,
        weights=weights / weights.sum(),
        means=center + effects @ sums.T,
        roots=np.sqrt(squares / max(freedom, 1))[:, None, None] * roots,
        freedom=freedom,
        unit=unit,
    )


def _table(losses: Losses) -> tuple[list[int], Floats, Floats]:
    """Return the candidates, which of (m, a, b) are in each of N runs [N, P], and the losses [N]."""
    runs = [(c, s, x) for c, by_seed in sorted(losses.items()) for s, x in sorted(by_seed.items())]
    runs = [run for run in runs if math.isfinite(run[2])]
    if not runs:
        raise ValueError("no candidate has a finite loss")
    candidates, seeds = sorted({c for c, _, _ in runs}), sorted({s for _, s, _ in runs})
    of_candidates = [[candidate == c for c in candidates] for candidate, _, _ in runs]
    of_seeds = [[seed == s for s in seeds] for _, seed, _ in runs]
    design = np.hstack([np.ones((len(runs), 1)), of_candidates, of_seeds])
    return candidates, design, np.array([loss for _, _, loss in runs])
