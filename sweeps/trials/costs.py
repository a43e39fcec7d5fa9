"""Nominal and paid costs of trials. Pure.

The nominal cost of a trial is that of computing all of its stages; it belongs to the configuration. Paid is
what the trial computed itself: what another trial's checkpoint has saved was paid for by that trial. Costs
are in the unit of the sweep's `stages`, which is effective steps for the trainer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

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


@dataclass(frozen=True)
class Measure:
    """A measure of cost.

    Args:
        reported: nominal cost of a trial, in which a reused stage counts as if computed; 0 if unknown.
        of_stage: the same of one stage; 0 if unknown.
    """

    reported: Callable[[Trial], float]
    of_stage: Callable[[StageRun], float]

    def sum(self, stages: Iterable[StageRun]) -> float:
        """Return the cost of the stages."""
        return math.fsum(self.of_stage(stage) for stage in stages)

    def reused(self, record: Trial) -> float:
        """Return the cost of what other trials have computed of the ended stages."""
        return self.sum(reused(record)) + math.fsum(
            self.of_stage(stage) * stage.saved / stage.cost for stage in branched(record) if stage.cost
        )

    def reused_of_unfinished(self, record: Trial) -> float:
        """Return the cost of what other trials have computed of the stage that runs."""
        ended = {stage.name for stage in record.stages}
        return self.sum(
            point
            for point in record.points
            if point.reused_from not in (None, record.trial) and point.name not in ended
        )

    def nominal(self, record: Trial) -> float:
        """Return what the trial reports, or else the cost of the stages that it has ended."""
        return self.reported(record) or self.sum(record.stages)

    def paid(self, record: Trial) -> float:
        """Return the nominal cost without what other trials have computed."""
        return max(0.0, self.nominal(record) - self.reused(record))


_COST = Measure(lambda record: 0.0, lambda stage: stage.cost)


def estimator(completed: Sequence[Trial], measure: Measure) -> Callable[[Trial], tuple[float, float]]:
    """Return the function of the nominal and the paid cost of a trial that runs, or was stopped, in a stage.

    The stages that it has not ended count as the completed trials' on average; of one that was stopped early,
    the share that it has done, which is all that is known of it without a report.
    """

    @cache
    def rest(ended: frozenset[str]) -> float:
        """Return the mean cost of the other stages; few trials differ in which they have ended."""
        return mean(
            max(0.0, measure.nominal(other) - measure.sum(s for s in other.stages if s.name in ended))
            for other in completed
            if ended <= {stage.name for stage in other.stages}
        )

    def estimate(record: Trial) -> tuple[float, float]:
        done = record.progress.get("done")
        share = float(done) if isinstance(done, int | float) and record.status != "running" else 1.0
        ended = frozenset(stage.name for stage in record.stages)
        full = share * (measure.sum(record.stages) + rest(ended))
        paid_here = full - measure.reused(record) - measure.reused_of_unfinished(record)
        return max(measure.nominal(record), full), max(measure.paid(record), paid_here)

    return estimate


def early_stopped_costs(records: Sequence[Trial]) -> dict[int, tuple[float, float]]:
    """Return the nominal and the paid cost of the trials that were stopped early, by their index.

    A share of the stages that they have not ended is in them. Left out are those that report their effective
    steps; and all, until a trial with stages has completed.
    """
    own = [each for each in records if not each.is_imported]
    completed = [each for each in own if each.status == "completed" and each.stages]
    if not completed:
        return {}
    estimate = estimator(completed, _COST)
    return {
        each.trial: estimate(each)
        for each in own
        if each.status == "early_stopped" and not each.metrics.get(STEPS)
    }


def paid_by_trial(records: Sequence[Trial]) -> dict[int, float | None]:
    """Return by index what each trial has paid, with a share of an unended stage if it was stopped early."""
    stopped = {trial: both[1] for trial, both in early_stopped_costs(records).items()}
    return {each.trial: stopped.get(each.trial, paid(each)) for each in records}


def mean(values: Iterable[float]) -> float:
    """Return the mean; 0 of none."""
    known = list(values)
    return math.fsum(known) / len(known) if known else 0.0


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
    own = [record for record in records if not record.is_imported]
    count = sum(len(reused(record)) for record in own)
    branches = [stage for record in own for stage in branched(record)]
    if not count and not branches:
        return None
    rate = steps_per_cost(own)
    stopped = early_stopped_costs(own)
    costs = [stopped[each.trial] if each.trial in stopped else _costs(each, rate) for each in own]
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
