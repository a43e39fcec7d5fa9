"""Choice of the trials that `sweep confirm` runs again: the best by posterior mean, not by luck."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from sweeps.errors import SpaceError
from sweeps.search.confirm.plan import Finalist
from sweeps.space.definition import Space
from sweeps.space.domain import REPEAT_KEYS, Domain
from sweeps.space.fidelity import is_at_target
from sweeps.trials.objectives import numbers, within_constraints
from sweeps.trials.record import Trial

LEAST = 4
"""Results to which a surrogate can be fitted."""

Numbers = Mapping[str, float]
"""Value of each metric."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Finalists, the best first, and why no surrogate chose them ("" if one did)."""

    finalists: tuple[Finalist, ...]
    note: str = ""


def choose(
    space: Space, records: Sequence[Trial], *, metric: str, top: int, seed_name: str, within: Numbers
) -> Chosen:
    """Return the best completed configurations, at most `top`.

    Trials that differ in the seed alone are one configuration; the best of them stands for it, as it would in
    `sweep best`. A configuration counts if its posterior means obey the outcome constraints, and its observed
    metrics are `within`. Without a surrogate, averages over its trials replace the posterior means.

    Args:
        records: all of them, in index order.
        within: greatest value of each of these metrics.
    """
    sign = next(objective.sign for objective in space.objectives if objective.metric == metric)
    done = [
        r
        for r in records
        if r.status == "completed" and r.metrics.get(metric) is not None and is_at_target(space, r.parameters)
    ]
    predicted, note = _predictions(space, records)
    is_within = within_constraints(space)
    ranked: list[tuple[float, Finalist]] = []
    for alike in _configurations(space, done, seed_name):
        searched = [record for record in alike if record.generator != "confirm"]
        several = [predicted[r.trial] for r in alike if r.trial in predicted] or [
            numbers(r.metrics) for r in alike
        ]
        means = {  # of every metric that all of them have
            name: statistics.fmean(each[name] for each in several)
            for name in set(several[0]).intersection(*several)
        }
        if not searched or (predicted and not any(r.trial in predicted for r in alike)):
            continue
        record = min(searched, key=lambda r: (sign * numbers(r.metrics)[metric], r.trial))
        known = numbers(record.metrics) | means
        if is_within(known) and all(
            numbers(record.metrics).get(name, math.inf) <= most for name, most in within.items()
        ):
            finalist = Finalist(
                trial=record.trial,
                parameters=MappingProxyType(dict(record.parameters)),
                first=numbers(record.metrics)[metric],
                predicted=means[metric] if predicted else None,
            )
            ranked.append((sign * means[metric], finalist))
    ranked.sort(key=lambda pair: (pair[0], pair[1].trial))
    return Chosen(finalists=tuple(finalist for _, finalist in ranked[:top]), note=note)


def _configurations(space: Space, records: Sequence[Trial], seed_name: str) -> list[list[Trial]]:
    """Return the records by configuration, in the order of their first ones."""
    domain = Domain(space)
    found: dict[Hashable, list[Trial]] = {}
    for record in records:
        parameters = domain.configuration(record.parameters, repeat=record.generator == "confirm")
        kept = {name: v for name, v in parameters.items() if name not in (seed_name, *REPEAT_KEYS)}
        found.setdefault(domain.identity(kept), []).append(record)
    return list(found.values())


def _predictions(space: Space, records: Sequence[Trial]) -> tuple[dict[int, dict[str, float]], str]:
    """Return the posterior means of every metric by trial, and why there are none, or ""."""
    results = sum(r.status == "completed" and is_at_target(space, r.parameters) for r in records)
    if results < LEAST:
        return {}, f"{results} results are too few for a surrogate"
    if not Domain(space).searched:
        return {}, "no parameter was searched"
    from sweeps.search.optimizer import SURROGATE_FAILURES, Optimizer

    try:
        optimizer = Optimizer(space)
        optimizer.observe(records)
        points = optimizer.points()
        found = optimizer.view().predict(list(points.values()))
    except (*SURROGATE_FAILURES, SpaceError) as error:
        return {}, f"the surrogate failed: {' '.join(str(error).split())[:200]}"
    return {
        trial: {metric: values[at][0] for metric, values in found.items()} for at, trial in enumerate(points)
    }, ""
