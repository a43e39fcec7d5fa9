"""Stage lengths for a budget of compute: a curve through the trials, read at the budget, with its caveats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from analysis.errors import AnalysisError
from analysis.labels import number
from analysis.statistics.curve import DRAWS, Curve, fit_curve
from analysis.statistics.lengths import fit_surface, step_costs
from analysis.statistics.pareto import Goal, front
from analysis.statistics.power_law import LEVEL
from analysis.table import PARAMETER, STEP_COLUMNS, TableLike, TrialsTable, is_finite
from sweeps.text.columns import is_seed
from sweeps.text.counted import counted


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The loss and the stage lengths that a budget buys.

    Args:
        budget: in the units of column `x`.
        value: the fitted y at the budget.
        low: lower end of its 95 % interval (of the curve; a single run scatters more).
        stage1_9: steps of Stage 1.9; None if the table does not determine them.
        stage2: steps of Stage 2; None if the table does not determine them.
        stage1_9_interval: 95 % interval of the best length of Stage 1.9; None if the lengths follow from the
            budget alone.
        through: the trials that it goes through, in words.
    """

    budget: float
    x: str
    y: str
    value: float
    low: float
    high: float
    stage1_9: int | None
    stage2: int | None
    stage1_9_interval: tuple[int, int] | None
    formula: str
    through: str
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the value of `budget` in the document of `sweep pareto --budget X --format json`."""
        return {
            "budget": self.budget,
            "y": self.value,
            "y_low": self.low,
            "y_high": self.high,
            "level": LEVEL,
            "stage1_9_steps": self.stage1_9,
            "stage2_steps": self.stage2,
            "stage1_9_steps_interval": None if self.stage1_9_interval is None else [*self.stage1_9_interval],
            "formula": self.formula,
            "through": self.through,
            "warnings": [*self.warnings],
        }


@dataclass(frozen=True, kw_only=True)
class TrialFit:
    """A curve through the trials of a table.

    Args:
        rows: the trials that it goes through.
        through: the same in words.
    """

    curve: Curve
    rows: TrialsTable
    through: str
    warnings: tuple[str, ...]


def fit_trials(
    table: TrialsTable, *, x: str, y: str, y_goal: Goal = "minimize", draws: int = DRAWS
) -> TrialFit:
    """Fit y against x.

    If only the lengths of the stages (and the seed) vary, the curve goes through all completed trials. If
    other parameters vary as well, the curve goes through the Pareto front, whose points are too good to be
    true (selected among noisy ones); trials outside the outcome constraints are on no front.

    Raises:
        MissingColumn: there is no column `x` or `y`.
        NotNumeric: `x` or `y` is not a column of numbers.
        AnalysisError: there are too few points for a curve.
    """
    table = table.configurations
    rows = table.take(np.isfinite(table.floats(x)) & np.isfinite(table.floats(y)) & table.completed)
    others: list[str] = []
    if rows.is_sweep:  # the parameters that vary besides the stages' lengths and the seed
        known = {*filter(is_seed, rows.parameters), *chain.from_iterable(STEP_COLUMNS)}
        varied = [n for n in rows.parameters if n not in known and rows.frame[n].map(repr).nunique() > 1]
        others = [name.removeprefix(PARAMETER) for name in varied]
    warnings = []
    through = "all " + counted(len(rows), "completed trial" if rows.is_sweep else "row")
    if others:
        rows = rows.take(rows.feasible)
        rows = rows.take(front(np.column_stack((rows.numbers(x), rows.numbers(y))), ["minimize", y_goal]))
        through = f"the {counted(len(rows), 'trial')} on the front"
        named = ", ".join(others[:3]) + (" and others" if len(others) > 3 else "")
        warnings.append(
            f"{named} vary as well: the curve goes through the front, whose points were selected for low "
            "values and look better than they are"
        )
    curve = fit_curve(rows.floats(x), rows.floats(y), rows.standard_errors(y), goal=y_goal, draws=draws)
    if curve.law.at_edge:
        warnings.append("the points do not show how the curve bends; it may be any other that falls")
    return TrialFit(curve=curve, rows=rows, through=through, warnings=tuple(warnings))


def answer(table: TableLike, *, x: str, y: str, budget: float, y_goal: Goal = "minimize") -> Answer:
    """Fit y against x (see `fit_trials`) and read it at the budget; in effective steps, also split it.

    Args:
        x: column of compute; `effective_steps` also if the table only has the steps of the two stages.
        budget: in the units of `x`.

    Raises:
        MissingColumn: there is no column `x` or `y`.
        NotNumeric: `x` or `y` is not a column of numbers.
        AnalysisError: the budget is not a positive number, or there are too few points for a curve.
    """
    if not (is_finite(budget) and budget > 0):
        raise AnalysisError(f"the budget is {budget!r:.80}; give a positive number in the units of {x}")
    fit = fit_trials(TrialsTable.from_frame(table).with_effective_steps(), x=x, y=y, y_goal=y_goal)
    curve, warnings = fit.curve, list(fit.warnings)
    if not curve.holds(budget):
        warnings.append(
            f"{number(budget)} lies outside the {number(curve.low)} to {number(curve.high)} of {x} that were "
            "tried: the answer is extrapolated"
        )
    split = _Split()
    if x == "effective_steps" and y_goal == "minimize":
        split = _split(fit.rows, x, y, budget)
    value, low, high = split.loss or [float(values[0]) for values in curve.predict(budget)]
    return Answer(
        budget=budget,
        x=x,
        y=y,
        value=value,
        low=low,
        high=high,
        stage1_9=split.stage1_9,
        stage2=split.stage2,
        stage1_9_interval=split.interval,
        formula=split.formula or curve_formula(curve, x, y),
        through=fit.through,
        warnings=(*warnings, *split.warnings),
    )


def curve_formula(curve: Curve, x: str, y: str) -> str:
    """Return the fitted law: `final_loss = 2.603 + 47.07 · effective_steps^(-0.3967)`."""
    parameters = curve.parameters()
    a, b, c = (parameters[name][0] for name in "abc")
    sign = "+" if b >= 0 else "-"
    return f"{y} = {number(a)} {sign} {number(abs(b))} · {x}^(-{number(c)})"


@dataclass(frozen=True, kw_only=True)
class _Split:
    """A budget divided between the stages; `loss` (value, low, high) and `formula` only from a surface."""

    stage1_9: int | None = None
    stage2: int | None = None
    interval: tuple[int, int] | None = None
    loss: tuple[float, float, float] | None = None
    formula: str = ""
    warnings: Sequence[str] = ()


def _split(rows: TrialsTable, x: str, y: str, budget: float) -> _Split:
    """Return the lengths for a budget in effective steps, which are column `x`."""
    if rows.length_columns is None:
        return _Split()
    stage1_9, stage2 = (rows.numbers(column) for column in rows.length_columns)
    fixed1_9, fixed2 = stage1_9.nunique() == 1, stage2.nunique() == 1
    lacking = int((~np.isfinite(stage1_9 + stage2)).sum())  # a choice may switch a length off
    if lacking and (fixed1_9 or fixed2):
        reason = f"one stage has no length in {lacking} of {counted(len(rows), 'trial')}"
        return _Split(warnings=[f"the split between the stages is unknown: {reason}"])
    try:
        costs = step_costs(stage1_9, stage2, rows.numbers(x))
        if fixed2 and not fixed1_9:
            second = int(stage2.iloc[0])
            return _one_length(costs.left_for_stage1_9(budget, second), second)
        if fixed1_9:
            first = int(stage1_9.iloc[0])
            return _one_length(first, costs.left_for_stage2(budget, first))
        surface = fit_surface(stage1_9, stage2, rows.numbers(y), rows.standard_errors(y), costs=costs)
        best = surface.best_split(budget)
    except AnalysisError as error:
        return _Split(warnings=[f"the split between the stages is unknown: {error}"])
    outside = surface.beyond(best.stage1_9, best.stage2)
    parts = zip(surface.law.plain_factor()[0], surface.law.exponent[0], ("stage1_9", "stage2"), strict=True)
    terms = " + ".join(f"{number(b)} · (1 + {name}_steps)^(-{number(c)})" for b, c, name in parts)
    return _Split(
        stage1_9=best.stage1_9,
        stage2=best.stage2,
        interval=(best.stage1_9_low, best.stage1_9_high),
        loss=(best.loss, best.loss_low, best.loss_high),
        formula=f"{y} = {number(surface.law.offset[0])} + {terms}",
        warnings=[note for note in outside if not note.startswith("compute")],  # the curve's own warning
    )


def _one_length(stage1_9: int, stage2: int) -> _Split:
    """Return the lengths where only one stage's length varied: the budget decides it."""
    if stage1_9 < 0 or stage2 < 0:
        unpaid = "the budget does not even pay for the stage whose length is the same in all trials"
        return _Split(warnings=[unpaid])
    return _Split(stage1_9=stage1_9, stage2=stage2)
