"""Stages that trials shared: prefixes, trunks, what was saved, and the best value against paid compute.

A prefix is a stage's end that trials have in common: they agree in everything up to there. Its first trial
computes it, the others start from that trial's snapshot. Trials that differ in a stage's length alone have
its trunk in common, and branch off it (`trunks`). Costs are nominal where each trial counts as if it had
computed all of its stages, and paid where each part counts for the trial that computed it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis import labels
from analysis.errors import AnalysisError
from analysis.statistics.pareto import Floats, Goal
from analysis.statistics.stages import branched, reused, total
from analysis.summaries.prefixes import Prefix, prefixes
from analysis.summaries.trunks import Lengths, Trunk, lengths, trunks
from analysis.table import NOMINAL, PAID, TrialsTable, is_confirming
from sweeps.text.counted import counted

IMPORTED = "imported"
STEPS = "effective_steps"


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """The stages that a sweep's trials shared, and their costs.

    Args:
        prefixes: each before those that go on from it, and those of most trials first; all that one trial
            alone has are one row at the end.
        nominal: cost of all trials but imported ones, as if each had computed all of its stages.
        paid: cost of what was computed.
        trunks: those that trials branched off, the best first.
        lengths: values against the lengths of each stage with trunks, where it had several.
        branches: number of stages that trials began at a point of another's trunk.
        unit: of the costs in words; "" if unknown.
        unknown: number of trials that ran and whose cost is not known.
        trials: [M] indices of the search's trials in order, without those of a confirmation.
        nominal_until, paid_until: [M] costs of the search up to and including each of them.
        best: [M] best value so far within the outcome constraints, NaN before the first.
    """

    prefixes: tuple[Prefix, ...]
    trunks: tuple[Trunk, ...]
    lengths: tuple[Lengths, ...]
    nominal: float
    paid: float
    stages: int
    branches: int
    goal: Goal
    unit: str
    unknown: int
    trials: tuple[int, ...]
    nominal_until: Floats
    paid_until: Floats
    best: Floats

    @property
    def saved(self) -> float:
        """Return the share of the nominal cost that was not paid, 0 to 1."""
        return 1 - self.paid / self.nominal if self.nominal > 0 else 0.0

    def to_json(self) -> dict[str, float | int | str]:
        """Return the totals, as `sweep pareto --format json` shows them."""
        return {
            "nominal": self.nominal,
            "paid": self.paid,
            "saved": self.saved,
            "reused_stages": self.stages,
            "branches": self.branches,
            "unit": self.unit,
        }

    def summary(self) -> str:
        """Return the totals in one clause."""
        unit = f" {self.unit}" if self.unit else ""
        stages = counted(self.stages, "reused stage") if self.stages else ""
        branches = f"{self.branches} branch{'' if self.branches == 1 else 'es'}" if self.branches else ""
        by = " and ".join(filter(None, (stages, branches)))
        costs = f"{labels.number(self.paid)} of {labels.number(self.nominal)}{unit} paid"
        return f"{costs}; {labels.share(self.saved)} saved by {by}"


def reuse(table: TrialsTable, metric: str, goal: Goal = "minimize") -> Reuse | None:
    """Return what the trials of a sweep shared; None if nothing was reused and none branched off a trunk.

    Imported trials were paid for elsewhere and do not count. A trial without recorded stages counts its
    effective steps, if the costs of the others are in these or proportional to them. One that was stopped
    early has the costs in its columns, with a share of the stage that it did not end.

    Args:
        metric: column of the first objective; values that are not numbers count as missing.
    """
    if not table.is_sweep:
        return None
    table = table.take(np.argsort(table.trials, kind="stable"))
    table = table.take(~_is_imported(table))
    count = sum(len(reused(stages)) for stages in table.stages)
    branches = sum(len(branched(stages)) for stages in table.stages)
    if not count and not branches:
        return None
    nominal, paid, unit = _costs(table)
    searched = ~is_confirming(table)
    values = _values(table, metric)
    sign = 1.0 if goal == "minimize" else -1.0
    counts = table.feasible & searched & np.isfinite(values)
    best = np.minimum.accumulate(np.where(counts, sign * values, np.inf))
    best = np.where(np.isfinite(best), sign * best, np.nan)
    ran = ~table.has_status("pending")
    feasible = np.where(table.feasible, values, np.nan)
    found = trunks(table, feasible, goal)
    return Reuse(
        prefixes=prefixes(table, feasible, goal),
        trunks=found,
        lengths=lengths(table, found, np.where(searched, feasible, np.nan), goal),
        nominal=float(np.nansum(nominal)),
        paid=float(np.nansum(paid)),
        stages=count,
        branches=branches,
        goal=goal,
        unit=unit,
        unknown=int((np.isnan(nominal) & ran).sum()),
        trials=tuple(table.trials[searched].tolist()),
        nominal_until=np.nancumsum(nominal[searched]),
        paid_until=np.nancumsum(paid[searched]),
        best=best[searched],
    )


def _is_imported(table: TrialsTable) -> npt.NDArray[np.bool_]:
    """Return [N] whether each trial was imported."""
    # One below the target of fidelities has their generator, but nobody here has attempted it.
    unattempted = (table.numbers("attempt") == 0).to_numpy(dtype=np.bool_) & table.has_status("completed")
    return unattempted | (table.frame["generator"] == IMPORTED).to_numpy(dtype=np.bool_)


def _costs(table: TrialsTable) -> tuple[Floats, Floats, str]:
    """Return [N] the nominal and paid costs, NaN where unknown, and their unit."""
    known = np.array([bool(stages) for stages in table.stages])
    nominal = np.array([total(stage.cost for stage in stages) for stages in table.stages])
    paid = np.array([total(stage.paid for stage in stages) for stages in table.stages])
    steps = _values(table, STEPS)
    both = known & table.completed & np.isfinite(steps)
    rate = steps[both].sum() / nominal[both].sum() if nominal[both].sum() > 0 else math.nan
    others = np.where(np.isfinite(steps), steps, np.nan) / (rate or math.nan)
    unit = "effective steps" if abs(rate - 1) < 1e-9 else ""
    nominal, paid = np.where(known, nominal, others), np.where(known, paid, others)
    # Of a stage in which a trial was stopped early only the columns know the part that it did.
    own_nominal, own_paid = _values(table, NOMINAL), _values(table, PAID)
    stopped = table.has_status("early_stopped") & np.isfinite(own_nominal) & np.isfinite(own_paid)
    return np.where(stopped, own_nominal, nominal), np.where(stopped, own_paid, paid), unit


def _values(table: TrialsTable, column: str) -> Floats:
    try:
        return table.floats(column)
    except AnalysisError:
        return np.full(len(table), np.nan)
