"""What mattered, as the surrogate sees it, as data: sensitivities, cross-validation, marginal effects.

`sweep report` adds it to the exported document, so that `analysis` shows it without Ax:

    {"trials": how many results it was fitted to, "note": why there is nothing (else ""),
     "metrics": {METRIC: {"sensitivity": {PARAMETER: {"first", "total"}},
                          "cross_validation": [{"trial", "observed", "predicted", "predicted_sd"}],
                          "marginal": {PARAMETER: [{"value", "mean", "sd"}]}}}}

Sensitivities are Sobol's indices: the share of the fitted metric's variance over the space that a parameter
explains by itself (first) and together with others (total). A marginal effect is the prediction with the
parameter moved to a value in all trials, averaged over them; `sd` is the surrogate's own uncertainty,
averaged likewise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sweeps.search.determinism import stable_seed
from sweeps.search.encoding import Axis, Encoding, Interval
from sweeps.space.definition import Space, Value
from sweeps.space.domain import Domain
from sweeps.trials.record import Trial

if TYPE_CHECKING:
    from sweeps.search.optimizer import SurrogateView

LEAST = 4
MOST = 400
"""Beyond so many results a fit takes minutes; below LEAST it says nothing."""

PLACES = 11
BACKGROUND = 48
"""Trials over which a marginal effect is averaged, the last ones."""


def insight(space: Space, records: Sequence[Trial]) -> dict[str, Any]:
    """The document above. Never raises for want of a surrogate: `note` then says why there is none."""
    results = sum(record.status == "completed" for record in records)
    empty: dict[str, Any] = {"trials": results, "note": "", "metrics": {}}
    if results < LEAST:
        return empty | {"note": f"too few results for a surrogate: {results}; it takes {LEAST}"}
    if results > MOST:
        return empty | {
            "note": f"too many results to fit a surrogate for a report: {results}; {MOST} at most"
        }
    if not Domain(space).searched:
        return empty | {"note": "no parameter was searched"}
    from sweeps.search.optimizer import SURROGATE_FAILURES, Optimizer

    optimizer = Optimizer(space)
    try:
        optimizer.observe(records)
        return empty | {"metrics": _metrics(space, records, optimizer.view())}
    except SURROGATE_FAILURES as error:
        return empty | {"note": f"the surrogate failed: {' '.join(str(error).split())[:200]}"}


def _metrics(space: Space, records: Sequence[Trial], view: SurrogateView) -> dict[str, Any]:
    first, total = view.sensitivities("first"), view.sensitivities("total")
    found: dict[str, Any] = {
        metric: {
            "sensitivity": {
                name: {"first": _share(first[metric][name]), "total": _share(total[metric][name])}
                for name in first[metric]
            },
            "cross_validation": [],
            "marginal": {},
        }
        for metric in first
    }
    for trial, metric, observed, predicted, spread in view.cross_validated():
        row = {"trial": trial, "observed": observed, "predicted": predicted, "predicted_sd": spread}
        found[metric]["cross_validation"].append(row)
    for metric, name, row in _marginal(space, records, view):
        found[metric]["marginal"].setdefault(name, []).append(row)
    return found


def _marginal(
    space: Space, records: Sequence[Trial], view: SurrogateView
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(metric, parameter, a place of its curve)."""
    encoding = Encoding(Domain(space))
    done = [record for record in records if record.status == "completed"][-BACKGROUND:]
    encoded = [(record.trial, encoding.encode(record.parameters)) for record in done]
    points = [
        encoding.filled(point, stable_seed(space.search.seed, index, "inactive"))
        for index, point in encoded
        if point is not None
    ]
    for axis in encoding.axes:
        for place in _places(axis):
            for metric, told in view.predict([point | {axis.name: place} for point in points]).items():
                yield (
                    metric,
                    encoding.names[axis.name],
                    {
                        "value": encoding.value(axis.name, place),
                        "mean": statistics.fmean(mean for mean, _ in told),
                        "sd": statistics.fmean(spread for _, spread in told),
                    },
                )


def _places(axis: Axis) -> list[Value]:
    """Where along an axis its effect is shown: every option, or even steps."""
    if not isinstance(axis, Interval):
        return list(axis.values)
    low, high = axis.bounds
    if axis.kind == "int":
        count = min(PLACES, int(high - low) + 1)
        return list(dict.fromkeys(round(low + (high - low) * i / max(1, count - 1)) for i in range(count)))
    return [low + (high - low) * i / (PLACES - 1) for i in range(PLACES)]


def _share(value: float) -> float | None:
    """A share of the variance between 0 and 1, None where nothing varies; estimates may stray a little."""
    return min(1.0, max(0.0, value)) if math.isfinite(value) else None
