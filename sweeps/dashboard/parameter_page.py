"""Page of what the parameters do: the report's figures, live.

The surrogate's figures wait for its answer (`answers`). The trials as lines are drawn when somebody asks for
them, once per view: that takes 0.3 s with 10,000 trials.
"""

from __future__ import annotations

import hashlib
from typing import Any

from markupsafe import Markup

from analysis import labels
from sweeps.dashboard.answers import Answer
from sweeps.dashboard.reader import View
from sweeps.export import insight, table
from sweeps.text.counted import counted


def values(view: View, answer: Answer | None, lines: tuple[str, int]) -> dict[str, Any]:
    """Return what the template needs.

    Args:
        answer: what the surrogate said last; None before.
        lines: from `trial_lines`.
    """
    # Here, as the first page of a server would wait for these.
    from analysis.report.insight_figures import surrogate_figures
    from analysis.report.parallel_figure import LINES
    from analysis.summaries.insight import SKILL, Insight
    from analysis.summaries.insight import insight as read_insight

    found, why = Insight(), insight.why_not(view.space, view.records)
    if answer is not None and answer.insight is not None:
        found = read_insight(answer.insight)
    drawn = surrogate_figures(found, set(table.log_parameters(view.space)))
    figures = {id: figure.to_json() for id, figure in drawn.items()}
    parallel, feasible = lines
    if parallel:
        figures["parallel"] = parallel
    return {
        "insight": found,
        "figures": {id: Markup(text) for id, text in figures.items()},  # noqa: S704 - without signs of HTML
        "version": hashlib.sha256(repr((found.note, feasible, figures)).encode()).hexdigest()[:16],
        "state": _state(answer, why),
        "skill": SKILL,
        "lines": LINES,
        "feasible": feasible,
        "is_bounded": bool(view.space.outcome_constraints),
        "share": labels.share,
    }


def _state(answer: Answer | None, why: str) -> str:
    """Return of what the surrogate's figures are, or why there are none."""
    if answer is None:
        return f"{why[0].upper()}{why[1:]}." if why else "The surrogate is being fitted, which takes seconds."
    if answer.insight is None:
        return " ".join(answer.sentences)
    return f"What the surrogate says, by {counted(answer.results, 'result')}."


def trial_lines(view: View) -> tuple[str, int]:
    """Return every trial as a line, in Vega-Lite, and how many may have one; "" of fewer than two."""
    from altair.utils import schemapi

    from analysis.report.parallel_figure import parallel
    from analysis.table import TrialsTable

    if table.best(view.space, view.records) is None:
        return "", 0
    document = table.document(view.space, view.url, view.records)
    trials = TrialsTable.from_document(document, source="the sweep")
    first = view.space.objectives[0]
    with schemapi.debug_mode(False):  # checking against Vega-Lite's schema takes half of the time
        found = parallel(trials.configurations, first.metric, first.goal, table.log_parameters(view.space))
    return "" if found is None else found.to_json(), int(trials.configurations.feasible.sum())
