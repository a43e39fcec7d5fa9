"""Parameters as Ax and Optuna take them, for searchers to compare with ours (`landscapes.searchers`)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.problems import METRIC, Problem
from sweeps.search.determinism import silence
from sweeps.space.definition import Choice, Fixed, Range, Value

SOBOL = 5
"""Ax's own default; the same for ours, so that only the rest differs."""


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


def draw(parameter: Range | Choice | Fixed, rng: np.random.Generator) -> Value:
    """Return a value, uniform on the scale of the parameter."""
    if isinstance(parameter, Fixed):
        return parameter.value
    if isinstance(parameter, Choice):
        return parameter.values[int(rng.integers(len(parameter.values)))]
    low, high = parameter.min, parameter.max
    value = float(np.exp(rng.uniform(np.log(low), np.log(high)))) if parameter.log else rng.uniform(low, high)
    return round(value) if parameter.kind == "int" else value


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
