"""Surrogates of two-stage pipelines with known cost, for `benchmarks.{trunks,transfer}`: lower is better.

Each seed is an instance of its own: it places the optimum and orders the options. Losses are shares of the
instance's range, and 0 at its optimum. Bowls are steeper above the optimum than below, as losses are over
learning rates, with ripples that a smooth model has to average over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.problems import METRIC
from sweeps.space.definition import Choice, Objective, Program, Range, Search, Space, Stage, Trunk, Value
from sweeps.space.scale import from_unit, to_unit

FIRST = (
    Range(name="stage1_9.lr", min=1e-4, max=1e-2, kind="float", log=True),
    Range(name="stage1_9.share", min=0.0, max=1.0, kind="float"),
    Choice(name="stage1_9.match", values=("logits", "hidden", "attention")),
)
SECOND = (
    Range(name="stage2.lr", min=1e-4, max=1e-2, kind="float", log=True),
    Range(name="stage2.decay", min=0.0, max=0.3, kind="float"),
    Range(name="stage2.warmup", min=0.0, max=0.5, kind="float"),
)
NUMBERS = tuple(p for p in FIRST + SECOND if isinstance(p, Range))
WEIGHTS = (1.0, 0.6, 1.0, 0.6, 0.3)
OPTIONS = (0.0, 0.15, 0.35)


@dataclass(frozen=True, kw_only=True)
class Structure:
    """Costs of the two stages, how much the first matters, and how far it moves the second's best."""

    first: float
    second: float
    matters: float = 1.0
    moves: float = 0.0


STRUCTURES = {
    "first-dear": Structure(first=800, second=200),
    "second-dear": Structure(first=200, second=800),
    "interaction": Structure(first=500, second=500, moves=0.6),
    "little": Structure(first=500, second=500, matters=0.1),
}


class Pipeline:
    """One instance of a structure.

    Attributes:
        structure: of that name.
        best: position of the optimum in each range, from 0 to 1.
    """

    def __init__(self, name: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.name, self.structure = name, STRUCTURES[name]
        self.best = rng.uniform(0.15, 0.85, len(NUMBERS))
        self._offsets = dict(zip(FIRST[2].values, rng.permutation(OPTIONS), strict=True))
        self._shifts = dict(zip(FIRST[2].values, rng.uniform(-0.3, 0.3, len(OPTIONS)), strict=True))
        self._range = 1.0
        self._range = max(self.loss(self._random(rng)) for _ in range(4096))

    def space(self, *, reuse: bool) -> Space:
        """Return the sweep that searches it, except for the seed."""
        structure = self.structure
        return Space(
            name=self.name,
            objectives=(Objective(metric=METRIC),),
            parameters=FIRST + SECOND,
            program=Program(kind="function", function="benchmarks.pipelines:none"),
            search=Search(reuse="auto" if reuse else "none"),
            stages=(
                Stage(name="stage1_9", parameters=("stage1_9.*",), cost=f"{structure.first:g}"),
                Stage(name="stage2", parameters=("stage2.*",), cost=f"{structure.second:g}"),
            ),
        )

    def loss(self, parameters: Mapping[str, Value]) -> float:
        """Return the loss without noise: the optimum's is 0, the range's end 1."""
        units = [to_unit(p, float(parameters[p.name])) for p in NUMBERS]
        away = [unit - best for unit, best in zip(units, self.best, strict=True)]
        match = parameters[FIRST[2].name]
        at_best = self._offsets[match] == 0.0
        away[2] -= self.structure.moves * (away[0] + (0.0 if at_best else self._shifts[match]))
        scale = (self.structure.matters, self.structure.matters, 1.0, 1.0, 1.0)
        bowls = (s * w * _bowl(d) for s, w, d in zip(scale, WEIGHTS, away, strict=True))
        return (math.fsum(bowls) + self.structure.matters * float(self._offsets[match])) / self._range

    def _random(self, rng: np.random.Generator) -> dict[str, Value]:
        values: dict[str, Value] = {p.name: from_unit(p, rng.uniform()) for p in NUMBERS}
        return values | {FIRST[2].name: FIRST[2].values[int(rng.integers(len(OPTIONS)))]}


LENGTHS = (
    Range(name="stage1_9.max_steps", min=20, max=400, kind="int", log=True),
    Range(name="stage2.max_steps", min=40, max=800, kind="int", log=True),
)
COMPUTE = "compute"
STEP_COSTS = (2.0, 1.0)
WORST = {METRIC: 1.0, COMPUTE: 1600.0}
"""Thresholds of the objectives: what is worse is of no interest to the search, and has no hypervolume."""
DECAY = 0.15
FALLS = (0.3, 0.6)
"""Loss at the shortest length of each stage, in ranges of the loss over the other parameters."""


class LengthPipeline(Pipeline):
    """One instance in which the lengths of both stages are searched, for loss and compute.

    The loss falls with each length by a power law. A branch ends where a run of its length ends.
    """

    def __init__(self, name: str, seed: int) -> None:
        self._exponents = np.random.default_rng((seed, 2)).uniform(0.2, 0.8, len(LENGTHS))
        super().__init__(name, seed)

    def lengths_space(self, *, reuse: bool, trunks: bool) -> Space:
        """Return the sweep that searches it, except for the seed; points are an eighth of a trunk apart."""
        trunk = {
            p.name: Trunk(length=p.name, decay=DECAY, every=math.ceil(p.max * (1 - DECAY) / 8))
            for p in LENGTHS
        }
        stages = tuple(
            Stage(
                name=name,
                parameters=(f"{name}.*",),
                cost=f"{cost:g}*{name}.max_steps",
                trunk=trunk[f"{name}.max_steps"] if trunks else None,
            )
            for name, cost in zip(("stage1_9", "stage2"), STEP_COSTS, strict=True)
        )
        objectives = (Objective(metric=METRIC), Objective(metric=COMPUTE))
        space = self.space(reuse=reuse)
        parameters = FIRST + LENGTHS[:1] + SECOND + LENGTHS[1:]
        return replace(
            space,
            parameters=parameters,
            objectives=objectives,
            outcome_constraints=tuple(f"{metric} <= {worst:g}" for metric, worst in WORST.items()),
            stages=stages,
        )

    def loss(self, parameters: Mapping[str, Value]) -> float:
        """Return the loss without noise: 0 at the optimum with the longest stages."""
        return super().loss(parameters) + math.fsum(
            share * _fall(length, float(parameters[length.name]), exponent)
            for share, length, exponent in zip(FALLS, LENGTHS, self._exponents, strict=True)
            if length.name in parameters  # not while the range of the others is measured
        )


def compute(parameters: Mapping[str, Value]) -> float:
    """Return the compute of both stages from scratch."""
    pairs = zip(STEP_COSTS, LENGTHS, strict=True)
    return math.fsum(cost * float(parameters[length.name]) for cost, length in pairs)


def _fall(length: Range, steps: float, exponent: float) -> float:
    """Return a power law in the steps, from 1 at the shortest length to 0 at the longest."""
    return ((steps / length.max) ** -exponent - 1.0) / ((length.min / length.max) ** -exponent - 1.0)


def _bowl(away: float) -> float:
    """Return 0 at 0, and more elsewhere."""
    return away**2 * (1.5 if away > 0 else 1.0) + 0.01 * (1.0 - math.cos(4 * math.pi * away))
