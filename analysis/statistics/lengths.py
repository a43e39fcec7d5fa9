"""Loss over the lengths of both stages, and the best split of a given compute.

    loss = a + b₁ · (1 + stage 1.9 steps)^(-c₁) + b₂ · (1 + stage 2 steps)^(-c₂)

The stages' gains are taken to add up. The 1 lets a stage be left out. A form of this kind with parameters and
tokens for the two lengths is Hoffmann et al., arXiv:2203.15556, eq. 2; the split follows from it as their
compute optimum does, with `2 · stage 1.9 steps + stage 2 steps` for the compute.
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
DISTINCT = 3
CONFIGURATIONS = 7
SPLITS = 401
"""Splits of a budget that are compared, a quarter of a percent apart."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """The split of a budget that the fitted surface calls best.

    Args:
        stage1_9: steps of Stage 1.9, within the budget.
        stage2: steps of Stage 2, the remainder of the budget.
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
    """

    law: Law
    stage1_9: tuple[float, float]
    stage2: tuple[float, float]
    compute: tuple[float, float]

    def predict(self, stage1_9: npt.ArrayLike, stage2: npt.ArrayLike) -> tuple[Floats, Floats, Floats]:
        """Return the surface at M pairs of lengths and its 95 % interval (value, low, high), each [M]."""
        values = self._values(stage1_9, stage2)
        low, high = interval(values[1:])
        return values[0], low, high

    def iso_compute(self, budget: float) -> tuple[Floats, Floats, Floats]:
        """Return the splits of a budget: Stage 1.9 steps, Stage 2 steps and fitted loss, each [M]."""
        stage1_9, stage2 = _splits(budget)
        return stage1_9, stage2, self._values(stage1_9, stage2)[0]

    def best_split(self, budget: float) -> Split:
        """Return the lengths with the least fitted loss among those that cost `budget` effective steps.

        Raises:
            AnalysisError: the budget is not a number of 1 or more.
        """
        if not (np.isfinite(budget) and budget >= 1):
            raise AnalysisError(f"the budget is {budget}; give a number of effective steps, 1 or more")
        stage1_9, stage2 = _splits(budget)
        values = self._values(stage1_9, stage2)
        best = stage1_9[values.argmin(axis=1)]
        low, high = interval(best[1:])
        steps = round(float(best[0]))
        steps -= effective_steps(steps, 0) > budget
        stage2_steps = int(budget) - STAGE1_9_WEIGHT * steps
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
            ("compute", effective_steps(stage1_9, stage2), self.compute, "effective steps"),
        )
        return [
            f"{what}: {value:g} {unit} lie outside the {low:g} to {high:g} that were tried"
            for what, value, (low, high), unit in ranges
            if not low <= value <= high
        ]

    def _values(self, stage1_9: npt.ArrayLike, stage2: npt.ArrayLike) -> Floats:
        return self.law.values(1.0 + np.column_stack((_floats(stage1_9), _floats(stage2))))


def fit_surface(
    stage1_9: npt.ArrayLike,
    stage2: npt.ArrayLike,
    loss: npt.ArrayLike,
    sem: npt.ArrayLike | None = None,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Surface:
    """Fit loss over the lengths of the two stages; rows with a missing value are ignored.

    Args:
        stage1_9: [N] steps of Stage 1.9.
        stage2: [N] steps of Stage 2.
        loss: [N] losses.
        sem: [N] standard errors of the losses; used if every point has one.

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
    compute = effective_steps(first, second)
    return Surface(
        law=law,
        stage1_9=(float(first.min()), float(first.max())),
        stage2=(float(second.min()), float(second.max())),
        compute=(float(compute.min()), float(compute.max())),
    )


def _splits(budget: float) -> tuple[Floats, Floats]:
    stage1_9 = np.linspace(0.0, budget / STAGE1_9_WEIGHT, SPLITS)
    return stage1_9, budget - STAGE1_9_WEIGHT * stage1_9


def _floats(values: npt.ArrayLike) -> Floats:
    return np.atleast_1d(np.asarray(values, dtype=np.float64))
