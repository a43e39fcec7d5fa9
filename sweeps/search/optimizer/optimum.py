"""Estimate of the best configuration from the surrogate: choice, confidence, expected gain of more trials.

Everything comes from joint draws of the surrogate's posterior at some thousand points: a Sobol sequence
over the space, the tried configurations, and neighbours of where the draws are lowest (`SurrogateView`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.quasirandom import SobolEngine

from sweeps.search.arrays import Floats
from sweeps.search.encoding import Encoding, Options, even_positions, share_at
from sweeps.search.optimizer.rows import ModelRows, metric_model, metric_scale
from sweeps.space.definition import Value, number_of

SPREAD_POINTS = 2048
"""Sobol points at which the surrogate is asked."""

KEPT_POINTS = 768
"""Sobol points that are kept for the draws: the lowest by mean - 2 standard deviations."""

NEAR_POINTS = 1024
"""Neighbours of the points where the first draws are lowest: 2048 points leave a space of eight parameters
empty, and the best of them looks worse than the best there is."""

NEAR_SCALES = (0.02, 0.06, 0.2)
"""Standard deviations of the neighbours' distance along an axis, as shares of its range."""

DRAWS = 512
SEARCHES = 96
"""Draws, and searches simulated for the expected gain."""

POSITIONS = 25
"""Points of a curve."""

LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """Value of a parameter, with the surrogate's mean and standard deviation there."""

    value: Value
    mean: float
    sd: float


