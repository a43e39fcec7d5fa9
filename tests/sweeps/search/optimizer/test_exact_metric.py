"""An objective that is the cost of the stages: recognised in the records, and known to the surrogate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from sweeps.search.encoding import Encoding
from sweeps.search.known_cost import KnownCost, known_cost
from sweeps.search.optimizer import Optimizer
from sweeps.search.optimizer.surrogate import ExactMetric
from sweeps.search.outcomes import Outcomes
from sweeps.space.definition import (
    Choice,
    Fixed,
    Objective,
    Parameter,
    Program,
    Range,
    Search,
    Space,
    Stage,
    Value,
)
from sweeps.space.domain import Domain
from sweeps.space.stages import Stages
from sweeps.trials.record import Trial

SPACE = Space(
    name="case",
    objectives=(Objective(metric="loss"), Objective(metric="effective_steps")),
    parameters=(
        Range(name="first.steps", min=50, max=1000, kind="int", log=True),
        Range(name="first.lr", min=0.0, max=1.0, kind="float"),
        Range(name="second.steps", min=100, max=110, kind="int"),
        Fixed(name="third.steps", value=30),
    ),
    program=Program(kind="function", function="m:f"),
    search=Search(sobol=5, seed=1),
    stages=(
        Stage(name="one", parameters=("first.*",), cost="2*first.steps"),
        Stage(name="two", parameters=("second.*",), cost="second.steps + 2*third.steps - 10"),
        Stage(name="three", parameters=("third.*",), cost="5"),
    ),
)


def trial(index: int, parameters: Mapping[str, Value], *, off: float = 1.0) -> Trial:
    cost = sum((Stages(SPACE).costs(parameters) or {}).values()) * off
    metrics = {"loss": float(parameters["first.lr"]), "effective_steps": cost}
    return Trial(trial=index, status="completed", parameters=parameters, generator="sobol", metrics=metrics)


def parameters(steps: int, second: int = 105, lr: float = 0.5) -> dict[str, Value]:
    return {"first.steps": steps, "first.lr": lr, "second.steps": second, "third.steps": 30}


def found(records: list[Trial], space: Space = SPACE) -> KnownCost | None:
    return known_cost(space, Encoding(Domain(space)), Outcomes(space), records)


RECORDS = [trial(0, parameters(50)), trial(1, parameters(1000, 100)), trial(2, parameters(300, 110))]


def test_a_metric_that_is_the_cost_in_every_result_is_found():
    cost = found(RECORDS)
    assert cost is not None
    assert (cost.metric, cost.constant) == ("m1", 55.0)
    assert [(t.axis, t.factor, t.log) for t in cost.terms] == [("p0", 2.0, True), ("p2", 1.0, False)]


def test_a_metric_is_the_cost_only_by_results_that_differ():
    assert found([]) is None
    assert found(RECORDS[:1]) is None
    assert found([RECORDS[0], replace(RECORDS[0], trial=1)]) is None


def test_one_result_that_is_something_else_disproves_it():
    assert found([*RECORDS, trial(3, parameters(400), off=1.01)]) is None


@pytest.mark.parametrize(
    "space",
    [
        pytest.param(replace(SPACE, objectives=SPACE.objectives[1:]), id="a single objective"),
        pytest.param(replace(SPACE, stages=()), id="no stages"),
        pytest.param(
            replace(SPACE, stages=(replace(SPACE.stages[0], cost=""), *SPACE.stages[1:])),
            id="a cost that is modelled",
        ),
    ],
)
def test_without_an_expression_for_each_stage_nothing_is_known(space: Space):
    assert found(RECORDS, space) is None


def test_a_length_that_is_a_choice_is_left_to_the_surrogate():
    lengths: Parameter = Choice(name="first.steps", values=(50, 1000, 300), ordered=True)
    assert found(RECORDS, replace(SPACE, parameters=(lengths, *SPACE.parameters[1:]))) is None


def test_exact_model_extrapolates_despite_winsorization():
    cost = found(RECORDS)
    assert cost is not None
    encoding = Encoding(Domain(SPACE))
    points = [encoding.encode(record.parameters) or {} for record in RECORDS]
    x_ND = torch.tensor([[float(p[axis]) for axis in ("p0", "p1", "p2")] for p in points]).double()
    costs_N = torch.tensor([float(record.metrics["effective_steps"] or 0.0) for record in RECORDS]).double()
    more_ND = torch.cat([x_ND, torch.tensor([[0.3, 0.5, 101.0], [0.4, 0.5, 102.0]]).double()])
    exact_N = torch.cat([costs_N, _cost(more_ND[3:])])
    scaled_N1 = ((exact_N - 500.0) / 250.0).clamp(max=5.0).unsqueeze(-1)
    model = ExactMetric(more_ND, scaled_N1, cost, ["p0", "p1", "p2"]).eval()
    other = torch.tensor([[0.8, 0.1, 107.0]]).double().requires_grad_()
    posterior = model.posterior(other)
    exact = (float(_cost(other.detach())) - 500.0) / 250.0
    assert posterior.mean.item() == pytest.approx(exact, rel=1e-3)
    assert posterior.variance.item() < 1e-5
    posterior.mean.sum().backward()
    assert other.grad is not None
    assert float(other.grad[0, 0]) > 0
    assert float(other.grad[0, 1]) == pytest.approx(0.0, abs=1e-6)


def _cost(x_ND: torch.Tensor) -> torch.Tensor:
    return 2 * 49.5001 * (1000.4999 / 49.5001) ** x_ND[:, 0] + x_ND[:, 2] + 55.0


def test_the_search_goes_to_the_cheap_end_of_the_front_at_once():
    optimizer = Optimizer(SPACE)
    records: list[Trial] = []
    for index in range(6):
        optimizer.observe(records)
        (candidate,) = optimizer.generate()
        records.append(trial(index, candidate.parameters))
    assert candidate.generator == "botorch"
    assert candidate.parameters["first.steps"] == 50  # no result says so: the cost is known to fall to there
