"""Results of trials beside the objectives and the outcome constraints of their sweep. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from sweeps.space.constraints import parse
from sweeps.space.definition import Objective, Space
from sweeps.trials.record import Trial


def costs(objectives: Sequence[Objective], record: Trial) -> tuple[float, ...] | None:
    """Return the objectives of a trial, lower is better; None if one is missing or not finite."""
    values = [record.metrics.get(each.metric) for each in objectives]
    found = [
        each.sign * value
        for each, value in zip(objectives, values, strict=True)
        if value is not None and math.isfinite(value)
    ]
    return tuple(found) if len(found) == len(objectives) else None


def within_constraints(space: Space) -> Callable[[Mapping[str, float | None]], bool]:
    """Return whether metrics are within the outcome constraints, as a function; a missing one is not."""
    bounds = [parse(text) for text in space.outcome_constraints]
    return lambda metrics: not bounds or all(bound.holds(numbers(metrics)) for bound in bounds)


def common_means(runs: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """Return the mean of each metric that has a value in all runs, of which there is at least one."""
    known = [numbers(metrics) for metrics in runs]
    return {name: statistics.fmean(run[name] for run in known) for name in set(known[0]).intersection(*known)}


def numbers(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Return the metrics that have a value."""
    return {name: float(value) for name, value in metrics.items() if value is not None}
