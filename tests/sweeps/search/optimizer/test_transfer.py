"""The best settings of an earlier sweep as a trial of a new one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from sweeps.search.optimizer import Optimizer
from sweeps.space.definition import Choice, Objective, Program, Range, Result, Search, Source, Space, Value
from sweeps.trials.record import Trial

PARAMETERS = (
    Range(name="lr", min=1e-4, max=1e-1, kind="float", log=True),
    Range(name="layers", min=2, max=6, kind="int"),
    Choice(name="kind", values=("x", "y", "z")),
    Range(name="own", min=0.0, max=1.0, kind="float"),
)


def space(*sources: Source, **rest: Any) -> Space:
    rest.setdefault("objectives", (Objective(metric="loss"),))
    return Space(
        name="case",
        parameters=PARAMETERS,
        program=Program(kind="function", function="m:f"),
        search=Search(seed=3),
        transfer=sources,
        **rest,
    )


def loss(parameters: Mapping[str, Any]) -> float:
    """The loss, whose best is lr = 0.01, 5 layers, kind y."""
    position = (np.log10(float(parameters["lr"])) + 4) / 3
    away = (position - 2 / 3) ** 2 + ((parameters["layers"] - 5) / 4) ** 2
    return float(away + (0.0 if parameters["kind"] == "y" else 0.3))


def source(sign: float = 1.0) -> Source:
    """A sweep of 30 random trials, whose losses have another scale; its learning rates reach farther."""
    results = []
    for lr, layers, kind in np.random.default_rng(1).uniform(size=(30, 3)):
        values: dict[str, Value] = {
            "lr": float(10 ** (-5 + 4 * lr)),
            "layers": 2 + int(5 * layers),
            "kind": "xyz"[int(3 * kind)],
        }
        results.append(Result(parameters=values, value=sign * 2 * loss(values) + 5))
    return Source(url="small", results=tuple(results))


@pytest.mark.parametrize(("sign", "goal"), [(1.0, "minimize"), (-1.0, "maximize")])
def test_first_trial_has_the_best_of_the_source(sign, goal):
    baseless = space(source(sign), objectives=(Objective(metric="loss", goal=goal),))
    (first,) = Optimizer(baseless).generate()
    assert first.generator == "botorch"
    assert loss(first.parameters) < 0.06
    assert first.parameters["own"] == 0.5  # the middle, of what the source lacks
    assert Optimizer(baseless).generate() == [first]


def test_first_design_follows_as_without_sources():
    optimizer, records = Optimizer(space(source())), []
    for index in range(8):
        optimizer.observe(records)
        (candidate,) = optimizer.generate()
        records.append(
            Trial(
                trial=index,
                status="completed",
                parameters=candidate.parameters,
                generator=candidate.generator,
                metrics={"loss": loss(candidate.parameters)},
            )
        )
    assert [record.generator for record in records] == ["botorch", *["sobol"] * 6, "botorch"]


def test_an_unread_source_changes_no_candidate():
    assert Optimizer(space()).generate() == Optimizer(space(Source(url="small"))).generate()
