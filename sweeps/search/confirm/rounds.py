"""Rounds of a confirmation: who is still in the race, and which repeat runs next. Pure.

`search.allocation` makes the repeats that are due. A round is one seed for every finalist that can still win.
Rounds 1 and 2 run at once, because nothing can be tested before them, and so do all rounds of the last
finalist that is left: its interval rests on every planned seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sweeps.search.confirm.plan import Plan, stored_plan
from sweeps.space.definition import Space
from sweeps.storage.base import Store
from sweeps.trials.objectives import common_means, within_constraints
from sweeps.trials.record import Trial, has_failed

Losses = dict[int, dict[int, float]]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """State of a confirmation after the records.

    Args:
        round: the round that runs now, from 1; the last one that ran once it is finished.
        racing: the finalists that can still win, in the plan's order.
        left: why each other finalist left, as a clause.
        due: finalist and seed of every repeat that should run and has no record.
        open: records of the repeats that have not ended.
        finished: whether nothing is due or open, and nothing will be.
        why: why it is finished before the last round, as a clause; else "".
        records: of all repeats, by finalist and seed.
    """

    round: int
    racing: tuple[int, ...]
    left: Mapping[int, str]
    due: tuple[tuple[int, int], ...] = ()
    open: tuple[Trial, ...] = ()
    finished: bool = False
    why: str = ""
    records: Mapping[tuple[int, int], Trial] = field(default_factory=dict)


def of_store(store: Store, space: Space, records: list[Trial]) -> tuple[Plan, Standing] | None:
    """Return the sweep's plan and its state; None if nothing is to be confirmed. Raises `DamagedObject`."""
    stored = stored_plan(store)
    return None if stored is None else (stored[0], standing(space, stored[0], records))


def standing(space: Space, plan: Plan, records: list[Trial]) -> Standing:
    """Return the state of the confirmation. All rounds are judged anew, each by the results until then.

    But those whose means over all results are outside of the outcome constraints push nobody out of any: they
    cannot win. They stay in the race, as a further seed may bring them within.
    """
    repeats = plan.repeats(records)
    left: dict[int, str] = {}
    for (trial, seed), record in repeats.items():
        if has_failed(record):
            left.setdefault(trial, f"failed with seed {seed} (trial {record.trial})")
    # Whoever failed cannot win, however good its other repeats: nobody leaves because of them.
    failed = frozenset(left)
    unfinished = tuple(r for (trial, _), r in repeats.items() if trial in failed and not r.finished)
    racing = tuple(finalist.trial for finalist in plan.finalists if finalist.trial not in failed)
    outside = outside_constraints(space, repeats)
    begun = 0  # rounds
    why = ""
    while racing and begun < len(plan.seeds):
        block = _block(plan, racing, begun, repeats)
        due = tuple(key for key in block if key not in repeats)
        if not block or (plan.trials is not None and due and len(repeats) + len(due) > plan.trials):
            why = f"the next round would exceed the budget of {plan.trials} repeats"
            break
        begun = plan.seeds.index(block[-1][1]) + 1
        running = tuple(repeats[key] for key in block if key in repeats and not repeats[key].finished)
        if due or running:
            running += unfinished
            return Standing(round=begun, racing=racing, left=left, due=due, open=running, records=repeats)
        if len(racing) > 1:
            from sweeps.search.confirm import (
                race,  # scipy, which a sweep without a confirmation need not load
            )

            judged = {key: record for key, record in repeats.items() if key[1] in plan.seeds[:begun]}
            results = losses(plan, judged, plan.metric)
            results = {trial: runs for trial, runs in results.items() if trial not in failed}
            staying = race.remaining(
                results, seeds=len(plan.seeds), error_rate=plan.error_rate, cannot_win=outside
            )
            left |= {t: f"could not win any more after round {begun}" for t in racing if t not in staying}
            racing = tuple(trial for trial in racing if trial in staying)
    if unfinished:
        return Standing(round=begun, racing=racing, left=left, open=unfinished, records=repeats)
    if not racing:
        why = "no finalist is left"
    return Standing(round=begun, racing=racing, left=left, finished=True, why=why, records=repeats)


def outside_constraints(space: Space, repeats: Mapping[tuple[int, int], Trial]) -> set[int]:
    """Return the finalists whose completed repeats have means outside of the sweep's outcome constraints."""
    is_within = within_constraints(space)
    completed = {key: r.metrics for key, r in repeats.items() if r.status == "completed"}
    runs = {
        trial: [metrics for key, metrics in completed.items() if key[0] == trial] for trial, _ in completed
    }
    return {trial for trial, own in runs.items() if not is_within(common_means(own))}


def losses(plan: Plan, repeats: Mapping[tuple[int, int], Trial], metric: str) -> Losses:
    """Return the losses by finalist and seed, lower is better; runs without a result are left out."""
    found: Losses = {finalist.trial: {} for finalist in plan.finalists}
    for (trial, seed), record in repeats.items():
        value = record.metrics.get(metric) if record.status == "completed" else None
        if value is not None:
            found[trial][seed] = plan.sign * value
    return found


def _block(
    plan: Plan, racing: tuple[int, ...], begun: int, repeats: Mapping[tuple[int, int], Trial]
) -> list[tuple[int, int]]:
    """Return the repeats that run at once: a round, two at the start, all in the budget for the last one."""
    if len(racing) == 1:
        block = [(racing[0], seed) for seed in plan.seeds[begun:]]
        others = sum(key not in block for key in repeats)
        return block if plan.trials is None else block[: max(0, plan.trials - others)]
    count = 2 if begun == 0 else 1
    return [(trial, seed) for seed in plan.seeds[begun : begun + count] for trial in racing]
