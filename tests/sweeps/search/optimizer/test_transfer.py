"""The best settings of an earlier sweep as a trial of a new one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from sweeps.search.determinism import silence
from sweeps.search.encoding import Encoding
from sweeps.search.optimizer import Optimizer
from sweeps.search.optimizer.rows import ModelRows
from sweeps.search.optimizer.transfer import SourceModel
from sweeps.search.outcomes import Outcomes
from sweeps.space.definition import (
    Choice,
    Objective,
    Program,
    Range,
    Result,
    Search,
    Source,
    Space,
    Value,
    number_of,
)
from sweeps.space.domain import Domain
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


def later(parameters: Mapping[str, Any]) -> float:
    """Another loss in another unit, whose best learning rate is 0.001."""
    return 1000 * loss({**parameters, "lr": 10 * parameters["lr"]})


def test_first_trial_lies_in_the_middle_of_the_front_of_the_source() -> None:
    results = [replace(each, others=(later(each.parameters),)) for each in source().results]
    two = space(
        Source(url="small", results=tuple(results)),
        objectives=(Objective(metric="loss"), Objective(metric="later")),
    )
    (first,) = Optimizer(two).generate()
    assert first.generator == "botorch"
    assert 0.0015 < number_of(first.parameters["lr"]) < 0.007
    assert (first.parameters["layers"], first.parameters["kind"]) == (5, "y")
    metrics = {"loss": loss(first.parameters), "later": later(first.parameters)}
    done = Trial(
        trial=0, status="completed", parameters=first.parameters, generator="botorch", metrics=metrics
    )
    optimizer = Optimizer(two)
    optimizer.observe([done, replace(done, trial=1, parameters={**first.parameters, "own": 0.1})])
    (then,) = optimizer.generate()
    assert then.generator == "sobol"


def run(searched: Space, count: int, function: Any = loss) -> list[Trial]:
    optimizer, records = Optimizer(searched), []
    while len(records) < count:
        optimizer.observe(records)
        (candidate,) = optimizer.generate()
        records.append(
            Trial(
                trial=len(records),
                status="completed",
                parameters=candidate.parameters,
                generator=candidate.generator,
                metrics={"loss": function(candidate.parameters)},
            )
        )
    return records


def bowl(parameters: Mapping[str, Any], best: float = 0.75) -> float:
    """A loss of two numbers, best at x = 0.75 and y = 0.3."""
    return float((parameters["x"] - best) ** 2 + (parameters["y"] - 0.3) ** 2)


SHARES = tuple(Range(name=name, min=0.0, max=1.0, kind="float") for name in "xy")
PLAIN = Space(
    name="bowl",
    objectives=(Objective(metric="loss"),),
    parameters=SHARES,
    program=Program(kind="function", function="m:f"),
    search=Search(seed=3),
)
SOURCE = Source(
    url="small",
    results=tuple(
        Result(parameters={"x": float(x), "y": float(y)}, value=bowl({"x": x, "y": y}, best=0.5))
        for x, y in np.random.default_rng(1).uniform(size=(12, 2))
    ),
)
DRIFTED = replace(PLAIN, transfer=(SOURCE,))


@pytest.fixture(scope="module")
def drifted_trials() -> list[Trial]:
    """A sweep whose best x is farther than its source's by a quarter of the range."""
    return run(DRIFTED, 12, bowl)


def test_where_the_optimum_has_moved_the_source_helps_to_find_it(drifted_trials):
    losses = [bowl(record.parameters) for record in drifted_trials]
    assert losses[0] > 0.04
    assert min(losses[:6]) < 0.005
    assert [record.generator for record in drifted_trials[:6]].count("sobol") < 4


def test_a_source_that_misleads_costs_one_trial():
    """The plain search follows, with its whole first design, from the same points."""
    misled = run(space(source(sign=-1.0)), 8)
    assert [record.generator for record in misled] == ["botorch", *["sobol"] * 6, "botorch"]
    plain = run(space(), 6)
    assert [record.parameters for record in misled[1:7]] == [record.parameters for record in plain]


def test_after_twelve_results_nothing_is_left_of_the_source(drifted_trials):
    found = []
    for searched in (DRIFTED, PLAIN):
        optimizer = Optimizer(searched)
        optimizer.observe(drifted_trials)
        found.append(optimizer.generate())
    assert found[0] == found[1]


def test_beside_a_diverged_result_the_source_still_helps():
    """All other results looked alike beside it, and no trial before the seventh was the source's."""
    losses = iter([0.0, 0.0, 1e30, *[0.0] * 3])
    begun = run(DRIFTED, 6, lambda parameters: 4 + bowl(parameters) + next(losses))
    assert "botorch" in {record.generator for record in begun[4:]}


def test_same_records_give_the_same_candidate(drifted_trials):
    for count in (2, 4, 7):
        fresh = Optimizer(DRIFTED)
        fresh.observe(drifted_trials[:count])
        (candidate,) = fresh.generate()
        assert candidate.parameters == drifted_trials[count].parameters


def test_an_unread_source_changes_no_candidate():
    assert Optimizer(space()).generate() == Optimizer(space(Source(url="small"))).generate()


