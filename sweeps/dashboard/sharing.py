"""Search over paid compute, and the tree of prefixes that trials share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sweeps.dashboard.reader import View
from sweeps.export import table
from sweeps.space.fidelity import is_at_target
from sweeps.trials import costs

LISTED = 200


@dataclass(frozen=True, kw_only=True)
class Search:
    """The search so far.

    Args:
        best: (paid until there, best value of the first objective so far).
        unit: of what was paid, for people.
    """

    best: tuple[tuple[float, float], ...]
    unit: str


def search(view: View) -> Search:
    """Return the best value so far over what the search has paid, in the order in which trials ended."""
    objective = view.space.objectives[0]
    sign = objective.sign
    own = [record for record in view.records if record.is_own and record.ended is not None]
    own.sort(key=lambda record: (record.ended or 0.0, record.trial))
    by_stage = any(record.stages for record in own)
    by_steps = by_stage or any(costs.STEPS in record.metrics for record in own)
    rate = (costs.steps_per_cost(own) or 1.0) if by_stage else 1.0
    spent, best = 0.0, math.inf
    found: list[tuple[float, float]] = []
    outside = set(table.infeasible(view.space, view.records))
    paid_by_trial = costs.paid_by_trial(own)
    for record in own:
        paid = paid_by_trial[record.trial]
        if not by_steps:
            spent += (table.attempts_seconds(record) or 0.0) / 3600
        elif paid is not None:
            spent += rate * paid
        else:
            spent += record.metrics.get(costs.STEPS) or 0.0
        value = record.metrics.get(objective.metric)
        is_result = record.status == "completed" and is_at_target(view.space, record.parameters)
        if is_result and record.trial not in outside and value is not None and sign * value < best:
            best = sign * value
            found.append((spent, value))
    if found:
        found.append((spent, sign * best))
    unit = "effective steps paid" if by_steps else "hours of trials"
    return Search(best=tuple(found), unit=unit)


def tree(view: View) -> dict[str, object] | None:
    """Return the tree of prefixes, each before those that go on from it; None if no trial shared anything.

    It takes seconds for 10,000 trials: the same table as the report's is made.
    """
    if costs.compute(view.records) is None:
        return None
    from analysis.errors import AnalysisError
    from analysis.summaries.reuse import reuse
    from analysis.table import TrialsTable

    objective = view.space.objectives[0]
    document = table.document(view.space, view.url, view.records)
    try:
        found = reuse(TrialsTable.from_document(document), objective.metric, objective.goal)
    except AnalysisError as error:
        return {"rows": (), "left_out": 0, "summary": str(error)}
    if found is None:
        return None
    left_out = max(0, len(found.prefixes) - LISTED)
    return {"rows": found.prefixes[:LISTED], "left_out": left_out, "summary": found.summary()}
