"""Ax's own analyses of a fitted surrogate, in the space's and the trials' words. `insight` asks for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ax.adapter.cross_validation import cross_validate
from ax.core.observation import ObservationFeatures
from ax.utils.sensitivity.sobol_measures import ax_parameter_sens

from sweeps.search.determinism import one_thread, seeded, silence
from sweeps.search.encoding import Encoding
from sweeps.search.outcomes import Outcomes
from sweeps.space.definition import Value


class SurrogateView:
    """Ax's own analyses of its fitted surrogate, in the space's and the trials' words.

    Args:
        records: the record's index of each of Ax's trials.
    """

    def __init__(
        self, adapter: Any, encoding: Encoding, outcomes: Outcomes, records: Mapping[int, int]
    ) -> None:
        self._adapter, self._encoding, self._records = adapter, encoding, records
        self._metrics = {name: metric for metric, name in outcomes.names.items()}

    def sensitivities(self, order: str) -> dict[str, dict[str, float]]:
        """Sobol's indices ("first" or "total") of every metric, by parameter."""
        with one_thread(), silence("ax"), seeded(0):
            # Ax's default of 10,000 plain samples takes minutes on a busy core; these say the same to two
            # digits.
            found = ax_parameter_sens(
                self._adapter,
                list(self._metrics),
                order=order,
                signed=False,
                num_mc_samples=1024,
                input_qmc=True,
            )
        parameters = self._encoding.names.values()
        shares = {metric: dict.fromkeys(parameters, 0.0) for metric in self._metrics.values()}
        for name, told in found.items():
            for feature, value in told.items():
                axis = feature.partition("_OH_PARAM_")[0]  # one axis per option of an unordered choice
                shares[self._metrics[name]][self._encoding.names[axis]] += float(value)
        return shares

    def cross_validated(self) -> Iterator[tuple[int, str, float, float, float]]:
        """(trial, metric, observed, predicted without it, standard deviation of that)."""
        with one_thread(), silence("ax"):
            folds = cross_validate(self._adapter)
        for fold in folds:
            told = dict(zip(fold.observed.data.metric_signatures, fold.observed.data.means, strict=True))
            guess = fold.predicted
            for at, name in enumerate(guess.metric_signatures):
                if name in self._metrics and name in told:
                    index = self._records[int(fold.observed.features.trial_index)]
                    spread = math.sqrt(max(float(guess.covariance[at, at]), 0.0))
                    yield index, self._metrics[name], float(told[name]), float(guess.means[at]), spread

    def predict(self, points: Sequence[Mapping[str, Value]]) -> dict[str, list[tuple[float, float]]]:
        """(mean, standard deviation) of every metric at points of all axes."""
        with one_thread(), silence("ax"):
            means, covariances = self._adapter.predict([ObservationFeatures(dict(p)) for p in points])
        spreads = {name: [math.sqrt(max(v, 0.0)) for v in covariances[name][name]] for name in self._metrics}
        return {
            metric: list(zip(map(float, means[name]), spreads[name], strict=True))
            for name, metric in self._metrics.items()
        }
