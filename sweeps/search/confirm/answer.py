"""Answer of a confirmation: the winner, its interval, its chance and its luck."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sweeps.search.confirm.plan import Finalist, Plan
from sweeps.search.confirm.rounds import Standing, losses, outside_constraints
from sweeps.space.definition import Space
from sweeps.trials.record import has_failed

LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Row:
    """One finalist after its repeats; numbers are of the metric itself, whatever its goal.

    Args:
        mean: posterior mean of its metric on the selection text; None without a result.
        test: average on the test text; None if no repeat reported it.
        chance: probability that it is the best of the finalists.
        left: why it left the race, or cannot be the winner; "" for all others.
    """

    finalist: Finalist
    seeds: int
    mean: float | None
    test: float | None
    chance: float
    left: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Winner of a confirmation.

    Args:
        rows: of all finalists, the likeliest best first.
        metric: the metric that `mean`, `low` and `high` are of.
        on_test: whether that was measured on the test text.
        mean: posterior mean of the winner's metric over seeds.
        low, high: 95 % interval of that.
        luck: how much better the winner's first number was than its mean; negative: worse.
        equal: whether all repeats of the winner have the same result, as if the seed changed nothing.
    """

    winner: Row
    rows: tuple[Row, ...]
    metric: str
    on_test: bool
    mean: float
    low: float
    high: float
    luck: float
    equal: bool


def answer(space: Space, plan: Plan, standing: Standing) -> Answer | None:
    """Return what the repeats so far say; None if no finalist has a result.

    A finalist that failed with a fresh seed, or whose means are outside of the outcome constraints, cannot be
    the winner.
    """
    from sweeps.search.confirm import posterior  # scipy

    failed = {trial for (trial, _), record in standing.records.items() if has_failed(record)}
    outside = outside_constraints(space, standing.records)
    sound = {key: record for key, record in standing.records.items() if key[0] not in failed | outside}
    selection = {t: found for t, found in losses(plan, sound, plan.metric).items() if found}
    if not selection:
        return None
    test = losses(plan, sound, plan.test_metric)
    averages = {t: plan.sign * math.fsum(by.values()) / len(by) for t, by in test.items() if by}
    first = {finalist.trial: plan.sign * finalist.first for finalist in plan.finalists}
    found = posterior.estimate(selection, test, first, level=LEVEL)
    left = dict.fromkeys(outside, "its means are outside of the outcome constraints") | dict(standing.left)
    left.pop(found.winner, None)
    rows = [
        Row(
            finalist=finalist,
            seeds=len(selection.get(finalist.trial, ())),
            mean=plan.sign * found.means[finalist.trial] if finalist.trial in found.means else None,
            test=averages.get(finalist.trial),
            chance=found.chances.get(finalist.trial, 0.0),
            left=left.get(finalist.trial, ""),
        )
        for finalist in plan.finalists
    ]
    rows.sort(key=lambda row: (row.finalist.trial != found.winner, -row.chance))
    ends = sorted((plan.sign * found.low, plan.sign * found.high))
    of_winner = selection[found.winner]
    return Answer(
        winner=rows[0],
        rows=tuple(rows),
        metric=plan.test_metric if found.on_test else plan.metric,
        on_test=found.on_test,
        mean=plan.sign * found.mean,
        low=ends[0],
        high=ends[1],
        luck=-(found.luck or 0.0),
        equal=len(of_winner) > 1 and len(set(of_winner.values())) == 1,
    )
