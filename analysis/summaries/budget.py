"""Which lengths for a budget of X? A curve through the trials, read at X, with what it cannot know said
aloud.

`sweep pareto --budget X` and the notebooks call `answer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.errors import AnalysisError, MissingColumn, NotNumeric
from analysis.labels import counted, number
from analysis.statistics.curve import DRAWS, Curve, fit_curve
from analysis.statistics.efficiency import STAGE1_9_WEIGHT
from analysis.statistics.lengths import Surface, fit_surface
from analysis.statistics.pareto import Goal, front
from analysis.statistics.power_law import LEVEL
from analysis.table import (
    PARAMETER,
    SEED,
    SEM,
    STEP_COLUMNS,
    finished,
    is_trials_table,
    numbers,
    with_effective_steps,
)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a budget buys.

    Args:
        budget: in the units of column `x`.
        x, y: names of the columns.
        value, low, high: the fitted y there, and its 95 % interval (of the curve; a single run scatters
            more).
        stage1_9, stage2: steps to give each stage; None where the table does not tell.
        stage1_9_interval: 95 % interval of the best length of Stage 1.9; None where the lengths follow from
            the budget alone.
        formula: the fitted law with its numbers.
        through: which trials it goes through.
        warnings: what the reader has to know before he believes it.
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
        """The value of `budget` in the document of `sweep pareto --budget X --format json`."""
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
class Fitted:
    """A curve through a table.

    Args:
        curve: see `curve`.
        rows: the part of the table that it goes through.
        through: the same in words.
        warnings: what is doubtful about it.
    """

    curve: Curve
    rows: pd.DataFrame
    through: str
    warnings: tuple[str, ...]


def fitted(table: pd.DataFrame, *, x: str, y: str, y_goal: Goal = "minimize", draws: int = DRAWS) -> Fitted:
    """Fit y against x.

    Where only the lengths of the stages (and the seed) vary, the curve goes through all completed trials.
    Where
    other parameters vary as well, a trial says little of its lengths: it then goes through the Pareto front,
    whose points were selected for their luck, too.

    Raises:
        MissingColumn, NotNumeric: `x` or `y` is not a column of numbers.
        AnalysisError: there are too few points for a curve.
    """
    rows, through, warnings = _chosen(table, x, y, y_goal)
    curve = fit_curve(numbers(rows, x), numbers(rows, y), _sem(rows, y), goal=y_goal, draws=draws)
    if curve.law.at_edge:
        warnings.append("the points do not show how the curve bends; it may be any other that falls")
    return Fitted(curve=curve, rows=rows, through=through, warnings=tuple(warnings))


def answer(table: pd.DataFrame, *, x: str, y: str, budget: float, y_goal: Goal = "minimize") -> Answer:
    """Fit y against x (see `fitted`) and read it at the budget; in effective steps, also say how to split it.

    Raises:
        MissingColumn, NotNumeric: `x` or `y` is not a column of numbers.
        AnalysisError: the budget is no positive number, or there are too few points for a curve.
    """
    if not (np.isfinite(budget) and budget > 0):
        raise AnalysisError(f"the budget is {budget}; give a positive number in the units of {x}")
    table = with_effective_steps(table)
    found = fitted(table, x=x, y=y, y_goal=y_goal)
    rows, curve, through, warnings = found.rows, found.curve, found.through, list(found.warnings)
    if not curve.holds(budget):
        warnings.append(
            f"{number(budget)} lies outside the {number(curve.low)} to {number(curve.high)} of {x} that were "
            "tried: this is a guess about what nobody measured"
        )
    value, low, high = (float(told[0]) for told in curve.predict(budget))
    told: dict[str, Any] = {"value": value, "low": low, "high": high, "formula": formula(curve, x, y)}
    lengths: dict[str, Any] = {"stage1_9": None, "stage2": None, "stage1_9_interval": None}
    if x == "effective_steps" and y_goal == "minimize":
        lengths |= _split(rows, y, budget, told, warnings)
    return Answer(budget=budget, x=x, y=y, through=through, warnings=tuple(warnings), **(told | lengths))


def formula(curve: Curve, x: str, y: str) -> str:
    """`final_loss = 2.603 + 47.07 · effective_steps^(-0.3967)`."""
    parameters = curve.parameters()
    a, b, c = (parameters[name][0] for name in "abc")
    sign = "+" if b >= 0 else "-"
    return f"{y} = {number(a)} {sign} {number(abs(b))} · {x}^(-{number(c)})"


def surface_formula(surface: Surface, y: str) -> str:
    """The same for both lengths."""
    terms = zip(surface.law.plain_factor()[0], surface.law.exponent[0], ("stage1_9", "stage2"), strict=True)
    told = " + ".join(f"{number(b)} · (1 + {name}_steps)^(-{number(c)})" for b, c, name in terms)
    return f"{y} = {number(surface.law.offset[0])} + {told}"


def length_columns(table: pd.DataFrame) -> tuple[str, str] | None:
    """The columns of the two stages' steps; None where the table has no such."""
    return next((pair for pair in STEP_COLUMNS if set(pair) <= set(table.columns)), None)


