"""Test functions for the optimizer's benchmarks, each with its search space: lower is better.

`benchmarks.ask` and `benchmarks.search` use them. Branin and Hartmann6 are the usual ones (Surjanovic and
Bingham, sfu.ca/~ssurjano); `two_stage` is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from sweeps.space.definition import Choice, Objective, Parameter, Program, Range, Search, Space, Value
from sweeps.trials.record import Generator, Trial

METRIC = "loss"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Function of parameters with a known best value."""

    name: str
    parameters: tuple[Parameter, ...]
    function: Callable[[Mapping[str, Value]], float]
    optimum: float

    def space(self, *, seed: int, sobol: int) -> Space:
        """Return the sweep that searches it."""
        return Space(
            name=self.name,
            objectives=(Objective(metric=METRIC),),
            parameters=self.parameters,
            program=Program(kind="function", function=f"benchmarks.problems:{self.name}"),
            search=Search(seed=seed, sobol=sobol),
        )


def completed_trial(
    index: int, parameters: Mapping[str, Value], generator: Generator, loss: float, **metrics: float
) -> Trial:
    """Return the record of a trial that returned `loss`."""
    found = {METRIC: loss, **metrics}
    return Trial(trial=index, status="completed", parameters=parameters, generator=generator, metrics=found)


def branin(parameters: Mapping[str, Value]) -> float:
    x, y = float(parameters["x"]), float(parameters["y"])
    valley = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return valley**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


_A = np.array(
    [
        [10, 3, 17, 3.5, 1.7, 8],
        [0.05, 10, 17, 0.1, 8, 14],
        [3, 3.5, 1.7, 10, 17, 8],
        [17, 8, 0.05, 10, 0.1, 14],
    ]
)
_P = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)
_ALPHA = np.array([1.0, 1.2, 3.0, 3.2])


def hartmann6(parameters: Mapping[str, Value]) -> float:
    x = np.array([float(parameters[f"x{i}"]) for i in range(6)])
    return -float(_ALPHA @ np.exp(-(_A * (x - _P) ** 2).sum(axis=1)))


def two_stage(parameters: Mapping[str, Value]) -> float:
    """Return a model of the two-stage trainer's final loss plus a price on compute, fitted to the notebook.

    The curve over Stage 1.9's steps s, 7.83 - 3.54 / (1 + (263 / s)^1.25), is a least-squares fit of its
    length sweep (50: 7.52, 100: 6.92, 200: 6.39, 500: 5.39, 1000: 4.84; without Stage 1.9 7.83) within 0.1.
    Learning rates are best at 3e-3 and 2.4e-3, quadratic in their logarithms and not independent; saliency
    costs 0.36 at k = 0.1. A hundred effective steps (2 s + 200) cost 0.2, which puts the optimum inside.
    """
    steps = int(parameters["stage1_9.max_steps"])
    first = math.log(float(parameters["stage1_9.optimizer.lr"]) / 3e-3)
    second = math.log(float(parameters["stage2.optimizer.lr"]) / 2.4e-3)
    loss = _curve(steps) + 0.35 * first**2 + 0.5 * second**2 + 0.25 * first * second
    loss += 0.05 if parameters["stage2.lambda_warmup.schedule"] == "cosine" else 0.0
    if parameters["stage1_9.saliency.enabled"]:
        loss += 0.26 + float(parameters["stage1_9.saliency.initial_k"])
        loss += 0.03 if parameters["stage1_9.saliency.schedule"] == "linear" else 0.0
        loss += {0.95: 0.05, 0.99: 0.0, 0.995: 0.02}[float(parameters["stage1_9.saliency.ema"])]
    return loss + 0.2 * (2 * steps + 200) / 100


def _best_length() -> float:
    return min(_curve(steps) + 0.2 * (2 * steps + 200) / 100 for steps in range(50, 1001))


def _curve(steps: int) -> float:
    return 7.83 - 3.54 / (1 + math.pow(263 / steps, 1.25))


PROBLEMS = {
    "branin": Problem(
        name="branin",
        parameters=(
            Range(name="x", min=-5.0, max=10.0, kind="float"),
            Range(name="y", min=0.0, max=15.0, kind="float"),
        ),
        function=branin,
        optimum=0.397887,
    ),
    "hartmann6": Problem(
        name="hartmann6",
        parameters=tuple(Range(name=f"x{i}", min=0.0, max=1.0, kind="float") for i in range(6)),
        function=hartmann6,
        optimum=-3.32237,
    ),
    "two_stage": Problem(
        name="two_stage",
        parameters=(
            Range(name="stage1_9.optimizer.lr", min=1e-3, max=8e-3, kind="float", log=True),
            Range(name="stage1_9.max_steps", min=50, max=1000, kind="int", log=True),
            Choice(
                name="stage1_9.saliency.enabled",
                values=(True, False),
                when=(
                    (
                        True,
                        (
                            "stage1_9.saliency.initial_k",
                            "stage1_9.saliency.schedule",
                            "stage1_9.saliency.ema",
                        ),
                    ),
                ),
            ),
            Choice(name="stage1_9.saliency.initial_k", values=(0.05, 0.1, 0.15, 0.2), ordered=True),
            Choice(name="stage1_9.saliency.schedule", values=("linear", "cosine")),
            Choice(name="stage1_9.saliency.ema", values=(0.95, 0.99, 0.995), ordered=True),
            Range(name="stage2.optimizer.lr", min=1e-3, max=8e-3, kind="float", log=True),
            Choice(name="stage2.lambda_warmup.schedule", values=("linear", "cosine")),
        ),
        function=two_stage,
        optimum=_best_length(),
    ),
}
