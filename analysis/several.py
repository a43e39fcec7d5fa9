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
from analysis.headline import Objective
from analysis.hypervolume import hypervolume, reference_point
from analysis.pareto import Floats, front
from analysis.table import finished, numbers, trial_indices

LEAST = 3
"""Fewer objectives than this are a matter of one picture."""

PAIRED = 5
"""Up to so many objectives every pair is drawn (ten pictures); beyond, each against the first."""

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
    """

    objectives: tuple[Objective, ...]
    trials: tuple[int, ...]
    values: Floats
    front: tuple[int, ...]
    hypervolume: float | None
    reference: tuple[float, ...] | None

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


def several(table: pd.DataFrame, objectives: Sequence[Objective]) -> Several | None:
    """The front in all objectives; None for fewer than three.

    Of a sweep's own table only completed trials count; of any other, every row with all values.

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
    few = len(on_front) ** max(0, len(goals) - 2) <= SLICES or len(goals) == LEAST
    return Several(
        objectives=tuple(objectives),
        trials=tuple(trial_indices(table)[kept].tolist()),
        values=values,
        front=tuple(on_front[np.argsort(sign * values[on_front, 0], kind="stable")].tolist()),
        hypervolume=hypervolume(values, goals, reference) if reference and few else None,
        reference=reference,
    )