def other_parameters(table: pd.DataFrame) -> list[str]:
    """The parameters that vary beside the stages' lengths and the seed, without the prefix."""
    known = {SEED, *(column for pair in STEP_COLUMNS for column in pair)}
    names = [str(name) for name in table.columns if str(name).startswith(PARAMETER) and name not in known]
    return [n.removeprefix(PARAMETER) for n in names if table[n].map(repr).nunique() > 1]


def _sem(rows: pd.DataFrame, y: str) -> pd.Series[Any] | None:
    try:
        return numbers(rows, y + SEM)
    except (MissingColumn, NotNumeric):
        return None


def _chosen(table: pd.DataFrame, x: str, y: str, y_goal: Goal) -> tuple[pd.DataFrame, str, list[str]]:
    """The rows to fit, what to call them, and what is doubtful about them."""
    xs, ys = numbers(table, x), numbers(table, y)
    rows = table[(np.isfinite(xs) & np.isfinite(ys)).to_numpy() & finished(table)]
    others = other_parameters(rows) if is_trials_table(rows) else []
    if not others:
        return (
            rows,
            "all " + counted(len(rows), "completed trial" if is_trials_table(rows) else "row"),
            [],
        )
    points = np.column_stack((numbers(rows, x), numbers(rows, y)))
    chosen = rows.iloc[front(points, ["minimize", y_goal])]
    named = ", ".join(others[:3]) + (" and others" if len(others) > 3 else "")
    return (
        chosen,
        f"the {counted(len(chosen), 'trial')} on the front",
        [
            f"{named} vary as well: the curve goes through the front, whose points were selected for their "
            "luck, too"
        ],
    )


def _split(
    rows: pd.DataFrame,
    y: str,
    budget: float,
    told: dict[str, Any],
    warnings: list[str],
) -> dict[str, Any]:
    """The lengths for the budget; where they come from a surface, `told` is what that says."""
    columns = length_columns(rows)
    if columns is None:
        return {}
    stage1_9, stage2 = numbers(rows, columns[0]), numbers(rows, columns[1])
    fixed1_9, fixed2 = stage1_9.nunique() == 1, stage2.nunique() == 1
    if fixed2 and not fixed1_9:
        rest = budget - float(stage2.iloc[0])
        return _one_length(int(rest // STAGE1_9_WEIGHT), int(stage2.iloc[0]), warnings)
    if fixed1_9:
        first = int(stage1_9.iloc[0])
        return _one_length(first, int(budget - STAGE1_9_WEIGHT * first), warnings)
    try:
        surface = fit_surface(stage1_9, stage2, numbers(rows, y), _sem(rows, y))
    except AnalysisError as error:
        warnings.append(f"how to split it, is not known: {error}")
        return {}
    split = surface.best_split(budget)
    warnings += [
        note for note in surface.beyond(split.stage1_9, split.stage2) if not note.startswith("compute")
    ]
    told |= {
        "value": split.loss,
        "low": split.loss_low,
        "high": split.loss_high,
        "formula": surface_formula(surface, y),
    }
    return {
        "stage1_9": split.stage1_9,
        "stage2": split.stage2,
        "stage1_9_interval": (split.stage1_9_low, split.stage1_9_high),
    }


def _one_length(stage1_9: int, stage2: int, warnings: list[str]) -> dict[str, Any]:
    """Where only one stage's length varied, the budget decides it."""
    if stage1_9 < 0 or stage2 < 0:
        warnings.append("the budget does not even pay for the stage whose length is the same in all trials")
        return {}
    return {"stage1_9": stage1_9, "stage2": stage2}
