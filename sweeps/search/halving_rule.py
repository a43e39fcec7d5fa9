"""The rule `early_terminate: {type: hyperband}`: asynchronous successive halving, by stopping. Pure.

Li et al., "A System for Massively Parallel Hyperparameter Tuning" (arXiv:1810.05934), as W&B and Ray Tune
have it: at the steps r, rη, rη², … a trial goes on only among the best 1/η of those that have come as far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sweeps.search.curve_rule import EarlyStop
from sweeps.space.definition import EarlyTerminate
from sweeps.trials.record import Trial


def judge_rung(early: EarlyTerminate, record: Trial, others: Sequence[Trial]) -> EarlyStop | None:
    """Return why the trial is not among the best 1/η at the last rung that it has reached, or None.

    Args:
        early: the first rung, η, and how many others must be completed and have come as far.
        record: the running trial; its curve has a point.
        others: trials with a curve of the same kind.
    """
    last, rung = record.curve[-1][0], max(early.min_step, 1.0)
    while rung * early.eta <= last:
        rung *= early.eta
    if not _reaches(record, rung):
        return None
    as_far = [other for other in others if _reaches(other, rung)]
    completed = sum(other.status == "completed" for other in others)
    if min(len(as_far), completed) < early.min_trials:
        return None
    own, losses = _loss(record, rung), [_loss(other, rung) for other in as_far]
    ranked = sorted([own, *losses])
    limit = ranked[math.ceil(len(ranked) / early.eta) - 1]
    if not own > limit:  # neither where a loss is NaN
        return None
    return EarlyStop(
        reason=f"loss {own:.5g} at step {rung:g} is not among the best 1/{early.eta:g} "
        f"of {len(as_far) + 1} trials that reached this step"
    )


def _reaches(record: Trial, step: float) -> bool:
    return record.curve[0][0] <= step <= record.curve[-1][0]


def _loss(record: Trial, step: float) -> float:
    steps, losses = zip(*record.curve, strict=True)
    return float(np.interp(step, steps, losses))
