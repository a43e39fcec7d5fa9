"""Nominal and paid costs of trials. Pure.

The nominal cost of a trial is that of computing all of its stages; it belongs to the configuration. Paid is
what the trial computed itself: what another trial's checkpoint has saved was paid for by that trial. Costs
are in the unit of the sweep's `stages`, which is effective steps for the trainer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

STEPS = "effective_steps"
"""Metric that stands for the cost of a completed trial whose record has no stages."""


def reused(record: Trial) -> tuple[StageRun, ...]:
    """Return the stages that another trial has computed.

    A checkpoint of the trial's own, from an earlier attempt, was paid for by this trial.
    """
    return tuple(stage for stage in record.stages if stage.reused_from not in (None, record.trial))


def branched(record: Trial) -> tuple[StageRun, ...]:
    """Return the stages whose beginning another trial has computed: this trial branched off its trunk.

    A checkpoint of the trial's own, from an earlier attempt, was paid for by this trial.
    """
    return tuple(stage for stage in computed(record) if stage.branched_from not in (None, record.trial))


def nominal(record: Trial) -> float | None:
    """Return the cost of the stages that have ended, as if each had been computed; None without any."""
    return math.fsum(stage.cost for stage in record.stages) if record.stages else None


def paid(record: Trial) -> float | None:
    """Return the cost of what this trial computed of the stages that have ended; None without any."""
    if not record.stages:
        return None
    return math.fsum(
        stage.cost - (0.0 if stage.branched_from in (None, record.trial) else stage.saved)
        for stage in computed(record)
    )


def computed(record: Trial) -> tuple[StageRun, ...]:
    """Return the stages that this trial computed."""
    return tuple(stage for stage in record.stages if stage.reused_from in (None, record.trial))


def steps_per_cost(records: Sequence[Trial]) -> float | None:
    """Return the effective steps of one unit of cost, by the completed trials that report both.

    It is 1 for the trainer. None: nothing is known of it.
    """
    both = [
        (steps, cost)
        for record in records
        if record.status == "completed"
        and (steps := record.metrics.get(STEPS)) is not None
        and (cost := nominal(record)) is not None
    ]
    total = math.fsum(cost for _, cost in both)
    return math.fsum(steps for steps, _ in both) / total if total > 0 else None


@dataclass(frozen=True, kw_only=True)
class Compute:
    """The costs of a sweep's own trials so far.

    Args:
        nominal: of all stages that have ended.
        paid: of those that were computed.
        reused: number of stages that were not.
        branched: number of those that trials began at a point of another's trunk.
        branch_saved: cost that these trials did not pay.
        unit: of the costs in words; "" if unknown.
    """

    nominal: float
    paid: float
    reused: int
    branched: int = 0
    branch_saved: float = 0.0
    unit: str = ""

    @property
    def saved(self) -> float:
        """Return the share of the nominal cost that was not paid, 0 to 1."""
        return 1 - self.paid / self.nominal if self.nominal > 0 else 0.0


def compute(records: Sequence[Trial]) -> Compute | None:
    """Return the costs of the sweep so far; None unless some stage, or the beginning of one, was shared.

    Imported trials were paid for elsewhere. A trial whose record has no stages counts the effective steps
    that it reports; running and failed trials count the stages that have ended. One that was stopped early
    counts a share of the next ones too, as for budgets: else sharing seems to save all of its cost.
    """
    own = [record for record in records if record.generator != "imported"]
    count = sum(len(reused(record)) for record in own)
    branches = [stage for record in own for stage in branched(record)]
    if not count and not branches:
        return None
    rate = steps_per_cost(own)
    completed = [record for record in own if record.status == "completed"]
    costs = [
        _costs_until_stop(record, completed)
        if record.status == "early_stopped" and not record.metrics.get(STEPS)
        else _costs(record, rate)
        for record in own
    ]
    return Compute(
        nominal=math.fsum(cost for cost, _ in costs),
        paid=math.fsum(cost for _, cost in costs),
        reused=count,
        branched=len(branches),
        branch_saved=math.fsum(stage.saved for stage in branches),
        unit="effective steps" if rate is not None and abs(rate - 1) < 1e-9 else "",
    )


def _costs(record: Trial, rate: float | None) -> tuple[float, float]:
    """Return nominal and paid cost of a trial, 0 where they are not known."""
    if record.stages:
        return nominal(record) or 0.0, paid(record) or 0.0
    steps = record.metrics.get(STEPS)
    cost = steps / rate if steps is not None and rate else 0.0
    return cost, cost


def _costs_until_stop(record: Trial, completed: Sequence[Trial]) -> tuple[float, float]:
    """Return nominal and paid cost of a trial that was stopped early, whose record has ended stages alone."""
    ended = {stage.name for stage in record.stages}
    rests = [
        math.fsum(stage.cost for stage in other.stages if stage.name not in ended)
        for other in completed
        if other.stages and ended <= {stage.name for stage in other.stages}
    ]
    known, own = nominal(record) or 0.0, paid(record) or 0.0
    done = record.progress.get("done")
    share = float(done) if isinstance(done, int | float) else 1.0
    cost = max(known, share * (known + (math.fsum(rests) / len(rests) if rests else 0.0)))
    branch = math.fsum(
        point.cost
        for point in record.points
        if point.reused_from not in (None, record.trial) and point.name not in ended
    )
    return cost, max(own, own + cost - known - branch)
