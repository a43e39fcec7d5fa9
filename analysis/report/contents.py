"""Contents of the report as values, which `report` turns into HTML.

This module decides what the page says of a sweep that is empty, has failed or is not finished; the template
only lays it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.errors import AnalysisError
from analysis.summaries import first_words, summary
from analysis.summaries.budget import TrialFit, curve_formula, fit_trials
from analysis.summaries.compute import is_compute, with_price
from analysis.summaries.costs import Cost, Rate, cost
from analysis.summaries.failures import Failure, failures, reasons
from analysis.summaries.front_table import FrontTable, many_objectives_table, tradeoff_table
from analysis.summaries.insight import Answer, Insight, insight
from analysis.summaries.many_objective import ManyObjectiveFront, many_objective_front
from analysis.summaries.reuse import Reuse, reuse
from analysis.summaries.summary import ParetoResult
from analysis.summaries.summary_line import BestTrial, Objective, best_trial, objectives, progress
from analysis.summaries.uncertainty import Uncertainty, estimate_uncertainty
from analysis.table import CONFIRM, FIDELITY, TrialsTable

NOT_SEARCHED = (FIDELITY, "imported", CONFIRM)
"""Generators of trials that a sweep's run cap does not count: they are not of its search."""

DRAWS = 300
"""Draws for the curve's band: enough for a picture."""


@dataclass(frozen=True, kw_only=True)
class Tradeoff:
    """The trade-off of two columns; `fit_note` is the formula of the fit, or why there is none."""

    result: ParetoResult
    uncertainty: Uncertainty
    front: FrontTable
    fit: TrialFit | None
    fit_note: str


@dataclass(frozen=True, kw_only=True)
class ManyObjectives:
    """The trade-off of three objectives or more."""

    result: ManyObjectiveFront
    front: FrontTable


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The contents of the page. `note` fields say in words why a part is missing.

    Args:
        question: what the sweep was to find.
        finding: what the best trial has reached; why there is none, if there is none.
        best_was_named: the document named the best trial; else it was found here.
        confirming: whether fresh runs are still to come, after which another trial may be the best of them.
        gain: what the best trial has gained over the first one, as a sentence; "" if that is not known.
        reuse: what trials shared; None if nothing was reused.
        answer: what the surrogate says of the best trial; None if it is another one's, or says nothing.
        priced_by_time: dollars are the trials' time at a price, not what they reported.
        log_parameters: names of the parameters that are searched on a logarithmic scale.
        next_steps: (text, command) of what a person can do next; the command may be "".
    """

    name: str
    url: str
    run_cap: int | None
    objectives: tuple[Objective, ...]
    table: TrialsTable
    progress: tuple[tuple[str, int], ...]
    question: str
    finding: str
    best: BestTrial | None
    best_was_named: bool
    command: str
    confirming: bool
    gain: str
    tradeoff: Tradeoff | None
    tradeoff_note: str
    many_objectives: ManyObjectives | None
    many_objectives_note: str
    reuse: Reuse | None
    insight: Insight
    answer: Answer | None
    cost: Cost
    priced_by_time: bool
    failures: tuple[Failure, ...]
    reasons: tuple[tuple[str, int], ...]
    provenance: tuple[tuple[str, str], ...]
    log_parameters: frozenset[str]
    next_steps: tuple[tuple[str, str], ...]

    @property
    def trials(self) -> int:
        """Return the number of trials, in any status."""
        return len(self.table)

    @property
    def from_trainer(self) -> bool:
        """Return whether the trials are of this project's trainer, which alone has a Stage 1.9."""
        return "effective_steps" in self.table or any("stage1_9" in name for name in self.table.columns)

    @property
    def is_over_compute(self) -> bool:
        """Return whether the trade-off is one of compute, not of two qualities such as loss and latency."""
        return self.tradeoff is None or is_compute(self.tradeoff.result.x)

    @property
    def search_trials(self) -> int:
        """Return the number of trials, in any status, that `run_cap` counts."""
        return _count_search_trials(self.table)

    @property
    def others(self) -> tuple[tuple[str, int], ...]:
        """Return the generators of trials that `run_cap` does not count, with their numbers."""
        generators = self.table.frame["generator"].tolist()
        return tuple((name, count) for name in NOT_SEARCHED if (count := generators.count(name)))


