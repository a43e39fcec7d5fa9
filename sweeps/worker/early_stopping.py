"""Early stopping: compares a running trial's losses with those of other trials.

Runs after each heartbeat if the space has `early_terminate`. By `percentile` Ax decides, in
`search.optimizer`, and is imported only once enough other trials have reached the step; by `hyperband`
`search.halving_rule`, and by `curve` `search.curve_rule`, without Ax. The same records give the same answer.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from sweeps.search.curve_rule import EarlyStop, judge
from sweeps.search.halving_rule import judge_rung
from sweeps.search.outcomes import Outcomes, cost_metric
from sweeps.space.definition import EarlyTerminate, Space
from sweeps.space.stages import Stages
from sweeps.trials.objectives import within_constraints
from sweeps.trials.record import Trial

Curve = tuple[tuple[float, float], ...]
"""Losses as (step, loss), by ascending step."""

_COMPARED = ("completed", "early_stopped", "running")
"""Statuses of trials whose losses count: failed trials' are meaningless, pending trials will run again."""


def should_stop(
    space: Space, record: Trial, records: Sequence[Trial], not_finite: float | None = None
) -> EarlyStop | None:
    """Return why the running trial should be stopped, or None.

    No trial stops before `min_step`, before `min_trials` others have reached the step, or before that many
    are completed; repeats of a confirmation are none of them. By `percentile` and `hyperband` the logged loss
    decides, whatever the objective: lower is better. By any rule a loss that is not finite is the worst, as
    for Optuna's pruners.

    Args:
        record: the trial after its last heartbeat.
        records: all trials of the sweep; the entry of the trial itself may be outdated and is ignored.
        not_finite: the step of its last loss, if that is NaN or infinite. Curves have finite losses only.
    """
    early = space.early_terminate
    if early is None or (not record.curve and not_finite is None):
        return None
    # Repeats of a confirmation are copies of the best trials. Hardly a new one would be among the best third
    # of all; `curve` would aim at the luckiest, and its leave-one-out errors would be those of a seed alone.
    search = [r for r in records if r.trial != record.trial and r.generator != "confirm"]
    others = [  # whose losses count, and are of the same kind and stage
        r for r in search if r.status in _COMPARED and r.curve and r.curve_of == record.curve_of
    ]
    if not_finite is not None:
        as_far = _enough_as_far(early, not_finite, others)
        if as_far is None:
            return None
        return EarlyStop(
            reason=f"loss is not finite at step {not_finite:g}, which is the worst "
            f"of {as_far + 1} trials that reached this step"
        )
    if early.type == "curve":
        return judge(space, early, record, others, search)
    rivals = _rivals(space, record, others, records)
    if early.type == "hyperband":
        return judge_rung(early, record, rivals)
    return _by_percentile(early, record, rivals)


def _rivals(
    space: Space, record: Trial, others: Sequence[Trial], records: Sequence[Trial]
) -> Sequence[Trial]:
    """Return the trials that the record must keep up with; none if they are not known.

    Completed ones outside of the outcome constraints are not: whatever their loss, none can be the best.
    Of two objectives the other one must be the cost of the stages: then a trial is compared with those that
    cost no more. Where it has the lowest loss of them, it may be on the front.
    """
    is_within = within_constraints(space)
    others = [other for other in others if other.status != "completed" or is_within(other.metrics)]
    if len(space.objectives) == 1:
        return others
    stages = Stages(space)
    if cost_metric(stages, Outcomes(space), records) is None:
        return []
    own = _cost(stages, record)
    return [other for other in others if _cost(stages, other) <= own]


def _cost(stages: Stages, record: Trial) -> float:
    """Return the cost of all of a trial's stages; NaN, which compares with none, if it is not known."""
    costs = stages.costs(record.parameters)
    return math.nan if costs is None else math.fsum(costs.values())


def _by_percentile(early: EarlyTerminate, record: Trial, others: Sequence[Trial]) -> EarlyStop | None:
    """Return why the trial is among the worst at its last step, or None."""
    step, loss = record.curve[-1]
    as_far = _enough_as_far(early, step, others)
    if as_far is None:
        return None
    completed = {other.trial for other in others if other.status == "completed"}
    from sweeps.search.optimizer import falls_behind

    curves = {other.trial: _points_around(other.curve, step) for other in others}
    if not falls_behind(early, record.trial, curves | {record.trial: ((step, loss),)}, completed):
        return None
    return EarlyStop(
        reason=f"loss {loss:.5g} at step {step:g} is among the worst {early.percentile:g} % "
        f"of {as_far + 1} trials that reached this step"
    )


def _enough_as_far(early: EarlyTerminate, step: float, others: Sequence[Trial]) -> int | None:
    """Return how many others have reached a step, or None where it is too early to judge a trial there."""
    as_far = sum(other.curve[0][0] <= step <= other.curve[-1][0] for other in others)
    completed = sum(other.status == "completed" for other in others)
    return None if step < early.min_step or min(as_far, completed) < early.min_trials else as_far


def _points_around(curve: Curve, step: float) -> Curve:
    """Return the point at a step, or those on both sides of it: all that Ax needs to interpolate the loss.

    From a hundred complete curves it would build a table of thousands of steps at every heartbeat.
    """
    after = bisect_left(curve, (step,))
    if after < len(curve) and curve[after][0] == step:
        return curve[after : after + 1]
    return curve[max(0, after - 1) : after + 1]
