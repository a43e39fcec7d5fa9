"""What mattered, read from the document that the sweep exports with it (see `sweeps.export.insight`).

`contents` calls this. The data come from a file: whatever does not fit is left out, and said so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NOT_ASKED = "The export has no surrogate's view in it: sweep report --surrogate adds one."
SKILL = 0.3
"""Below this rank correlation of predicted and observed results, the surrogate's words are not worth much."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place of a marginal effect: the parameter's value, the predicted mean and its standard deviation."""

    value: float | str | bool
    mean: float
    sd: float


@dataclass(frozen=True, kw_only=True)
class Held:
    """A trial, predicted by a surrogate that had not seen it."""

    trial: int
    observed: float
    predicted: float
    sd: float


@dataclass(frozen=True, kw_only=True)
class View:
    """Of one metric. Sensitivities are (first, total) shares of the variance, the largest total first."""

    sensitivity: tuple[tuple[str, float, float], ...]
    cross_validation: tuple[Held, ...]
    marginal: tuple[tuple[str, tuple[Place, ...]], ...]

    @property
    def skill(self) -> float | None:
        """Spearman's rank correlation of predicted and observed; None where there is none to speak of."""
        from scipy.stats import spearmanr

        observed = [held.observed for held in self.cross_validation]
        predicted = [held.predicted for held in self.cross_validation]
        if len(observed) < 3 or len(set(observed)) < 2 or len(set(predicted)) < 2:
            return None
        return float(spearmanr(observed, predicted).statistic)


@dataclass(frozen=True, kw_only=True)
class Insight:
    """Of all metrics, and why there is nothing, if so."""

    metrics: tuple[tuple[str, View], ...]
    note: str


def insight(told: object) -> Insight:
    """Read the export's `insight`; anything at all may be given."""
    if not isinstance(told, Mapping):
        return Insight(metrics=(), note=NOT_ASKED)
    metrics = told.get("metrics")
    views = [(str(n), _view(v)) for n, v in metrics.items()] if isinstance(metrics, Mapping) else []
    note = str(told.get("note") or "")
    if not views and not note:
        note = "The surrogate's view is empty."
    return Insight(metrics=tuple(views), note=note)


def _view(told: object) -> View:
    parts = told if isinstance(told, Mapping) else {}
    shares, held, curves = (parts.get(name) for name in ("sensitivity", "cross_validation", "marginal"))
    sensitivity = [
        (str(name), *numbers)
        for name, share in (shares.items() if isinstance(shares, Mapping) else ())
        if (numbers := _numbers(share, "first", "total"))
    ]
    return View(
        sensitivity=tuple(sorted(((n, f, t) for n, f, t in sensitivity), key=lambda row: (-row[2], row[0]))),
        cross_validation=tuple(
            Held(trial=int(numbers[0]), observed=numbers[1], predicted=numbers[2], sd=numbers[3])
            for row in (held if isinstance(held, list) else ())
            if (numbers := _numbers(row, "trial", "observed", "predicted", "predicted_sd"))
        ),
        marginal=tuple(
            (str(name), places)
            for name, rows in (curves.items() if isinstance(curves, Mapping) else ())
            if (places := _places(rows))
        ),
    )


def _places(rows: object) -> tuple[Place, ...]:
    return tuple(
        Place(value=row["value"], mean=numbers[0], sd=numbers[1])
        for row in (rows if isinstance(rows, list) else ())
        if (numbers := _numbers(row, "mean", "sd")) and _is_value(row.get("value"))
    )


def _is_value(value: object) -> bool:
    return isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))


def _numbers(row: object, *names: str) -> tuple[Any, ...]:
    """The finite numbers of these names; empty if one is missing."""
    if not isinstance(row, Mapping):
        return ()
    found = [row.get(name) for name in names]
    fits = all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in found)
    return tuple(found) if fits else ()