def contents(document: Mapping[str, Any], rate: Rate | None = None) -> Contents:
    """Work out the contents of the page.

    Args:
        document: an export document, with what `sweep report` adds; docs/reference/files.md lists the fields.
        rate: the price of the trials' time; None for what they report.

    Raises:
        AnalysisError: the document is not an export of a sweep.
    """
    table = TrialsTable.from_document(document, source="the sweep's export")
    table = table if rate is None else with_price(table, rate)
    goals = objectives(document)
    best, best_note = best_trial(table, goals, document.get("best_trial"))
    tradeoff, tradeoff_note = _tradeoff(table, goals)
    many_objectives, many_objectives_note = _many_objectives(table, goals)
    run_cap = document.get("run_cap") if isinstance(document.get("run_cap"), int) else None
    has_ended = document.get("search_ended") is True  # by itself: it makes no more
    named = document.get("best_trial")
    if isinstance(named, int):  # a fresh run has no row of its own
        named = table.configurations.repeats.standing_for(named)
    command = ""
    if best is not None and named in (None, best.trial):
        command = str(document.get("best_command") or "")
    view = insight(document.get("insight"))
    provenance, gain = document.get("provenance"), document.get("gain")
    return Contents(
        name=str(document.get("name") or "sweep"),
        url=str(document.get("url") or ""),
        run_cap=run_cap,
        objectives=goals,
        table=table,
        progress=progress(table),
        question=first_words.question(
            [(o.metric, o.goal) for o in goals], first_words.search_parameters(table)
        ),
        finding=best_note
        if best is None
        else first_words.finding(
            table.configurations, best, goals[0].goal, tradeoff.result if tradeoff else None
        ),
        best=best,
        best_was_named=best is not None and best.trial == named,
        command=command,
        confirming=bool(document.get("confirming")),
        gain=str(gain.get("sentence") or "") if isinstance(gain, Mapping) else "",
        tradeoff=tradeoff,
        tradeoff_note=tradeoff_note,
        many_objectives=many_objectives,
        many_objectives_note=many_objectives_note,
        reuse=reuse(table, goals[0].metric, goals[0].goal) if goals else None,
        insight=view,
        answer=view.optimum if view.optimum and best and view.optimum.trial == best.trial else None,
        cost=cost(_cost_rows(document), _count_search_trials(table) if has_ended else run_cap, rate),
        priced_by_time=rate is not None,
        failures=failures(table),
        reasons=reasons(table),
        provenance=tuple((str(name), str(value)) for name, value in provenance.items())
        if isinstance(provenance, Mapping)
        else (),
        log_parameters=frozenset(map(str, document.get("log_parameters") or ())),
        next_steps=tuple(
            (str(step.get("text") or ""), str(step.get("command") or ""))
            for step in document.get("next") or ()
            if isinstance(step, Mapping)
        ),
    )


def _count_search_trials(table: TrialsTable) -> int:
    """Return the number of trials that the run cap counts."""
    return int((~table.frame["generator"].isin(NOT_SEARCHED)).sum())


def _tradeoff(table: TrialsTable, goals: Sequence[Objective]) -> tuple[Tradeoff | None, str]:
    if not table.completed.any():
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
        return None, f"No completed trial{_within(table)} has both {x} and {y}."
    uncertainty = estimate_uncertainty(table, result)
    fit, fit_note = _fit(table, result)
    front = tradeoff_table(table, result, uncertainty)
    return Tradeoff(result=result, uncertainty=uncertainty, front=front, fit=fit, fit_note=fit_note), ""


def _within(table: TrialsTable) -> str:
    return " within the outcome constraints" if table.infeasible else ""


def _fit(table: TrialsTable, result: ParetoResult) -> tuple[TrialFit | None, str]:
    """Return the curve through the trade-off and its formula, or None and why there is none."""
    if result.x_goal != "minimize" or not is_compute(result.x):
        return None, ""
    table = table.with_effective_steps()
    try:
        fit = fit_trials(table, x=result.x, y=result.y, y_goal=result.y_goal, draws=DRAWS)
    except AnalysisError as error:
        return None, f"No curve is drawn: {error}."
    return fit, f"{curve_formula(fit.curve, result.x, result.y)}, through {fit.through}."


def _many_objectives(table: TrialsTable, goals: Sequence[Objective]) -> tuple[ManyObjectives | None, str]:
    """Return the front in three objectives or more, or None and, if there are so many, why not."""
    try:
        found = many_objective_front(table, goals)
    except AnalysisError as error:
        return None, f"The objectives cannot be set against each other: {error}."
    if found is None:
        return None, ""
    if not found.trials:
        return None, f"No completed trial{_within(table)} has a value for all {len(goals)} objectives."
    return ManyObjectives(result=found, front=many_objectives_table(table, found)), ""


def _cost_rows(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the trials, with the machine seconds of those that have had several attempts or hosts."""
    longer = document.get("machine_seconds")
    found = longer if isinstance(longer, Mapping) else {}
    return [
        {**trial, "machine_seconds": found[name]} if (name := str(trial.get("trial"))) in found else trial
        for trial in document["trials"]
    ]
