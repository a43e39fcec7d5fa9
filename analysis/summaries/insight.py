"""The surrogate's view of the parameters, read from an export document (see `sweeps.export.insight`).

The data come from a file: malformed parts are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NOT_ASKED = "This page was made without the surrogate; sweep report fits it."
SKILL = 0.3
"""Below this rank correlation of predicted and observed results, the surrogate is not worth much."""


@dataclass(frozen=True, kw_only=True)
class EffectPoint:
    """A point of a marginal effect: the parameter's value, the predicted mean and its standard deviation."""

    value: float | str | bool
    mean: float
    sd: float


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """A trial as predicted by a surrogate that was fitted without it."""

    trial: int
    observed: float
    predicted: float
    sd: float


@dataclass(frozen=True, kw_only=True)
class View:
    """The surrogate's view of one metric.

    Args:
        sensitivity: (parameter, first, total), shares of the variance, the largest total first.
        cross_validation: each trial predicted without it.
    """

    sensitivity: tuple[tuple[str, float, float], ...]
    cross_validation: tuple[HeldOut, ...]
    marginal: tuple[tuple[str, tuple[EffectPoint, ...]], ...]

    @property
    def skill(self) -> float | None:
        """Return Spearman's rank correlation of predicted and observed; None if it is undefined."""
        from scipy.stats import spearmanr

        observed = [held.observed for held in self.cross_validation]
        predicted = [held.predicted for held in self.cross_validation]
        if len(observed) < 3 or len(set(observed)) < 2 or len(set(predicted)) < 2:
            return None
        return float(spearmanr(observed, predicted).statistic)


@dataclass(frozen=True, kw_only=True)
class Insight:
    """The surrogate's views by metric, and a note if there are none."""

    metrics: tuple[tuple[str, View], ...]
    note: str


def insight(document: object) -> Insight:
    """Read field `insight` of an export, of any type."""
    if not isinstance(document, Mapping):
        return Insight(metrics=(), note=NOT_ASKED)
    metrics = document.get("metrics")
    views = [(str(n), _view(v)) for n, v in metrics.items()] if isinstance(metrics, Mapping) else []
    note = str(document.get("note") or "")
    if not views and not note:
        note = "The surrogate's view is empty."
    return Insight(metrics=tuple(views), note=note)


def _view(document: object) -> View:
    parts = document if isinstance(document, Mapping) else {}
    shares, held_out, curves = (parts.get(name) for name in ("sensitivity", "cross_validation", "marginal"))
    sensitivity = [
        (str(name), *numbers)
        for name, share in (shares.items() if isinstance(shares, Mapping) else ())
        if (numbers := finite_numbers(share, "first", "total"))
    ]
    return View(
        sensitivity=tuple(sorted(((n, f, t) for n, f, t in sensitivity), key=lambda row: (-row[2], row[0]))),
        cross_validation=tuple(
            HeldOut(trial=int(numbers[0]), observed=numbers[1], predicted=numbers[2], sd=numbers[3])
            for row in (held_out if isinstance(held_out, list) else ())
            if (numbers := finite_numbers(row, "trial", "observed", "predicted", "predicted_sd"))
        ),
        marginal=tuple(
            (str(name), points)
            for name, rows in (curves.items() if isinstance(curves, Mapping) else ())
            if (points := effect(rows))
        ),
    )


def effect(rows: object) -> tuple[EffectPoint, ...]:
    """Return the well-formed points of a curve."""
    points = []
    for row in rows if isinstance(rows, list) else ():
        if numbers := finite_numbers(row, "mean", "sd"):
            value = row.get("value")
            if isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
                points.append(EffectPoint(value=value, mean=numbers[0], sd=numbers[1]))
    return tuple(points)


def finite_numbers(row: object, *names: str) -> tuple[Any, ...]:
    """Return the finite numbers of these names; empty if one is missing."""
    if not isinstance(row, Mapping):
        return ()
    found = [row.get(name) for name in names]
    fits = all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in found)
    return tuple(found) if fits else ()
