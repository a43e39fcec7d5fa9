"""What a sweep has spent of its budget, pure: records in, numbers out.

`experiment` asks before a trial is handed out, `sweep status` shows it. What is running counts as what a
finished trial has cost on average, or as what it has cost so far if that is more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from sweeps.space.definition import Budget
from sweeps.trials.record import Trial


def spent(records: Sequence[Trial], now: float) -> Budget:
    """What the trials have cost, imported ones left out, running ones estimated.

    Args:
        now: the store's time in seconds.
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
    """Which limit is reached, in a few words; "" while there is something left."""
    limits = {name: limit for name, limit in asdict(budget).items() if limit is not None}
    if not limits:  # each ask comes by here, with all records
        return ""
    costs = asdict(spent(records, now))
    for name, limit in limits.items():
        if costs[name] >= limit:
            return f"{costs[name]:.5g} of {limit:.5g} {name} are spent, running trials included"
    return ""


def _total(records: Sequence[Trial], cost: Callable[[Trial], float]) -> float:
    completed = [cost(record) for record in records if record.status == "completed"]
    usual = sum(completed) / len(completed) if completed else 0.0

    def estimate(record: Trial) -> float:
        if record.status == "running":
            return max(usual, cost(record))
        if record.status == "early_stopped":  # it reported nothing; how far it came is what is known
            done = record.progress.get("done")
            return cost(record) or usual * (float(done) if isinstance(done, int | float) else 1.0)
        return cost(record)

    return sum(estimate(record) for record in records)


def _seconds(record: Trial, now: float) -> float:
    """How long all attempts have held a device, in seconds."""
    past = sum(max(0.0, attempt.end - attempt.start) for attempt in record.history)
    if record.status == "running" and record.started is not None:
        past += max(0.0, now - record.started)
    return past
