"""Whether a running trial is worth finishing: its last loss against those of the others at the same step.

Asked after each heartbeat, where the space has `early_terminate`. Ax decides, in `search.optimizer`,
and is imported only once enough other trials have come as far. The same records give the same answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from sweeps.space.definition import Space
from sweeps.trials.record import Trial

Curve = tuple[tuple[float, float], ...]
"""Losses as (step, loss), by ascending step."""

_COMPARED = ("completed", "early_stopped", "running")
"""Whose losses count. Those of failed trials are garbage, those of pending ones will be run again."""


def should_stop(space: Space, record: Trial, records: Sequence[Trial]) -> str | None:
    """Why the running trial should be stopped, in one line; None where it should go on.

    Never before `min_step`, and never before `min_trials` others have come as far and as many are completed.
    The logged loss is what counts, whatever the objective: lower is better.

    Args:
        record: the trial as its last heartbeat left it.
        records: all trials of the sweep; that of the judged one may be older, and is not looked at.
    """
    early = space.early_terminate
    if early is None or not record.curve:
        return None
    step, loss = record.curve[-1]
    others = [r for r in records if r.trial != record.trial and r.status in _COMPARED and r.curve]
    as_far = sum(other.curve[0][0] <= step <= other.curve[-1][0] for other in others)
    completed = {other.trial for other in others if other.status == "completed"}
    if step < early.min_step or min(as_far, len(completed)) < early.min_trials:
        return None
    from sweeps.search.optimizer import falls_behind

    curves = {other.trial: _around(other.curve, step) for other in others}
    if not falls_behind(early, record.trial, curves | {record.trial: ((step, loss),)}, completed):
        return None
    return (
        f"loss {loss:.5g} at step {step:g} is among the worst {early.percentile:g} % "
        f"of {as_far + 1} trials that have come as far"
    )


def _around(curve: Curve, step: float) -> Curve:
    """The points on both sides of a step, or the one there: all that Ax needs to interpolate the loss.

    Of a hundred whole curves it would make a table of some thousand steps, at every heartbeat.
    """
    after = bisect_left(curve, (step,))
    if after < len(curve) and curve[after][0] == step:
        return curve[after : after + 1]
    return curve[max(0, after - 1) : after + 1]
