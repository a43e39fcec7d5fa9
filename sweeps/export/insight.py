"""Analyses of the surrogate as data: sensitivities, cross-validation, marginal effects.

`sweep report` adds them to the exported document, so that `analysis` shows them without Ax:

    {"trials": number of results it was fitted to, "note": if not to all, or why there are none (else ""),
     "metrics": {METRIC: {"sensitivity": {PARAMETER: {"first", "total"}},
                          "cross_validation": [{"trial", "observed", "predicted", "predicted_sd"}],
                          "marginal": {PARAMETER: [{"value", "mean", "sd"}]},
                          "joint": {"x": PARAMETER, "y": PARAMETER, "cells": [{"x", "y", "mean"}]}}},
     "optimum": the document of `export.optimum`; only where it applies}

Sensitivities are Sobol indices: the share of the fitted metric's variance over the space that a parameter
explains by itself (first) and together with others (total). `predicted_sd` is of a result, with its noise. A
marginal effect is the prediction with the parameter set to a value in all trials, averaged over them; `sd` is
the surrogate's uncertainty, averaged likewise. The joint effect is that of the two most sensitive parameters,
where two were searched.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeps.export import optimum
from sweeps.search.determinism import stable_seed
from sweeps.search.encoding import Encoding, even_positions
from sweeps.space.definition import Space, cell_of
from sweeps.space.domain import Domain
from sweeps.space.fidelity import at_target, is_at_target
from sweeps.trials.record import Trial

if TYPE_CHECKING:
    from sweeps.search.optimizer import SurrogateView

LEAST = 4
"""Fewer results say nothing."""

MOST, SAMPLE = 400, 200
"""Of more results some 200 are taken: leaving out each of 400 once takes 40 s, of 200 eight."""

POSITIONS = 11
"""Points of the curve of a numeric parameter's marginal effect."""

BACKGROUND = 48
"""Number of latest trials over which a marginal effect is averaged."""


def why_not(space: Space, records: Sequence[Trial]) -> str:
    """Return why no surrogate is fitted to the records; "" if one is."""
    results = _count_results(space, records)
    if results < LEAST:
        return f"too few results for a surrogate: {results}; it takes {LEAST}"
    return "" if Domain(at_target(space)).searched else "no parameter was searched"


def _count_results(space: Space, records: Sequence[Trial]) -> int:
    return sum(record.status == "completed" and is_at_target(space, record.parameters) for record in records)


def insight(space: Space, records: Sequence[Trial]) -> dict[str, Any]:
    """Return the document above; if the surrogate cannot be fitted, its `note` says why."""
    note, results = why_not(space, records), _count_results(space, records)
    empty: dict[str, Any] = {"trials": results, "note": note, "metrics": {}}
    if note:
        return empty
    records = [record for record in records if is_at_target(space, record.parameters)]
    space = at_target(space)
    if results > MOST:
        count = len(records) * SAMPLE // results
        records = [records[at * len(records) // count] for at in range(count)]
        fitted = _count_results(space, records)
        note = f"The surrogate was fitted to {fitted} of {results:,} results, spread evenly over the search."
        empty |= {"trials": fitted, "note": note}
    from sweeps.search.optimizer import SURROGATE_FAILURES, Optimizer

    optimizer = Optimizer(space)
    try:
        optimizer.observe(records)
        view = optimizer.view()
        found = empty | {"metrics": _metrics(space, records, view)}
    except SURROGATE_FAILURES as error:
        return empty | {"note": f"the surrogate failed: {' '.join(str(error).split())[:200]}"}
    if note:  # the best trial may be another
        return found
    with suppress(*SURROGATE_FAILURES):  # what mattered is worth showing without
        answer = optimum.from_view(space, records, optimizer, view)
        return found if answer is None else found | {"optimum": answer}
    return found


def _metrics(space: Space, records: Sequence[Trial], view: SurrogateView) -> dict[str, Any]:
    found: dict[str, Any] = {
        metric: {
            "sensitivity": {
                name: {"first": _share(first), "total": _share(total)}
                for name, (first, total) in shares.items()
            },
            "cross_validation": [],
            "marginal": {},
        }
        for metric, shares in view.sensitivities().items()
    }
    # Sorted, as Ax goes through a set: the order would differ from process to process.
    for trial, metric, observed, predicted, spread in sorted(view.cross_validated()):
        row = {"trial": trial, "observed": observed, "predicted": predicted, "predicted_sd": spread}
        found[metric]["cross_validation"].append(row)
    encoding = Encoding(Domain(space))
    done = [r for r in records if r.status == "completed" and r.generator != "confirm"][-BACKGROUND:]
    encoded = [(record.trial, encoding.encode(record.parameters)) for record in done]
    points = [
        encoding.on_all_axes(point, stable_seed(space.search.seed, index, "inactive"))
        for index, point in encoded
        if point is not None
    ]
    for axis in encoding.axes:
        for position in even_positions(axis, POSITIONS):
            predictions = view.predict([point | {axis.name: position} for point in points])
            for metric, normals in predictions.items():
                at = {
                    "value": cell_of(encoding.value(axis.name, position)),
                    "mean": statistics.fmean(mean for mean, _ in normals),
                    "sd": statistics.fmean(sd for _, sd in normals),
                }
                found[metric]["marginal"].setdefault(encoding.names[axis.name], []).append(at)
    by_name = {encoding.names[axis.name]: axis for axis in encoding.axes}
    for metric, document in found.items():
        shares = document["sensitivity"]
        # A metric that never varies has no shares; any two parameters will do.
        pair = sorted(by_name, key=lambda name: -(shares[name]["total"] or 0.0))[:2]
        if len(pair) == 2:
            x, y = (by_name[name] for name in pair)
            cells = [(a, b) for a in even_positions(x, POSITIONS) for b in even_positions(y, POSITIONS)]
            moved = [point | {x.name: a, y.name: b} for a, b in cells for point in points]
            means = np.array([mean for mean, _ in view.predict(moved)[metric]]).reshape(len(cells), -1)
            document["joint"] = {
                "x": pair[0],
                "y": pair[1],
                "cells": [
                    {
                        "x": cell_of(encoding.value(x.name, a)),
                        "y": cell_of(encoding.value(y.name, b)),
                        "mean": float(mean),
                    }
                    for (a, b), mean in zip(cells, means.mean(axis=1), strict=True)
                ],
            }
    return found


def _share(value: float) -> float | None:
    """Return a share of the variance clipped to 0 to 1, or None if nothing varies."""
    return min(1.0, max(0.0, value)) if math.isfinite(value) else None
