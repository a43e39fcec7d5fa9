"""First words of a page about a sweep: what was asked, and what was found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis import labels
from analysis.statistics.pareto import Goal
from analysis.summaries.compute import is_compute
from analysis.summaries.summary import ParetoResult
from analysis.summaries.summary_line import BestTrial
from analysis.table import PARAMETER, TrialsTable, seed_columns
from sweeps.text.counted import counted

NAMED = 6
"""With more parameters, only the first few are named."""


def question(objectives: Sequence[tuple[str, Goal]], parameters: Sequence[str]) -> str:
    """Return the question of a sweep: `Which lr and layers give the lowest loss?`.

    Args:
        objectives: column and goal of each.
        parameters: names of those that are searched.
    """
    wanted = enumeration([f"the {extreme(goal)} {labels.words(column)}" for column, goal in objectives])
    if not parameters or not objectives:
        return f"What is {wanted}?" if objectives else ""
    names = enumeration(parameters)
    if len(parameters) > NAMED:
        first = ", ".join(parameters[: NAMED - 2])
        names = f"values of {len(parameters)} parameters ({first} and {len(parameters) - NAMED + 2} more)"
    return f"Which {names} {'gives' if len(parameters) == 1 else 'give'} {wanted}?"


def extreme(goal: Goal) -> str:
    """Return the word for the best value."""
    return "lowest" if goal == "minimize" else "highest"


def enumeration(parts: Sequence[str]) -> str:
    """Return parts in words: `a, b and c`."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def search_parameters(table: TrialsTable) -> list[str]:
    """Return the names of the parameters that differ between trials; of all, where none does."""
    names = [name for name in table.parameters if name not in seed_columns(table)]
    varied = [name for name in names if table.frame[name].map(repr).nunique() > 1]
    return [name.removeprefix(PARAMETER) for name in varied or names]


def finding(table: TrialsTable, best: BestTrial, goal: Goal, tradeoff: ParetoResult | None) -> str:
    """Return what the best trial and the knee of the trade-off have reached."""
    column = best.column
    results = counted(int((table.feasible & np.isfinite(table.floats(column))).sum()), "result")
    if table.infeasible:
        results += " within the outcome constraints"
    points = {} if tradeoff is None or tradeoff.y != column else {p.trial: p for p in tradeoff.points}
    values = [point.y for point in points.values()]
    own = points.get(best.trial)
    is_extreme = own is not None and own.y == (min(values) if goal == "minimize" else max(values))
    text = f"Trial {best.trial} is the best of {results}"
    if best.confirmation is not None:
        text = f"Trial {best.trial} is the best of those repeated with fresh seeds"
    elif is_extreme:
        text = f"Trial {best.trial} has the {extreme(goal)} {labels.words(column)} of {results}"
    text += f": {best.value}"
    if tradeoff is None or own is None:
        return f"{text}."
    text += f", at {labels.quantity(tradeoff.x, own.x)}."
    if tradeoff.knee is not None and tradeoff.knee != best.trial:
        knee = points[tradeoff.knee]
        more = "more compute gains less" if is_compute(tradeoff.x) else "each gain costs more"
        text += (
            f" Trial {knee.trial} is the knee, beyond which {more}: {labels.number(knee.y)} at "
            f"{labels.quantity(tradeoff.x, knee.x)}."
        )
    return text