def test_results_too_large_for_their_squares_propose_no_trial():
    huge = replace(SOURCE, results=tuple(replace(r, value=1e160 * r.value) for r in SOURCE.results))
    begun = run(replace(PLAIN, transfer=(huge,)), 3, bowl)
    assert [record.generator for record in begun] == ["sobol"] * 3


# ---- parameters that only some options have

OPTIONS = Space(
    name="options",
    objectives=(Objective(metric="loss"),),
    parameters=(
        Choice(name="opt", values=("sgd", "adam"), when=(("sgd", ("momentum",)), ("adam", ("beta",)))),
        Range(name="momentum", min=0.0, max=1.0, kind="float"),
        Range(name="beta", min=0.0, max=1.0, kind="float"),
        Range(name="lr", min=0.0, max=1.0, kind="float"),
    ),
    program=Program(kind="function", function="m:f"),
    search=Search(seed=3),
)


def option_loss(parameters: Mapping[str, Any]) -> float:
    """A loss whose best is adam at beta = 0.8 and lr = 0.3."""
    of_option = (parameters.get("beta", 0.8) - 0.8) ** 2 if parameters["opt"] == "adam" else 0.5
    return float(of_option + (parameters["lr"] - 0.3) ** 2)


def option_source(left_out: tuple[str, ...] = ()) -> Source:
    """A sweep of 16 trials, 8 with each option, without some parameters."""
    results = []
    for index, (child, lr) in enumerate(np.random.default_rng(1).uniform(size=(16, 2)).tolist()):
        opt, name = (("sgd", "momentum"), ("adam", "beta"))[index % 2]
        values: dict[str, Value] = {"opt": opt, name: child, "lr": lr}
        kept = {key: value for key, value in values.items() if key not in left_out}
        results.append(Result(parameters=kept, value=option_loss(kept)))
    return Source(url="small", results=tuple(results))


def model_of(searched: Space) -> SourceModel:
    (source,) = searched.transfer
    return SourceModel(source, Encoding(Domain(searched)), Outcomes(searched), seed=3)


def fit(searched: Space, function: Any) -> Any:
    """Return Ax's adapter of the new sweep, at whose rows a belief is asked."""
    sourceless = replace(searched, transfer=())
    optimizer = Optimizer(sourceless)
    optimizer.observe(run(sourceless, 4, function))
    with silence("ax"):
        return optimizer._fitted()


def test_where_options_have_parameters_every_result_counts():
    model = model_of(replace(OPTIONS, transfer=(option_source(),)))
    asked = torch.full((1, len(model.belief.names)), 0.5, dtype=torch.double)
    assert model.belief.explained_factor(asked).shape == (1, 16)  # a column for each result
    best = model.best({})
    assert best is not None
    assert option_loss(best) < 0.05


def test_rows_of_a_source_and_of_the_sweep_have_the_same_columns():
    searched = replace(OPTIONS, transfer=(option_source(),))
    assert list(fit(searched, option_loss).parameters) == list(model_of(searched).belief.names)


def test_best_option_with_a_parameter_that_the_source_lacks():
    lacking = replace(OPTIONS, transfer=(option_source(left_out=("momentum", "beta")),))
    (first,) = Optimizer(lacking).generate()
    assert first.generator == "botorch"
    assert first.parameters["opt"] == "adam"  # the middle of the space is sgd
    assert first.parameters["beta"] == 0.5


# ---- values outside of this sweep's ranges


def wide_source() -> Source:
    """A sweep of 24 trials whose x and n reach farther than this sweep's on both sides."""
    results = []
    for x, n, kind, size in np.random.default_rng(1).uniform(size=(24, 4)).tolist():
        values: dict[str, Value] = {
            "x": 3 * x - 1,
            "n": int(11 * n),
            "kind": "abc"[int(3 * kind)],
            "size": (1, 2, 8)[int(3 * size)],
        }
        results.append(Result(parameters=values, value=(3 * x - 1.3) ** 2 + ((values["n"] - 4) / 4) ** 2))
    return Source(url="wide", results=tuple(results))


def test_belief_equals_the_sources_surrogate_outside_of_the_ranges():
    searched = replace(
        PLAIN,
        parameters=(
            Range(name="x", min=0.0, max=1.0, kind="float"),
            Range(name="n", min=3, max=7, kind="int"),
            Choice(name="kind", values=("a", "b", "c")),
            Choice(name="size", values=(1, 2, 8), ordered=True),
        ),
        transfer=(wide_source(),),
    )
    model = model_of(searched)
    adapter = fit(searched, lambda parameters: bowl({"y": 0.3, **parameters}))
    points = product(np.linspace(0, 1, 21).tolist(), range(3, 8), "abc", (1, 2, 8))
    grid = [dict(zip(("p0", "p1", "p2", "p3"), point, strict=True)) for point in points]
    rows = adapter.generator.surrogate.model.transform_inputs(ModelRows(adapter).rows(grid))
    said = model._models[0].at(grid)[0]
    believed = model.belief.mean(rows).numpy() * model.belief.unit
    assert np.allclose(believed - believed.mean(), said - said.mean(), atol=1e-5)
