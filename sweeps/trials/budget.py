"""Costs of a sweep and its budget. Pure.

A running trial counts as the average of the completed ones, or as its cost so far if that is more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from sweeps.space.definition import Budget
from sweeps.trials.record import Trial


def spent(records: Sequence[Trial], now: float) -> Budget:
    """Return the costs of the trials, with estimates for running ones and without imported ones.

    Args:
        records: all trials of the sweep.
        now: the store's time, in seconds since the epoch.
    """
    own = [record for record in records if record.generator != "imported"]
    first = min((record.created for record in own), default=now)
    return Budget(
        effective_steps=_total(own, lambda record: record.metrics.get("effective_steps") or 0.0),
        device_hours=_total(own, lambda record: _seconds(record, now) / 3600),
        usd=_total(own, lambda record: record.metrics.get("usd") or 0.0),
        wall_hours=max(0.0, now - first) / 3600,
    )


def exceeded(budget: Budget, records: Sequence[Trial], now: float) -> str:
    """Return which limit is reached, in a few words; "" while none is."""
    limits = {name: limit for name, limit in asdict(budget).items() if limit is not None}
    if not limits:  # the usual case, checked first because this runs for every trial
        return ""
    costs = asdict(spent(records, now))
    for name, limit in limits.items():
        if costs[name] >= limit:
            return f"{costs[name]:.5g} of {limit:.5g} {name} are spent, running trials included"
    return ""


def _total(records: Sequence[Trial], cost: Callable[[Trial], float]) -> float:
    completed = [cost(record) for record in records if record.status == "completed"]
    mean = sum(completed) / len(completed) if completed else 0.0

    def estimate(record: Trial) -> float:
        if record.status == "running":
            return max(mean, cost(record))
        if record.status == "early_stopped":  # without a report, only its progress is known
            done = record.progress.get("done")
            return cost(record) or mean * (float(done) if isinstance(done, int | float) else 1.0)
        return cost(record)

    return sum(estimate(record) for record in records)


def _seconds(record: Trial, now: float) -> float:
    """Return the seconds for which all attempts have held a device."""
    past = sum(max(0.0, attempt.end - attempt.start) for attempt in record.history)
    if record.status == "running" and record.started is not None:
        past += max(0.0, now - record.started)
    return past
