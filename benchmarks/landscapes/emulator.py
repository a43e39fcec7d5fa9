"""An emulator of a landscape: three kinds of models, weighted by how well they predict held-out trials."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr
from sklearn.ensemble import ExtraTreesRegressor, GradientBoostingRegressor, StackingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GroupKFold, KFold

from benchmarks.landscapes.tables import METRIC, RANDOM, Row, load_space, read

FOLDS = 5
# Nats below the lowest loss. The logarithm of what is above it is modelled, because losses rise steeply.
_FLOOR = 0.05

Array = npt.NDArray[np.float64]


class Emulator:
    """True losses of a landscape's configurations, fitted to rows of its table.

    Args:
        name: of the landscape.
        rows: trials with a loss; those of one configuration show its noise.
    """

    def __init__(self, name: str, rows: Sequence[Row]) -> None:
        self._parameters: Mapping[str, Mapping[str, Any]] = load_space(name)["parameters"]
        losses = np.array([float(row[METRIC]) for row in rows])
        self._below = losses.min() - _FLOOR
        points, targets = self.encode(rows), np.log(losses - self._below)
        # Repeats of a configuration stay together: trees that know some of them predict the others too well.
        _, groups = np.unique(points, axis=0, return_inverse=True)
        splits = GroupKFold(FOLDS, shuffle=True, random_state=0).split(points, groups=groups)
        self._model = StackingRegressor(
            _models(points.shape[1]), LinearRegression(positive=True), cv=list(splits)
        )
        with warnings.catch_warnings():  # a length scale at its bound is a parameter that does not matter
            warnings.simplefilter("ignore", ConvergenceWarning)
            self._model.fit(points, targets)

    def __call__(self, rows: Sequence[Row]) -> Array:
        """Return the losses of configurations, in nats per token."""
        losses: Array = self._below + np.exp(self._model.predict(self.encode(rows)))
        return losses

    @property
    def weights(self) -> dict[str, float]:
        """Return the weight of each kind of model."""
        return dict(zip(self._model.named_estimators_, self._model.final_estimator_.coef_, strict=True))

    def encode(self, rows: Sequence[Row]) -> Array:
        """Return the configurations as points between 0 and 1; unordered options have an axis each."""
        columns = []
        for key, parameter in self._parameters.items():
            values = [row[key] for row in rows]
            if "values" in parameter:
                options = parameter["values"]
                places = np.array([options.index(value) for value in values])
                if parameter.get("ordered"):
                    columns.append(places / (len(options) - 1))
                else:
                    columns += [(places == place).astype(float) for place in range(len(options))]
            elif "min" in parameter:
                low, high = parameter["min"], parameter["max"]
                numbers = np.array(values, dtype=float)
                if "log" in parameter.get("distribution", ""):
                    low, high, numbers = np.log(low), np.log(high), np.log(numbers)
                columns.append((numbers - low) / (high - low))
        return np.stack(columns, axis=1)


def _models(axes: int) -> list[tuple[str, Any]]:
    kernel = ConstantKernel() * Matern(np.ones(axes), (0.05, 50.0), nu=2.5) + WhiteKernel(0.01)
    return [
        ("gp", GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)),
        ("trees", ExtraTreesRegressor(200, random_state=0)),
        (
            "boosting",
            GradientBoostingRegressor(n_estimators=200, learning_rate=0.05, subsample=0.7, random_state=0),
        ),
    ]


def quality(name: str) -> dict[str, float]:
    """Return how well a landscape's emulator predicts random trials that it was not fitted to.

    Returns:
        r2 and rank correlation over the folds; noise: standard deviation over seeds, pooled over the repeated
        configurations; r2_bound: what a perfect emulator has beside that noise.
    """
    rows = read(name)
    random = [row for row in rows if row["kind"] == RANDOM and row[METRIC] == row[METRIC]]
    losses = np.array([float(row[METRIC]) for row in random])
    predicted = np.empty_like(losses)
    for kept, left in KFold(FOLDS, shuffle=True, random_state=0).split(losses):
        predicted[left] = Emulator(name, [random[i] for i in kept])([random[i] for i in left])
    variances = [
        np.var([float(row[METRIC]) for row in rows if row["kind"] == kind], ddof=1)
        for kind in sorted({row["kind"] for row in rows} - {RANDOM})
    ]
    return {
        "r2": float(1 - np.mean((losses - predicted) ** 2) / np.var(losses)),
        "rank": float(spearmanr(losses, predicted).statistic),
        "noise": float(np.sqrt(np.mean(variances))),
        "r2_bound": float(1 - np.mean(variances) / np.var(losses)),
    }
