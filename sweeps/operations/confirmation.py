"""Answer of a confirmation for people and programs; `confirm`, `best`, `status` and `trials` show it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sweeps.experiment import Experiment
from sweeps.export import table as tables
from sweeps.search.confirm.answer import Answer, Row, answer
from sweeps.search.confirm.plan import Plan
from sweeps.search.confirm.rounds import Standing, of_store, outside_constraints
from sweeps.space.definition import Space
from sweeps.text.counted import counted
from sweeps.text.shorten import shorten
from sweeps.trials.record import Trial


def confirmed_answer(experiment: Experiment, records: Sequence[Trial]) -> tuple[Plan, Answer] | None:
    """Return the answer of a finished confirmation of the first objective, or None."""
    found = of_store(experiment.store, experiment.space, list(records))
    if found is None or not found[1].finished or found[0].metric != experiment.space.metrics()[0]:
        return None
    winner = answer(experiment.space, *found)
    return None if winner is None else (found[0], winner)


def has_confirmed(space: Space, planned: tuple[Plan, Standing] | None, records: Sequence[Trial]) -> bool:
    """Return whether fresh runs have confirmed a trial by the first objective: that is no one run's gain."""
    if best_confirmed(space, None if planned is None else planned[0], records) is not None:
        return True
    if planned is None or planned[0].metric != space.metrics()[0]:
        return False
    return "winner" in roles(space, *planned).values()


def best_confirmed(space: Space, plan: Plan | None, records: Sequence[Trial]) -> Trial | None:
    """Return the trial whose fresh runs are the best in the first objective; None without any.

    None, too, if the plan is of another objective: it has repeated the best in that one, not in the first.
    """
    if plan is not None and plan.metric != space.metrics()[0]:
        return None
    return tables.best_confirmed(space, records)


def confirmed_so_far(experiment: Experiment, records: Sequence[Trial]) -> tuple[Trial | None, str]:
    """Return what `best_confirmed` does, for a sweep without a winner, and how far its confirmation is.

    The latter is "" without a confirmation of the first objective that goes on.
    """
    space = experiment.space
    planned = of_store(experiment.store, space, list(records))
    found = best_confirmed(space, None if planned is None else planned[0], records)
    goes_on = planned is not None and not planned[1].finished and planned[0].metric == space.metrics()[0]
    return found, progress_line(space, *planned) if planned is not None and goes_on else ""


def progress_line(space: Space, plan: Plan, now: Standing) -> str:
    """Return how far the confirmation is, in one line."""
    if now.finished:
        return finished_line(space, plan, now)
    running = sum(record.status == "running" for record in now.open)
    waiting = len(now.due) + len(now.open) - running
    runs = f"{running} running, {waiting} to come"
    left = f"{len(now.racing)} of {counted(len(plan.finalists), 'trial')} can still win"
    return f"round {now.round} of {len(plan.seeds)}: {left}; {runs}"


def finished_line(space: Space, plan: Plan, now: Standing) -> str:
    """Return the end of a confirmation in one line: its winner, or that there is none."""
    found = answer(space, plan, now)
    if found is None and outside_constraints(space, now.records):
        why = "the means of no finalist are within the outcome constraints"
        return f"finished without a winner: {why}; `sweep trials` says what its repeats reported"
    if found is None:
        return "finished without a winner: no repeat has a result; `sweep trials` says why"
    return f"finished: {winner_line(found)}"


def winner_line(found: Answer) -> str:
    """Return the winner with its interval, such as `trial 7: test_loss 3.2012 (95 %: 3.189 to 3.2134)`."""
    interval = f" (95 %: {shorten(found.low)} to {shorten(found.high)})" if _has_interval(found) else ""
    seeds = counted(found.winner.seeds, "fresh seed")
    text = " on the test text" if found.on_test else ""
    return (
        f"trial {found.winner.finalist.trial}: {found.metric} {shorten(found.mean)}{interval}, "
        f"confirmed by {seeds}{text}"
    )


