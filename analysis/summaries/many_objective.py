"""Three objectives or more: the front in all of them at once, and the pairs in which it can be drawn.

`contents`, `sweep pareto` and the notebooks call this. Two objectives are `summary.pareto`'s; knee and
efficiency are words for two axes and are not defined here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from analysis.errors import AnalysisError
from analysis.statistics.hypervolume import hypervolume, reference_point
from analysis.statistics.pareto import Floats, Goal, front
from analysis.summaries.summary_line import Objective
from analysis.summaries.uncertainty import standard_errors
from analysis.table import finished, numbers, trial_indices

LEAST = 3
"""Fewer objectives than this are a matter of one picture."""

PAIRED = 5
"""Up to so many objectives every pair is drawn (ten pictures); beyond, each against the first."""

DRAWS, DRAWN, FEWEST = 1000, 400_000, 30
"""How often all values are drawn anew for the chances: DRAWS times, with more trials fewer, so that at most
DRAWN trials are drawn (about a second), and not at all below FEWEST times."""

SLICES = 100_000
"""The hypervolume is cut into slices, front^(objectives - 2) of them; beyond so many it is left out."""


@dataclass(frozen=True, kw_only=True)
class Several:
    """The trade-off among K objectives.

    Args:
        objectives: K of them.
        trials: [N] indices of the trials that have a finite value for each.
        values: [N, K] in the columns' own units.
        front: positions of the trials that no other one beats, the best by the first objective first.
        hypervolume, reference: of the front within the reference point; None without points, or where it
            would take too long (see SLICES).
        draws: how often all values were drawn anew; 0 where no value has a standard error, or for too many
            trials.
        chances: [N] in what share of the draws each trial is on the front; empty without draws.
    """

    objectives: tuple[Objective, ...]
    trials: tuple[int, ...]
    values: Floats
    front: tuple[int, ...]
    hypervolume: float | None
    reference: tuple[float, ...] | None
    draws: int
    chances: tuple[float, ...]

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs of objectives to draw, as (horizontal, vertical) positions."""
        count = len(self.objectives)
        if count <= PAIRED:
            return tuple((b, a) for a, b in combinations(range(count), 2))
        return tuple((other, 0) for other in range(1, count))

    def alone(self, x: int, y: int) -> tuple[int, ...]:
        """Positions of the front of two of the objectives by themselves, by ascending x."""
        goals = (self.objectives[x].goal, self.objectives[y].goal)
        found = front(self.values[:, [x, y]], goals)
        return tuple(found[np.argsort(self.values[found, x], kind="stable")].tolist())

    def to_json(self) -> dict[str, Any]:
        """The key `objectives` of `sweep pareto --format json`."""
        return {
            "metrics": [{"metric": o.metric, "goal": o.goal} for o in self.objectives],
            "front": [self.trials[at] for at in self.front],
            "hypervolume": self.hypervolume,
            "reference": None if self.reference is None else list(self.reference),
        }


def several(table: pd.DataFrame, objectives: Sequence[Objective], *, draws: int = DRAWS) -> Several | None:
    """The front in all objectives; None for fewer than three.

    Of a sweep's own table only completed trials count; of any other, every row with all values.

    Args:
        draws: at most so many for the chances.

    Raises:
        MissingColumn, NotNumeric: an objective is not a column of numbers.
        AnalysisError: an objective is named twice.
    """
    if len(objectives) < LEAST:
        return None
    names = [objective.metric for objective in objectives]
    for name in names:
        if names.count(name) > 1:
            raise AnalysisError(f"the objective {name!r} is named twice")
    told = np.column_stack([numbers(table, name).to_numpy("float64") for name in names])
    kept = np.flatnonzero(np.isfinite(told).all(axis=1) & finished(table))
    values, goals = told[kept], [objective.goal for objective in objectives]
    on_front = front(values, goals)
    sign = 1.0 if goals[0] == "minimize" else -1.0
    reference = reference_point(values, goals)
    errors = np.column_stack([np.nan_to_num(standard_errors(table, name)) for name in names])[kept]
    draws, chances = _chances(values, errors, goals, draws)
    few = len(on_front) ** max(0, len(goals) - 2) <= SLICES or len(goals) == LEAST
    return Several(
        objectives=tuple(objectives),
        trials=tuple(trial_indices(table)[kept].tolist()),
        values=values,
        front=tuple(on_front[np.argsort(sign * values[on_front, 0], kind="stable")].tolist()),
        hypervolume=hypervolume(values, goals, reference) if reference and few else None,
        reference=reference,
        draws=draws,
        chances=tuple(chances.tolist()),
    )


def _chances(values: Floats, errors: Floats, goals: Sequence[Goal], most: int) -> tuple[int, Floats]:
    """How often each trial is on the front when every value is drawn from a normal distribution around what
    was measured, with its standard error (`attainment` does this for two axes); same table, same answer.

    Args:
        values, errors: [N, K]; an error of 0 is none.
        most: draws, fewer for many trials.
    """
    count = len(values)
    draws = min(most, DRAWN // count) if count else 0
    if draws < FEWEST or not errors.any():
        return 0, np.empty(0)
    generator, seen = np.random.default_rng(0), np.zeros(count)
    for _ in range(draws):
        seen[front(values + errors * generator.standard_normal(values.shape), goals)] += 1
    return draws, seen / draws
