"""Learning curves of simulated two-stage runs that cross, for `benchmarks.early_stopping`.

A run is judged by the held-out loss of the fully quantised student: high while lambda warms up, then it
plunges; it falls once more when the learning rate decays. So of two runs the one that is worse at half of its
length may end better. Each seed has optima, sizes and shapes of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sweeps.space.definition import Choice, EarlyTerminate, Objective, Program, Range, Search, Space, Value
from sweeps.space.domain import Domain
from sweeps.space.scale import from_unit
from sweeps.trials.record import Trial

METRIC = "final_loss"
COMPUTE = "effective_steps"
SOBOL = 12
"""Trials before the search goes near the best."""

NOISE = 0.01
"""Standard deviation of the final loss between seeds, as docs/explanation/findings.md has it."""

PARAMETERS = (
    Range(name="stage1_9.max_steps", min=0, max=200, kind="int"),
    Range(name="stage2.max_steps", min=100, max=400, kind="int", log=True),
    Range(name="stage2.optimizer.lr", min=1e-3, max=8e-3, kind="float", log=True),
    Range(name="stage2.lambda_warmup.share", min=0.05, max=0.8, kind="float"),
    Range(name="stage2.decay.share", min=0.1, max=1.0, kind="float"),
    Choice(name="stage2.lambda_warmup.schedule", values=("linear", "cosine")),
)


@dataclass(frozen=True)
class Run:
    """A simulated run: what it logs, and how it ends if nobody stops it."""

    units: dict[str, float]
    parameters: dict[str, Value]
    length: int
    curve: tuple[tuple[float, float], ...]
    final: float
    compute: float


def space(*, objectives: int = 1, early: EarlyTerminate | None = None) -> Space:
    """Return the sweep that searches the simulated runs; the second objective is compute."""
    return Space(
        name="curves",
        objectives=tuple(Objective(metric=metric) for metric in (METRIC, COMPUTE)[:objectives]),
        parameters=PARAMETERS,
        program=Program(kind="command", command=("true", "${overrides}")),
        search=Search(method="random"),
        early_terminate=early,
    )


def runs(seed: int, trials: int, *, points: int, spread: float) -> list[Run]:
    """Return runs with random parameters, of one sweep.

    Args:
        seed: of the sweep: the optima and sizes, the parameters and the noise.
        trials: how many.
        points: losses in a run, at equal shares of its length; the last one before its end.
        spread: standard deviation of a logged loss (text and batch).
    """
    rng = np.random.default_rng(seed)
    problem = {
        "lr": rng.uniform(0.2, 0.8),  # best, of the logarithmic range
        "warmup": rng.uniform(0.2, 0.9),
        "floor": rng.uniform(2.8, 3.2),
        "excess": rng.uniform(0.5, 4.0),  # of the quantised student before lambda's warmup has ended
        "plateau": rng.uniform(0.05, 0.5),  # what a high learning rate costs until it decays
        "first": rng.uniform(0.1, 0.5),  # what Stage 1.9 buys
        "length": rng.uniform(0.2, 1.0),
        "power": rng.uniform(0.3, 0.8),
    }
    domain = Domain(space())
    found = []
    for index in range(trials):
        units = {parameter.name: rng.uniform() for parameter in PARAMETERS}
        if index >= SOBOL and index % 2:  # as a search does, near the best known
            best = min(found, key=lambda run: run.final)
            units = {
                name: float(np.clip(u + rng.normal(scale=0.1), 0, 0.999)) for name, u in best.units.items()
            }
        found.append(_run(problem, units, domain, rng, points, spread))
    return found


def _run(
    problem: dict[str, float],
    units: dict[str, float],
    domain: Domain,
    rng: np.random.Generator,
    points: int,
    spread: float,
) -> Run:
    parameters: dict[str, Value] = {}
    for parameter in PARAMETERS:
        if isinstance(parameter, Range):
            value: Value = from_unit(parameter, units[parameter.name])
        else:
            value = parameter.values[int(units[parameter.name] * len(parameter.values))]
        parameters[parameter.name] = domain.member(parameter.name, value)
    length = int(parameters["stage2.max_steps"])
    steps = np.unique(np.round(length * np.arange(1, points + 1) / (points + 1))).clip(1)
    losses = _loss(problem, parameters, units, steps) + rng.normal(scale=spread, size=len(steps))
    # What a seed changes is there early, and grows.
    final = float(_loss(problem, parameters, units, np.array([length]))[0] + rng.normal(scale=NOISE))
    curve = tuple(zip(steps.tolist(), losses.tolist(), strict=True))
    return Run(units, parameters, length, curve, final, 2.0 * int(parameters["stage1_9.max_steps"]) + length)


def _loss(
    problem: dict[str, float],
    parameters: dict[str, Value],
    units: dict[str, float],
    step: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """Return the held-out loss after so many steps of Stage 2, without noise."""
    length, first = float(parameters["stage2.max_steps"]), float(parameters["stage1_9.max_steps"])
    share = step / length
    lr = units["stage2.optimizer.lr"]
    warmup, decay = float(parameters["stage2.lambda_warmup.share"]), float(parameters["stage2.decay.share"])
    left = np.clip(1.0 - share / warmup, 0.0, 1.0)
    if parameters["stage2.lambda_warmup.schedule"] == "cosine":
        left = 0.5 - 0.5 * np.cos(np.pi * left)
    rate = np.clip((1.0 - share) / decay, 0.0, 1.0)
    learned = problem["length"] * (100.0 / (20.0 + step)) ** problem["power"]
    return (
        problem["floor"]
        + learned * (1.3 - 0.6 * lr)
        + 0.5 * (lr - problem["lr"]) ** 2
        + 0.3 * (warmup - problem["warmup"]) ** 2
        + 0.1 * (decay - 0.5) ** 2
        + problem["first"] * (50.0 / (50.0 + first)) * (1.0 + 2.0 * np.exp(-4 * share))
        + problem["excess"] * left**1.5
        + problem["plateau"] * (0.3 + lr) * rate
    )


def record(index: int, run: Run, *, upto: int | None = None, objectives: int = 1) -> Trial:
    """Return the record of a completed run, or of one that has logged `upto` losses and still runs."""
    done = upto is None
    curve = run.curve if done else run.curve[:upto]
    metrics = {METRIC: run.final, COMPUTE: run.compute} if done else {}
    return Trial(
        trial=index,
        status="completed" if done else "running",
        parameters=run.parameters,
        generator="sobol",
        attempt=1,
        metrics=dict(list(metrics.items())[:objectives]),
        curve=curve,
        worker=None if done else "w",
        progress={"stage": "stage2", "step": curve[-1][0], "of": run.length},
    )
