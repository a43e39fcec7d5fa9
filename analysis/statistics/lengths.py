"""Loss over the lengths of both stages, and the best split of a given compute.

    loss = a + b₁ · (1 + stage 1.9 steps)^(-c₁) + b₂ · (1 + stage 2 steps)^(-c₂)

The stages' gains are taken to add up. The 1 lets a stage be left out. A form of this kind with parameters and
tokens for the two lengths is Hoffmann et al., arXiv:2203.15556, eq. 2; the split follows from it as their
compute optimum does, with the effective steps of the lengths (`StepCosts`) for the compute.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.errors import AnalysisError
from analysis.statistics.curve import known_errors
from analysis.statistics.efficiency import STAGE1_9_WEIGHT, effective_steps
from analysis.statistics.pareto import Floats
from analysis.statistics.power_law import Law, fit, interval
from sweeps.text.counted import counted

DRAWS = 300
STAGE2_WEIGHTS = (1, 2)
"""Effective steps of a step of Stage 2: alone, and with the teacher beside it."""
DISTINCT = 3
CONFIGURATIONS = 7
SPLITS = 401
"""Splits of a budget that are compared, a quarter of a percent apart."""


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """Effective steps of a trial: `2 · stage 1.9 steps + stage2 · stage 2 steps + others`.

    Args:
        stage2: of one step of Stage 2.
        others: of all further stages, the same in every trial.
    """

    stage2: int = 1
    others: float = 0.0

    def total(self, stage1_9: Floats | float, stage2: Floats | float) -> Floats:
        """Return the effective steps of [N] lengths."""
        return effective_steps(_floats(stage1_9), self.stage2 * _floats(stage2)) + self.others

    def left_for_stage2(self, budget: float, stage1_9: float) -> int:
        """Return the steps of Stage 2 that a budget pays for beside so many of Stage 1.9; negative: none."""
        return int((budget - self.others - STAGE1_9_WEIGHT * stage1_9) // self.stage2)

    def left_for_stage1_9(self, budget: float, stage2: float) -> int:
        """Return the steps of Stage 1.9 that a budget pays for beside so many of Stage 2; negative: none."""
        return int((budget - self.others - self.stage2 * stage2) // STAGE1_9_WEIGHT)


def step_costs(stage1_9: npt.ArrayLike, stage2: npt.ArrayLike, steps: npt.ArrayLike) -> StepCosts:
    """Return what the steps of trials cost, by their effective steps; rows with a missing value are ignored.

    Args:
        stage1_9: [N] steps of Stage 1.9.
        stage2: [N] steps of Stage 2.
        steps: [N] effective steps.

    Raises:
        AnalysisError: no `StepCosts` explain them, as where the length of a further stage varies.
    """
    first, second, total = _floats(stage1_9), _floats(stage2), _floats(steps)
    for weight in STAGE2_WEIGHTS:
        others = total - effective_steps(first, weight * second)
        others = others[np.isfinite(others)]
        if np.allclose(others, others[:1], rtol=0.0, atol=1e-6):
            return StepCosts(stage2=weight, others=float(others[0]) if others.size else 0.0)
    raise AnalysisError(
        "effective_steps do not follow from the two lengths: more varies that costs steps, such as another "
        "stage's length or whether the teacher runs in Stage 2"
    )


@dataclass(frozen=True, kw_only=True)
class Split:
    """The split of a budget that the fitted surface calls best.

    Args:
        stage1_9: steps of Stage 1.9, within the budget.
        stage2: steps of Stage 2 that the remainder of the budget pays for.
        stage1_9_low: lower end of the 95 % interval of the best `stage1_9`.
        loss_low: lower end of its 95 % interval.
    """

    stage1_9: int
    stage2: int
    stage1_9_low: int
    stage1_9_high: int
    loss: float
    loss_low: float
    loss_high: float


@dataclass(frozen=True, kw_only=True)
class Surface:
    """A fitted surface.

    Args:
        stage1_9: smallest and largest number of Stage 1.9 steps among the points.
        stage2: the same of Stage 2 steps.
        compute: the same of effective steps.
        costs: of the steps.
    """

    law: Law
    stage1_9: tuple[float, float]
    stage2: tuple[float, float]
    compute: tuple[float, float]
    costs: StepCosts

    def predict(self, stage1_9: npt.ArrayLike, stage2: npt.ArrayLike) -> tuple[Floats, Floats, Floats]:
        """Return the surface at M pairs of lengths and its 95 % interval (value, low, high), each [M]."""
        values = self._values(stage1_9, stage2)
        low, high = interval(values[1:])
        return values[0], low, high

    def iso_compute(self, budget: float) -> tuple[Floats, Floats, Floats]:
        """Return the splits of a budget: Stage 1.9 steps, Stage 2 steps and fitted loss, each [M].

        Raises:
            AnalysisError: see `best_split`.
        """
        stage1_9, stage2 = self._splits(budget)
        return stage1_9, stage2, self._values(stage1_9, stage2)[0]

    def best_split(self, budget: float) -> Split:
        """Return the lengths with the least fitted loss among those that cost `budget` effective steps.

        Raises:
            AnalysisError: the budget is not a number of 1 or more, or other stages cost more.
        """
        stage1_9, stage2 = self._splits(budget)
        values = self._values(stage1_9, stage2)
        best = stage1_9[values.argmin(axis=1)]
        low, high = interval(best[1:])
        steps = round(float(best[0]))
        steps -= self.costs.left_for_stage2(budget, steps) < 0
        stage2_steps = self.costs.left_for_stage2(budget, steps)
        loss, loss_low, loss_high = self.predict([steps], [stage2_steps])
        return Split(
            stage1_9=steps,
            stage2=stage2_steps,
            stage1_9_low=int(low),
            stage1_9_high=round(float(high)),
            loss=float(loss[0]),
            loss_low=float(loss_low[0]),
            loss_high=float(loss_high[0]),
        )

    def beyond(self, stage1_9: float, stage2: float) -> list[str]:
        """Return a message for each respect in which the lengths lie outside those that were tried."""
        ranges = (
            ("Stage 1.9", stage1_9, self.stage1_9, "steps"),
            ("Stage 2", stage2, self.stage2, "steps"),
            ("compute", float(self.costs.total(stage1_9, stage2)[0]), self.compute, "effective steps"),
        )
        return [
            f"{what}: {value:g} {unit} lie outside the {low:g} to {high:g} that were tried"
            for what, value, (low, high), unit in ranges
            if not low <= value <= high
        ]

    def _splits(self, budget: float) -> tuple[Floats, Floats]:
        if not (np.isfinite(budget) and budget >= 1):
            raise AnalysisError(f"the budget is {budget}; give a number of effective steps, 1 or more")
        left = budget - self.costs.others
        if left < 1:
            raise AnalysisError(
                f"a budget of {budget:g} does not even pay for stages whose length is the same in all trials"
            )
        stage1_9 = np.linspace(0.0, left / STAGE1_9_WEIGHT, SPLITS)
        return stage1_9, (left - STAGE1_9_WEIGHT * stage1_9) / self.costs.stage2

    def _values(self, stage1_9: npt.ArrayLike, stage2: npt.ArrayLike) -> Floats:
        return self.law.values(1.0 + np.column_stack((_floats(stage1_9), _floats(stage2))))


def fit_surface(
    stage1_9: npt.ArrayLike,
    stage2: npt.ArrayLike,
    loss: npt.ArrayLike,
    sem: npt.ArrayLike | None = None,
    *,
    costs: StepCosts = StepCosts(),
    draws: int = DRAWS,
    seed: int = 0,
) -> Surface:
    """Fit loss over the lengths of the two stages; rows with a missing value are ignored.

    Args:
        stage1_9: [N] steps of Stage 1.9.
        stage2: [N] steps of Stage 2.
        loss: [N] losses.
        sem: [N] standard errors of the losses; used if every point has one.
        costs: of the steps.

    Raises:
        AnalysisError: fewer than three different lengths of a stage, or fewer than seven different pairs.
    """
    first, second, losses = _floats(stage1_9), _floats(stage2), _floats(loss)
    kept = np.isfinite(first) & np.isfinite(second) & np.isfinite(losses) & (first >= 0) & (second >= 0)
    first, second, losses = first[kept], second[kept], losses[kept]
    pairs = np.column_stack((first, second))
    counts = zip((len(np.unique(steps)) for steps in pairs.T), ("Stage 1.9", "Stage 2"), strict=True)
    short = [f"{count} of {stage}" for count, stage in counts if count < DISTINCT]
    different = len(np.unique(pairs, axis=0))
    if short or different < CONFIGURATIONS:
        found = ", ".join(short) or counted(different, "pair")
        raise AnalysisError(
            f"loss over both lengths needs {DISTINCT} different lengths of each stage and {CONFIGURATIONS} "
            f"different pairs; there are {found}"
        )
    floor = 0.0 if (losses > 0).all() else None
    law = fit(1.0 + pairs, losses, known_errors(sem, kept), floor=floor, draws=draws, seed=seed)
    compute = costs.total(first, second)
    return Surface(
        law=law,
        stage1_9=(float(first.min()), float(first.max())),
        stage2=(float(second.min()), float(second.max())),
        compute=(float(compute.min()), float(compute.max())),
        costs=costs,
    )


def _floats(values: npt.ArrayLike) -> Floats:
    return np.atleast_1d(np.asarray(values, dtype=np.float64))
