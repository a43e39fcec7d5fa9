"""Analyses of a fitted surrogate, by the space's parameters and trials, for `insight`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from ax.adapter.cross_validation import cross_validate
from ax.core.observation import ObservationFeatures
from torch.quasirandom import SobolEngine

from sweeps.search.arrays import Floats
from sweeps.search.determinism import one_thread, silence
from sweeps.search.encoding import Encoding
from sweeps.search.joint_posterior import JointPosterior
from sweeps.search.optimizer.optimum import (
    DRAWS,
    KEPT_POINTS,
    NEAR_POINTS,
    SEARCHES,
    SPREAD_POINTS,
    Marginals,
    Optimum,
    SpacePoints,
)
from sweeps.search.outcomes import SURVIVAL, Outcomes
from sweeps.space.definition import Value

SOBOL_POINTS = 512
"""Points of each sample for the sensitivities, a power of two: shares are right to about a hundredth."""


class SurrogateView:
    """Analyses of one fitted surrogate.

    Args:
        adapter: Ax's adapter, fitted.
        records: index of the record, by the index of Ax's trial.
        repeated: whether several trials have the same arm.
    """

    def __init__(
        self,
        adapter: Any,
        encoding: Encoding,
        outcomes: Outcomes,
        records: Mapping[int, int],
        *,
        repeated: bool,
    ) -> None:
        self._adapter, self._encoding, self._records = adapter, encoding, records
        self._repeated, self._lower_is_better = repeated, outcomes.lower_is_better
        self._metrics = {name: metric for metric, name in outcomes.names.items()}

    def sensitivities(self) -> dict[str, dict[str, tuple[float, float]]]:
        """Return the Sobol indices (first, total) of every metric by parameter; nan where it does not vary.

        The estimators are Jansen's (https://doi.org/10.1016/S0010-4655(98)00154-4). Ax's own function draws
        both samples from one sequence, so that they depend on one another: a parameter that explained all of
        a metric had a share of 0.2. It also goes between the options of unordered choices, and halved theirs.
        """
        axes = [axis.name for axis in self._encoding.axes]
        engine = SobolEngine(2 * len(axes), scramble=True, seed=0)  # type: ignore[no-untyped-call]  # torch has no types for it
        drawn: Floats = engine.draw(SOBOL_POINTS, dtype=torch.double).numpy()
        first, second = np.hsplit(drawn, 2)
        samples = [first, second]
        for at in range(len(axes)):  # the first sample, with one axis of the second
            mixed = first.copy()
            mixed[:, at] = second[:, at]
            samples.append(mixed)
        found: dict[str, dict[str, tuple[float, float]]] = {metric: {} for metric in self._metrics.values()}
        means = [self._means_at(axes, sample) for sample in samples]
        for metric, shares in found.items():
            one, other, *rest = (each[metric] for each in means)
            variance = 2 * float(np.var([one, other]))
            for axis, mixed in zip(axes, rest, strict=True):
                alone, together = (float(np.mean((mixed - each) ** 2)) for each in (other, one))
                shares[self._encoding.names[axis]] = (
                    (1 - alone / variance, together / variance) if variance else (math.nan, math.nan)
                )
        return found

    def _means_at(self, axes: Sequence[str], sample: Floats) -> dict[str, Floats]:
        """Return the posterior mean, [N], of every metric at shares of the axes, [N, axes]."""
        points = [self._encoding.at_shares(dict(zip(axes, row, strict=True))) for row in sample.tolist()]
        return {metric: np.array([mean for mean, _ in some]) for metric, some in self.predict(points).items()}

    def cross_validated(self) -> Iterator[tuple[int, str, float, float, float]]:
        """Yield (trial, metric, observed mean, leave-one-out prediction, its standard deviation).

        The standard deviation is that of a result, noise included, as a result is what it is compared with.
        All observations of an arm are left out together: repeats would predict one another.
        """
        # Ax's quick way leaves out single observations; with a selector it takes the other, by arm.
        selector = (lambda _: True) if self._repeated else None
        with one_thread(), silence("ax"):
            folds = cross_validate(self._adapter, test_selector=selector)
            noise = {name: Marginals(self._adapter, name).noise for name in self._metrics}
        for fold in folds:
            observed = dict(zip(fold.observed.data.metric_signatures, fold.observed.data.means, strict=True))
            guess = fold.predicted
            for at, name in enumerate(guess.metric_signatures):
                if name in self._metrics and name in observed:
                    index = self._records[int(fold.observed.features.trial_index)]
                    spread = math.hypot(math.sqrt(max(float(guess.covariance[at, at]), 0.0)), noise[name])
                    yield index, self._metrics[name], float(observed[name]), float(guess.means[at]), spread

    def predict(self, points: Sequence[Mapping[str, Value]]) -> dict[str, list[tuple[float, float]]]:
        """Return (mean, standard deviation) of every metric at each of the points, which have all axes."""
        with one_thread(), silence("ax"):
            means, covariances = self._adapter.predict([ObservationFeatures(dict(p)) for p in points])
        spreads = {name: [math.sqrt(max(v, 0.0)) for v in covariances[name][name]] for name in self._metrics}
        return {
            metric: list(zip(map(float, means[name]), spreads[name], strict=True))
            for name, metric in self._metrics.items()
        }

    def means(self, points: Sequence[Mapping[str, Value]]) -> dict[str, Floats]:
        """Return the posterior mean, [N], of each metric and, if any trial failed, of survival.

        By the search's names, at points that have all axes.
        """
        with one_thread(), silence("ax"):
            names = self._adapter.generator.surrogate.outcomes
            return {name: Marginals(self._adapter, name).at(points)[0] for name in names}

    def optimum(
        self, tried: Mapping[int, Mapping[str, Value]], *, more: int, seed: int, curves: bool = True
    ) -> Optimum:
        """Return what is known of the optimum of the first objective.

        Args:
            tried: points on all axes of the trials that may be chosen, by index.
            more: number of further trials whose gain is wanted.

        Raises:
            one of SURROGATE_FAILURES: the surrogate has no posterior to draw from.
        """
        with one_thread(), silence("ax"):
            return self._optimum(tried, more, seed, curves=curves)

    def _optimum(
        self, tried: Mapping[int, Mapping[str, Value]], more: int, seed: int, *, curves: bool
    ) -> Optimum:
        name, lower_is_better = next(iter(self._lower_is_better.items()))
        sign = 1.0 if lower_is_better else -1.0
        model, rng = Marginals(self._adapter, name, sign), np.random.default_rng(seed)
        space = SpacePoints(self._encoding, rng, seed)
        has_failures = SURVIVAL in self._adapter.generator.surrogate.outcomes
        survivors = Marginals(self._adapter, SURVIVAL) if has_failures else None
        own = [dict(point) for point in tried.values()]

        def alive(points: list[dict[str, Value]]) -> list[dict[str, Value]]:
            if survivors is None or not points:
                return points
            return [point for point, mean in zip(points, survivors.at(points)[0], strict=True) if mean >= 0.5]

        spread = [*own, *alive(space.allowed(space.sobol(SPREAD_POINTS)))]
        mean, covariance = model.at(spread)
        promising = np.argsort(mean - 2 * np.sqrt(np.diag(covariance)), kind="stable")
        kept = [*range(len(own)), *[at for at in promising if at >= len(own)][:KEPT_POINTS]]
        points = [spread[at] for at in kept]
        first = JointPosterior(mean=mean[kept], covariance=covariance[np.ix_(kept, kept)], noise=model.noise)
        lowest = {int(np.argmin(first.mean[: len(own)])), *map(int, first.draws(DRAWS, rng).argmin(axis=1))}
        points += alive(space.near([points[at] for at in sorted(lowest)], NEAR_POINTS))

        mean, covariance = model.at(points)
        joint = JointPosterior(mean=mean, covariance=covariance, noise=model.noise)
        draws = joint.draws(DRAWS, rng)
        chosen = int(np.argmin(mean[: len(own)]))
        short = draws[:, chosen] - draws.min(axis=1)
        gains = joint.expected_gains(range(len(own)), more, draws[:SEARCHES], rng)
        best = [points[at] for at in np.argmin(draws, axis=1)]
        return Optimum(
            trial=list(tried)[chosen],
            metric=self._metrics[name],
            mean=sign * float(mean[chosen]),
            sd=float(np.sqrt(max(covariance[chosen, chosen], 0.0))),
            noise=model.noise,
            chance=float((short <= model.noise).mean()),
            shortfall=float(short.mean()),
            gains=tuple(map(float, gains)),
            means={trial: sign * float(mean[at]) for at, trial in enumerate(tried)},
            parameters=tuple(space.parameters(model, own[chosen], best, sign)) if curves else (),
        )
