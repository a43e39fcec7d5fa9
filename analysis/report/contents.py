"""What the report says, as values: `report` turns these into HTML, tests read them as they are.

Everything a page needs to say about a sweep that is empty, has failed or is not finished is decided here;
the template only lays it out.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.errors import AnalysisError
from analysis.summaries import summary
from analysis.summaries.budget import Fitted, fitted, formula
from analysis.summaries.compute import priced
from analysis.summaries.costs import Cost, Rate, cost
from analysis.summaries.failures import Failure, failures, reasons
from analysis.summaries.front_table import FrontTable, of_several, of_tradeoff
from analysis.summaries.insight import Insight, insight
from analysis.summaries.many_objective import Several, several
from analysis.summaries.summary import ParetoResult
from analysis.summaries.summary_line import Best, Objective, headline, objectives, progress
from analysis.summaries.uncertainty import Uncertainty, uncertainty
from analysis.table import from_document, trial_indices, with_effective_steps

DRAWS = 300
"""Of the curve's band: enough for a picture."""


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The whole page. `note` fields say in words why a part is missing.

    Args:
        best_was_named: the document said which trial is the best; else it was found here.
        priced_by_time: dollars are the trials' time at a price, not what they reported.
        several: of three objectives or more; None for fewer.
    """

    name: str
    url: str
    run_cap: int | None
    objectives: tuple[Objective, ...]
    table: pd.DataFrame
    progress: tuple[tuple[str, int], ...]
    best: Best | None
    best_note: str
    best_was_named: bool
    command: str
    tradeoff: ParetoResult | None
    tradeoff_note: str
    sure: Uncertainty | None
    front: FrontTable | None
    curve: Fitted | None
    curve_note: str
    several: Several | None
    several_note: str
    several_front: FrontTable | None
    insight: Insight
    cost: Cost
    priced_by_time: bool
    failures: tuple[Failure, ...]
    reasons: tuple[tuple[str, int], ...]
    provenance: tuple[tuple[str, str], ...]

    @property
    def trials(self) -> int:
        """How many trials there are, in whatever state."""
        return len(self.table)


def contents(document: Mapping[str, Any], rate: Rate | None = None) -> Contents:
    """Work out the page of an export document.

    Args:
        document: `{"schema", "name", "url", "objectives", "run_cap", "trials"}` and optionally
            `best_command`, a line for a shell, or `best_overrides`, a list of `key=value` for
            `python -m trainer`, and `best_trial`, the index they
            belong to (without it the best completed trial by the first objective); `insight`, see
            `insight.insight`; `provenance`, words by name about who wrote it.
        rate: the price of the trials' time; None for what they report.

    Raises:
        AnalysisError: the document is not an export of a sweep.
    """
    table = from_document(document, source="the sweep's export")
    table["trial"] = trial_indices(table)
    if rate is not None:
        table = priced(table, rate)
    goals = objectives(document)
    best, best_note = headline(table, goals, document.get("best_trial"))
    tradeoff, tradeoff_note = _tradeoff(table, goals)
    sure = None if tradeoff is None else uncertainty(table, tradeoff)
    curve, curve_note = _curve(table, tradeoff)
    among, among_note = _several(table, goals)
    run_cap = document.get("run_cap")
    cap = run_cap if isinstance(run_cap, int) else None
    overrides = [str(override) for override in document.get("best_overrides") or ()]
    command = f"python -m trainer {shlex.join(overrides)}" if overrides else ""
    command = str(document.get("best_command") or command)
    told = document.get("provenance")
    return Contents(
        name=str(document.get("name") or "sweep"),
        url=str(document.get("url") or ""),
        run_cap=cap,
        objectives=goals,
        table=table,
        progress=progress(table),
        best=best,
        best_note=best_note,
        best_was_named=best is not None and best.trial == document.get("best_trial"),
        command=command if best else "",
        tradeoff=tradeoff,
        tradeoff_note=tradeoff_note,
        sure=sure,
        front=None if tradeoff is None or sure is None else of_tradeoff(table, tradeoff, sure),
        curve=curve,
        curve_note=curve_note,
        several=among,
        several_note=among_note,
        several_front=None if among is None else of_several(table, among),
        insight=insight(document.get("insight")),
        cost=cost(document["trials"], cap, rate),
        priced_by_time=rate is not None,
        failures=failures(table),
        reasons=reasons(table),
        provenance=tuple((str(k), str(v)) for k, v in told.items()) if isinstance(told, Mapping) else (),
    )


def _tradeoff(table: pd.DataFrame, goals: Sequence[Objective]) -> tuple[ParetoResult | None, str]:
    if table.empty or not (table["status"] == "completed").any():
        return None, "There is nothing to trade off before a trial has completed."
    axes = summary.default_axes(table, [{"metric": o.metric} for o in goals])
    if axes is None:
        return None, "No column measures compute (effective_steps, train_flops, train_seconds or seconds)."
    goal_of = {o.metric: o.goal for o in goals}
    x, y = axes
    try:
        result = summary.pareto(
            table, x=x, y=y, x_goal=goal_of.get(x, "minimize"), y_goal=goal_of.get(y, "minimize")
        )
    except AnalysisError as error:
        return None, f"The trade-off cannot be shown: {error}."
    if not result.points:
        return None, f"No completed trial has both {x} and {y}."
    return result, ""


def _curve(table: pd.DataFrame, result: ParetoResult | None) -> tuple[Fitted | None, str]:
    """The curve through the trade-off, or None and why there is none."""
    if result is None or result.x_goal != "minimize":
        return None, ""
    try:
        found = fitted(with_effective_steps(table), x=result.x, y=result.y, y_goal=result.y_goal, draws=DRAWS)
    except AnalysisError as error:
        return None, f"No curve is drawn: {error}."
    return found, f"{formula(found.curve, result.x, result.y)}, through {found.through}."


def _several(table: pd.DataFrame, goals: Sequence[Objective]) -> tuple[Several | None, str]:
    """The front in three objectives or more, or None and, where there are so many, why not."""
    try:
        found = several(table, goals)
    except AnalysisError as error:
        return None, f"The objectives cannot be set against each other: {error}."
    if found is not None and not found.trials:
        return None, f"No completed trial has a value for all {len(goals)} objectives."
    return found, ""
