"""Costs of a sweep and its budget. Pure.

A stage that starts from another trial's checkpoint is charged to that trial until there, once. A running
trial counts as the average of the completed ones, or as its cost so far if that is more; after a finished or
reused part, as its actual cost plus the average of the remaining stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict

from sweeps.space.definition import Budget, Space
from sweeps.space.fidelity import is_at_target
from sweeps.text.shorten import timestamp
from sweeps.trials import costs
from sweeps.trials.costs import Measure
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

REPORTED = (costs.STEPS, "usd")
"""Limits on what the trials themselves report, as metrics of these names."""


def run_cap_count(space: Space, records: Iterable[Trial]) -> int:
    """Return how many trials the run cap counts: the sweep's own, at the target of its fidelities."""
    return sum(record.is_own and is_at_target(space, record.parameters) for record in records)


def spent(space: Space, records: Sequence[Trial], now: float) -> Budget:
    """Return the costs of the trials, with estimates for running ones and without imported ones."""
    own = [record for record in records if not record.is_imported]
    first = min((record.created for record in own), default=now)
    steps_per_cost = costs.steps_per_cost(own) or 0.0
    steps = Measure(_metric(costs.STEPS), lambda stage: steps_per_cost * stage.cost)
    return Budget(
        effective_steps=_total(own, steps),
        device_hours=space.program.devices_per_host
        * _total(
            own, Measure(lambda record: _nominal_hours(space, record, now), _hours), lambda own: own.nodes
        ),
        usd=_total(own, Measure(_metric("usd"), lambda stage: stage.usd or 0.0)),
        wall_hours=max(0.0, now - first) / 3600,
    )


def reached_limit(space: Space, records: Sequence[Trial], now: float) -> str:
    """Return which limit of the space's budget is reached, in a few words; "" while none is."""
    limits, until = amounts(space.budget), space.budget.until
    if until is not None and now >= until:
        return f"no trial is begun after {timestamp(until)}"
    if not limits:  # the usual case, checked first because this runs for every trial
        return ""
    used = asdict(spent(space, records, now))
    for name, limit in limits.items():
        if used[name] >= limit:
            return f"{used[name]:.5g} of {limit:.5g} {name} are spent, running trials included"
    return ""


def amounts(budget: Budget) -> dict[str, float]:
    """Return the limits that are set, by name, without the time `until`."""
    return {name: limit for name, limit in asdict(budget).items() if limit is not None and name != "until"}


def unreported(space: Space, records: Sequence[Trial]) -> tuple[str, ...]:
    """Return the limits that can never be reached: no completed trial reports the metric that they count.

    Empty before a trial of the sweep's own has completed.
    """
    done = [record for record in records if record.status == "completed" and not record.is_imported]
    limits, used = amounts(space.budget), asdict(spent(space, done, 0.0))
    return tuple(name for name in REPORTED if done and name in limits and not used[name])


def _total(
    records: Sequence[Trial], measure: Measure, times: Callable[[Trial], int] = lambda record: 1
) -> float:
    """Return what all trials have paid, each `times` over, with estimates where that is not known yet."""
    completed = [record for record in records if record.status == "completed"]
    mean = costs.mean(measure.paid(record) for record in completed)
    cost = costs.estimator(completed, measure)

    def estimate(record: Trial) -> float:
        paid = measure.paid(record)
        is_running = record.status == "running"
        if is_running and not record.stages and not measure.reused_of_unfinished(record):
            return max(mean, paid)
        if not is_running and (record.status != "early_stopped" or measure.reported(record)):
            return paid
        return cost(record)[1]

    return math.fsum(times(record) * estimate(record) for record in records)


def _metric(name: str) -> Callable[[Trial], float]:
    return lambda record: record.metrics.get(name) or 0.0


def _hours(stage: StageRun) -> float:
    return (stage.seconds or 0.0) / 3600


def _nominal_hours(space: Space, record: Trial, now: float) -> float:
    """Return the hours of all attempts, plus those that other trials' stages saved.

    Of a worker that is silent, it counts no more than the time after which another would take the trial over.
    """
    past = math.fsum(max(0.0, attempt.end - attempt.start) for attempt in record.history)
    if record.status == "running" and record.started is not None:
        until = now if record.heartbeat is None else min(now, record.heartbeat + space.lease.expire_s)
        past += max(0.0, until - record.started)
    return past / 3600 + Measure(lambda record: 0.0, _hours).reused(record)
