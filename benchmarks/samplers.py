"""Samplers to compare: ours, Ax used directly, and others in common use.

Each sampler is a function of (problem, seed, trials) that returns the values in the order they were tried.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.problems import METRIC, Problem, completed
from sweeps.search.determinism import one_thread, silence
from sweeps.search.optimizer import Optimizer
from sweeps.space.definition import Choice, Fixed, Range, Value
from sweeps.trials.record import Trial

SOBOL = 5
"""Ax's own default; the same for ours, so that only the rest differs."""


def ours(problem: Problem, seed: int, trials: int) -> list[float]:
    optimizer = Optimizer(problem.space(seed=seed, sobol=SOBOL))
    records: list[Trial] = []
    for index in range(trials):
        optimizer.observe(records)
        (candidate,) = optimizer.generate()
        loss = problem.function(candidate.parameters)
        records.append(completed(index, candidate.parameters, candidate.generator, loss))
    return [float(record.metrics[METRIC] or 0.0) for record in records]


def ax_direct(problem: Problem, seed: int, trials: int) -> list[float]:
    """Use Ax as its tutorials do: one client for the sweep, one trial at a time, its defaults."""
    client = ax_client(problem, seed)
    losses = []
    with one_thread(), silence("ax"):
        for _ in range(trials):
            ((index, parameters),) = client.get_next_trials(max_trials=1).items()
            losses.append(problem.function(unsafe(parameters)))
            client.complete_trial(index, {METRIC: losses[-1]})
    return losses


def ax_client(
    problem: Problem, seed: int, sobol: int = SOBOL, *, center: bool = True, workers: int = 1
) -> Any:
    """Return an `ax.api.Client` for the problem.

    Several workers may exceed `sobol` before there are results; else the client refuses a trial then.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ax.api.client import Client
    with silence("ax"):
        client = Client(random_seed=seed)
        client.configure_experiment([ax_parameter(p) for p in problem.parameters])
        client.configure_optimization(f"-{METRIC}")
        client.configure_generation_strategy(
            initialization_budget=sobol,
            initialization_random_seed=seed,
            initialize_with_center=center,
            allow_exceeding_initialization_budget=workers > 1,
        )
    return client


def safe(name: str) -> str:
    """Ax's dots become part of an expression; two underscores do not."""
    return name.replace(".", "__")


def unsafe(parameters: Mapping[str, Value]) -> dict[str, Value]:
    return {name.replace("__", "."): value for name, value in parameters.items()}


def ax_parameter(parameter: Range | Choice | Fixed) -> Any:
    from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

    if isinstance(parameter, Range):
        return RangeParameterConfig(
            name=safe(parameter.name),
            bounds=(parameter.min, parameter.max),
            parameter_type=parameter.kind,
            scaling="log" if parameter.log else "linear",
        )
    if isinstance(parameter, Fixed):
        raise TypeError("no problem has a fixed parameter")
    return ChoiceParameterConfig(
        name=safe(parameter.name),
        values=list(parameter.values),
        parameter_type=type(parameter.values[0]).__name__,
        is_ordered=parameter.ordered or None,
        dependent_parameters={value: [safe(c) for c in children] for value, children in parameter.when}
        or None,
    )


def random(problem: Problem, seed: int, trials: int) -> list[float]:
    """Uniform on the scale of each parameter."""
    rng = np.random.default_rng(seed)
    return [problem.function({p.name: draw(p, rng) for p in problem.parameters}) for _ in range(trials)]


def draw(parameter: Range | Choice | Fixed, rng: np.random.Generator) -> Value:
    """Return a value, uniform on the scale of the parameter."""
    if isinstance(parameter, Fixed):
        return parameter.value
    if isinstance(parameter, Choice):
        return parameter.values[int(rng.integers(len(parameter.values)))]
    low, high = parameter.min, parameter.max
    value = float(np.exp(rng.uniform(np.log(low), np.log(high)))) if parameter.log else rng.uniform(low, high)
    return round(value) if parameter.kind == "int" else value


def tpe(problem: Problem, seed: int, trials: int) -> list[float]:
    return _optuna(problem, "TPESampler", seed, trials)


def gp(problem: Problem, seed: int, trials: int) -> list[float]:
    return _optuna(problem, "GPSampler", seed, trials)


def _optuna(problem: Problem, sampler: str, seed: int, trials: int) -> list[float]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    switched = {
        child: (p.name, value)
        for p in problem.parameters
        if isinstance(p, Choice)
        for value, c in p.when
        for child in c
    }

    def objective(trial: Any) -> float:
        values: dict[str, Value] = {}
        for parameter in problem.parameters:
            parent = switched.get(parameter.name)
            if parent is None or values[parent[0]] == parent[1]:
                values[parameter.name] = suggest(trial, parameter)
        return problem.function(values)

    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(sampler=getattr(optuna.samplers, sampler)(seed=seed))
        study.optimize(objective, n_trials=trials)
    return [float(trial.values[0]) for trial in study.trials]


def suggest(trial: Any, parameter: Range | Choice | Fixed) -> Value:
    """Return what Optuna suggests for a parameter."""
    if isinstance(parameter, Fixed):
        return parameter.value
    if isinstance(parameter, Choice):
        chosen: Value = trial.suggest_categorical(parameter.name, list(parameter.values))
        return chosen
    suggest = trial.suggest_int if parameter.kind == "int" else trial.suggest_float
    number: Value = suggest(parameter.name, parameter.min, parameter.max, log=parameter.log)
    return number


SAMPLERS: dict[str, Callable[[Problem, int, int], list[float]]] = {
    "ours": ours,
    "random": random,
    "ax": ax_direct,
    "optuna-tpe": tpe,
    "optuna-gp": gp,
}