@dataclass(frozen=True, kw_only=True)
class ParameterOptimum:
    """Interval of the optimum along one parameter, or the probability of each option, and its curve.

    Args:
        chosen: its value in the chosen configuration.
        interval: ends of that of 95 % of its optimum; None for unordered choices.
        shares: probability of each option of a choice to be the best configuration's; empty for numbers.
        curve: the metric along it, the other parameters as chosen.
        drawn: its optimum in each draw of the posterior in which it is active.
    """

    name: str
    chosen: Value
    interval: tuple[Value, Value] | None = None
    shares: tuple[tuple[Value, float], ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    drawn: tuple[Value, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """Answer of the surrogate; numbers are of the metric itself, whatever its goal.

    Args:
        trial: the tried configuration with the best posterior mean.
        noise: standard deviation of one result around the true value.
        chance: probability that the true value there is within `noise` of the best in the space.
        shortfall: by how much the best in the space is expected to be better.
        gains: expected gains of 1, 2, … more trials; positive whatever the goal.
        means: posterior mean of each tried configuration, by trial.
    """

    trial: int
    metric: str
    mean: float
    sd: float
    noise: float
    chance: float
    shortfall: float
    gains: tuple[float, ...]
    means: Mapping[int, float]
    parameters: tuple[ParameterOptimum, ...]


class Marginals:
    """The surrogate's posterior of one metric, in the metric's unit.

    Args:
        adapter: Ax's, fitted.
        name: of the metric there.
        sign: 1, or -1 to turn a metric that is maximised into a loss.
    """

    def __init__(self, adapter: Any, name: str, sign: float = 1.0) -> None:
        self._rows, self._model, self._sign = ModelRows(adapter), metric_model(adapter, name), sign
        self._centre, self._unit = metric_scale(adapter, name)

    @property
    def noise(self) -> float:
        """Return the standard deviation of a result; of several known ones, the root of the mean square."""
        variance = float(self._model.likelihood.noise.detach().mean())
        return self._unit * float(np.sqrt(variance))

    def at(self, points: Sequence[Mapping[str, Value]]) -> tuple[Floats, Floats]:
        """Return mean and covariance at points that have all axes, [N] and [N, N].

        Raises:
            ArithmeticError: the metric's unit is too large for its square.
        """
        with torch.no_grad():
            found = self._model.posterior(self._rows.rows(points)).distribution
            mean = self._sign * (self._centre + self._unit * found.mean.numpy())
            covariance = self._unit**2 * found.covariance_matrix.numpy()
        if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
            raise ArithmeticError("the posterior is not finite in the metric's unit")
        return mean, covariance


class SpacePoints:
    """Points of the space, as shares of the axes from 0 to below 1 and as positions on them."""

    def __init__(self, encoding: Encoding, rng: np.random.Generator, seed: int) -> None:
        self._encoding, self._rng, self._seed = encoding, rng, seed
        self._axes = [axis.name for axis in encoding.axes]

    def sobol(self, count: int) -> Floats:
        """Return Sobol points as shares, [count, axes]."""
        engine = SobolEngine(len(self._axes), scramble=True, seed=self._seed)  # type: ignore[no-untyped-call]  # torch has no types for it
        drawn: Floats = engine.draw(count, dtype=torch.double).numpy()
        return drawn

    def allowed(self, shares: Floats) -> list[dict[str, Value]]:
        """Return the space's points there, on all axes, without those that break constraints."""
        found = []
        for row in shares.tolist():
            everywhere = self._encoding.at_shares(dict(zip(self._axes, row, strict=True)))
            parameters = self._encoding.decode(everywhere)
            point = self._encoding.encode(parameters)
            if point is not None and self._encoding.domain.allows(parameters):
                found.append(everywhere | point)
        return found

    def near(self, centres: Sequence[Mapping[str, Value]], count: int) -> list[dict[str, Value]]:
        """Return neighbours of points, as many of each: most differ in a few axes, some in all."""
        axes = self._encoding.axes
        start = np.array([[share_at(axis, point[axis.name]) for axis in axes] for point in centres])
        rows = start[np.arange(count) % len(start)]
        scales = self._rng.choice(NEAR_SCALES, size=(count, 1))
        steps = scales * self._rng.standard_normal(rows.shape)
        moved = self._rng.random(rows.shape) < self._rng.choice((0.3, 1.0), size=(count, 1))
        # Optima often lie at the ends of ranges, where clipping puts as many neighbours as it should.
        return self.allowed(np.clip(rows + np.where(moved, steps, 0.0), 0.0, 1.0 - 2.0**-32))

    def parameters(
        self, model: Marginals, chosen: Mapping[str, Value], best: Sequence[Mapping[str, Value]], sign: float
    ) -> list[ParameterOptimum]:
        """Return where the optimum lies along each parameter that the chosen configuration has.

        Args:
            chosen: point on all axes.
            best: the lowest point of each draw.
            sign: -1 if the metric is maximised, else 1.
        """
        encoding, found = self._encoding, []
        active = encoding.decode(chosen)
        for axis in encoding.axes:
            parameter = encoding.names[axis.name]
            if parameter not in active:
                continue
            positions = even_positions(axis, POSITIONS)
            line = [{**chosen, axis.name: position} for position in positions]
            # Constraints may leave a line so short that no position lies on it.
            line = [p for p in line if encoding.domain.allows(encoding.decode(p))] or [dict(chosen)]
            means, covariance = model.at(line)
            spreads = np.sqrt(np.maximum(np.diag(covariance), 0.0))
            curve = tuple(
                CurvePoint(value=encoding.value(axis.name, p[axis.name]), mean=sign * float(m), sd=float(s))
                for p, m, s in zip(line, means, spreads, strict=True)
            )
            at = [point[axis.name] for point in best if parameter in encoding.decode(point)]
            ends: list[Value] = []
            shares: tuple[tuple[Value, float], ...] = ()
            if at and isinstance(axis, Options):
                places = sorted(axis.values.index(value) for value in at)
                shares = tuple(
                    (encoding.value(axis.name, value), places.count(index) / len(places))
                    for index, value in enumerate(axis.values)
                )
                if axis.ordered and len(axis.values) > 2:
                    ends = [axis.values[places[end]] for end in _ends(len(places))]
            elif at:
                ordered = sorted(at, key=number_of)
                ends = [ordered[end] for end in _ends(len(ordered))]
            low_high = [encoding.value(axis.name, end) for end in ends]
            found.append(
                ParameterOptimum(
                    name=parameter,
                    chosen=active[parameter],
                    interval=(low_high[0], low_high[1]) if low_high else None,
                    shares=shares,
                    curve=curve,
                    drawn=tuple(encoding.value(axis.name, value) for value in at),
                )
            )
        return found


def _ends(count: int) -> tuple[int, int]:
    """Return the places, among so many sorted values, of the ends of the interval with equal tails."""
    out = int(count * (1 - LEVEL) / 2)
    return out, count - 1 - out