def sentences(plan: Plan, found: Answer) -> list[str]:
    """Return the winner's chance, and how much better selection made its first number look, a line each."""
    winner, metric = found.winner, plan.metric
    first, mean = shorten(winner.finalist.first), shorten(winner.mean)
    bias = "it was not inflated by selection"
    if found.luck > 0:
        bias = f"selection made it look {found.luck:.2g} better"
    return [
        f"the best of {len(found.rows)} with a chance of {_percent(winner.chance)} %",
        f"its first {metric} was {first}, and is {mean} over fresh seeds: {bias}",
    ]


def warnings(plan: Plan, now: Standing, found: Answer) -> list[str]:
    """Return what the reader should know before quoting the answer, a line each."""
    lines = []
    if not found.on_test:
        lines.append(
            f"no repeat reports {plan.test_metric}: the interval is on the text that the search has used"
        )
    if found.equal:
        lines.append(
            f"all repeats of trial {found.winner.finalist.trial} have the same {plan.metric}: "
            f"does the program use `{plan.seed_name}`?"
        )
    if not _has_interval(found):
        lines.append("one result alone gives no interval")
    if now.why:
        lines.append(now.why)
    return lines


def winner_of(experiment: Experiment, found: Answer) -> Trial:
    """Return the record of the winner, as the search made it."""
    return experiment.trial(found.winner.finalist.trial)


def rows(space: Space, plan: Plan, now: Standing) -> list[dict[str, Any]]:
    """Return a row for every finalist, for CSV; without results, those of the plan."""
    found = answer(space, plan, now)
    if found is None:
        return [
            _plain(Row(finalist=f, seeds=0, mean=None, test=None, chance=0.0, left=""))
            for f in plan.finalists
        ]
    return [_plain(row) for row in found.rows]


def _plain(row: Row) -> dict[str, Any]:
    return {
        "trial": row.finalist.trial,
        "first": row.finalist.first,
        "predicted": row.finalist.predicted,
        "selection": row.mean,
        "test_average": row.test,
        "chance": row.chance,
        "seeds": row.seeds,
        "left": row.left or None,
    }


def document(space: Space, plan: Plan, now: Standing) -> dict[str, Any]:
    """Return the confirmation as `sweep confirm --format json` shows it."""
    found = answer(space, plan, now)
    progress: dict[str, Any] = {
        "metric": plan.metric,
        "finished": now.finished,
        "round": now.round,
        "rounds": len(plan.seeds),
        "racing": list(now.racing),
        "why": now.why or None,
    }
    winner = None if found is None or not now.finished else winner_document(found)
    return progress | {"winner": winner, "finalists": rows(space, plan, now)}


def winner_document(found: Answer) -> dict[str, Any]:
    """Return the winner, its interval, its chance and its luck."""
    has_interval = _has_interval(found)
    return {
        "trial": found.winner.finalist.trial,
        "metric": found.metric,
        "mean": found.mean,
        "low": found.low if has_interval else None,
        "high": found.high if has_interval else None,
        "chance": found.winner.chance,
        "luck": found.luck,
        "seeds": found.winner.seeds,
        "on_test": found.on_test,
    }


def roles(space: Space, plan: Plan, now: Standing) -> dict[int, str]:
    """Return what each trial of a confirmation is in it, by index."""
    found = answer(space, plan, now) if now.finished else None
    named = {finalist.trial: "contender" for finalist in plan.finalists}
    named |= dict.fromkeys(now.left, "left")
    if now.finished:
        named |= dict.fromkeys(outside_constraints(space, now.records), "left")
    if found is not None:
        named[found.winner.finalist.trial] = "winner"
    return named | {record.trial: f"repeats {trial}" for (trial, _), record in now.records.items()}


def _has_interval(found: Answer) -> bool:
    return math.isfinite(found.low) and math.isfinite(found.high)


def _percent(chance: float) -> str:
    """Return a chance in percent; the draws behind it do not tell 99.9 % from certainty."""
    if chance > 0.995:
        return "> 99"
    return "< 1" if chance < 0.005 else f"{100 * chance:.0f}"
