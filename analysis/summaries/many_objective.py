"""The front in three objectives or more, and the pairs in which it is drawn.

For two objectives see `summary.pareto`; knee and efficiency are only defined for two axes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from analysis.errors import AnalysisError
from analysis.statistics.attainment import membership
from analysis.statistics.hypervolume import hypervolume, reference_point
from analysis.statistics.pareto import Floats, front
from analysis.summaries.summary_line import Objective
from analysis.summaries.uncertainty import joint_factors
from analysis.table import TableLike, TrialsTable

MIN_OBJECTIVES = 3
"""One picture shows fewer objectives than this."""

MAX_PAIRED = 5
"""Up to this many objectives every pair is drawn (ten pictures); beyond, each against the first."""

DRAWS = 1000
MAX_DRAWN, MIN_DRAWS = 400_000, 30
"""At most MAX_DRAWN trials are drawn for the chances (about a second): fewer draws of more trials, and none
if that leaves fewer than MIN_DRAWS."""

MAX_SLICES = 100_000
"""The hypervolume is cut into front^(objectives - 2) slices; it is left out if there are more than this."""


@dataclass(frozen=True, kw_only=True)
class ManyObjectiveFront:
    """The trade-off among K objectives.

    Args:
        objectives: K of them.
        trials: [N] indices of the trials that have a finite value for each.
        values: [N, K] in the columns' own units.
        front: positions of the trials that no other one beats, the best by the first objective first.
        hypervolume: of the front, infinite beyond the largest float; None without points, or if it would take
            too long (see MAX_SLICES).
        reference: the reference point of the hypervolume; None without points.
        draws: number of draws of all values; 0 if no value has a standard error, or for too many trials.
        chances: [N] share of the draws in which each trial is on the front; empty without draws.
    """

    objectives: tuple[Objective, ...]
    trials: tuple[int, ...]
    values: Floats
    front: tuple[int, ...]
    hypervolume: float | None
    reference: tuple[float, ...] | None
    draws: int
    chances: tuple[float, ...]
    confirmed: Mapping[int, int] = field(default_factory=dict)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Return the pairs of objectives to draw, as (horizontal, vertical) positions."""
        count = len(self.objectives)
        if count <= MAX_PAIRED:
            return tuple((b, a) for a, b in combinations(range(count), 2))
        return tuple((other, 0) for other in range(1, count))

    def pair_front(self, x: int, y: int) -> tuple[int, ...]:
        """Return the positions of the trials on the front of just two objectives, by ascending x."""
        goals = (self.objectives[x].goal, self.objectives[y].goal)
        found = front(self.values[:, [x, y]], goals)
        return tuple(found[np.argsort(self.values[found, x], kind="stable")].tolist())

    def to_json(self) -> dict[str, Any]:
        """Return the value of `objectives` in the document of `sweep pareto --format json`."""
        is_finite = self.hypervolume is not None and math.isfinite(self.hypervolume)
        return {
            "metrics": [{"metric": o.metric, "goal": o.goal} for o in self.objectives],
            "front": [self.trials[at] for at in self.front],
            "hypervolume": self.hypervolume if is_finite else None,  # JSON has no infinity
            "reference": None if self.reference is None else list(self.reference),
            **(
                {"confirmed_by_seeds": {str(t): n for t, n in self.confirmed.items()}}
                if self.confirmed
                else {}
            ),
            **(
                {"chances": dict(zip(map(str, self.trials), self.chances, strict=True))} if self.draws else {}
            ),
        }


def many_objective_front(
    table: TableLike, objectives: Sequence[Objective], *, draws: int = DRAWS
) -> ManyObjectiveFront | None:
    """Find the front in all objectives; None for fewer than three.

    Of a sweep's own table only completed trials within its outcome constraints count, and each confirmed
    configuration is one point; of any other, every row with all values.

    Raises:
        MissingColumn: there is no column of an objective.
        NotNumeric: an objective is not a column of numbers.
        AnalysisError: an objective is named twice.
    """
    given: object = objectives
    if not isinstance(given, Sequence) or not all(isinstance(each, Objective) for each in given):
        raise AnalysisError(f"the objectives are {objectives!r:.80}; give a list of `Objective`")
    if len(objectives) < MIN_OBJECTIVES:
        return None
    table = TrialsTable.from_frame(table).configurations
    names = [objective.metric for objective in objectives]
    for name in names:
        if names.count(name) > 1:
            raise AnalysisError(f"the objective {name!r} is named twice")
    columns = np.column_stack([table.floats(name) for name in names])
    kept = np.flatnonzero(np.isfinite(columns).all(axis=1) & table.feasible)
    values, goals = columns[kept], [objective.goal for objective in objectives]
    on_front = front(values, goals)
    sign = 1.0 if goals[0] == "minimize" else -1.0
    reference = reference_point(values, goals)
    errors = np.column_stack([table.standard_errors(name) for name in names])[kept]
    trials = table.trials[kept].tolist()
    draws = min(draws, MAX_DRAWN // len(trials)) if trials else 0
    if draws < MIN_DRAWS or not np.isfinite(errors).any():
        draws, chances = 0, np.empty(0)
    else:
        joint = [joint_factors(table, name, trials) for name in names]
        chances = membership(values, errors, goals, joint=joint, draws=draws)
    measurable = len(on_front) ** (len(goals) - 2) <= MAX_SLICES or len(goals) == MIN_OBJECTIVES
    return ManyObjectiveFront(
        objectives=tuple(objectives),
        trials=tuple(trials),
        values=values,
        front=tuple(on_front[np.argsort(sign * values[on_front, 0], kind="stable")].tolist()),
        hypervolume=hypervolume(values, goals, reference) if reference and measurable else None,
        reference=reference,
        draws=draws,
        chances=tuple(chances.tolist()),
        confirmed=table.repeats.seeds(trials),
    )
