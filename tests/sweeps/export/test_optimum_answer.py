"""When the surrogate is asked, and its answer in words."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from sweeps.export import optimum
from sweeps.search.optimizer import Optimum
from sweeps.space.definition import Fixed, Objective, Program, Range, Search, Space
from sweeps.trials.record import Trial

SPACE = Space(
    name="case",
    objectives=(Objective(metric="loss"),),
    program=Program(kind="function", function="m:f"),
    parameters=(Range(name="x", min=0, max=1, kind="float"), Fixed(name="seed", value=0)),
)


def records(count: int, **fields: Any) -> list[Trial]:
    return [
        Trial(
            trial=at,
            **{
                "status": "completed",
                "generator": "sobol",
                "parameters": {"x": at / 100, "seed": 0},
                "metrics": {"loss": 3.0 + at / 1000},
            }
            | fields,
        )
        for at in range(count)
    ]


@pytest.mark.parametrize(
    ("space", "trials", "expected"),
    [
        pytest.param(SPACE, records(optimum.FEWEST), True, id="enough"),
        pytest.param(SPACE, records(optimum.FEWEST - 1), False, id="too few"),
        pytest.param(SPACE, records(optimum.MOST + 1), False, id="too many to fit"),
        pytest.param(SPACE, records(50, status="failed"), False, id="failed"),
        pytest.param(SPACE, records(50, generator="confirm"), False, id="repeats"),
        pytest.param(SPACE, records(50, metrics={"loss": None}), False, id="without a value"),
        pytest.param(
            replace(SPACE, objectives=(*SPACE.objectives, Objective(metric="ms"))),
            records(50),
            False,
            id="two",
        ),
        pytest.param(replace(SPACE, outcome_constraints=("ms <= 3",)), records(50), False, id="constraint"),
        pytest.param(replace(SPACE, search=Search(method="grid")), records(50), False, id="grid"),
        pytest.param(
            replace(SPACE, parameters=SPACE.parameters[1:]), records(50), False, id="nothing searched"
        ),
        pytest.param(
            replace(SPACE, parameters=(Range(name="data.seed", min=0, max=9, kind="int"),)),
            records(50),
            False,
            id="a searched seed",
        ),
    ],
)
def test_the_surrogate_is_asked_where_its_answer_means_something(
    space: Space, trials: list[Trial], expected: bool
) -> None:
    assert optimum.applies(space, trials) is expected
    if not expected:
        assert optimum.optimum(space, trials) is None


def test_asking_whether_it_applies_loads_neither_torch_nor_numpy() -> None:
    code = "import sys; import sweeps.export.optimum; print({'torch', 'ax', 'numpy', 'scipy'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


def said(**fields: Any) -> list[str]:
    """The sentences of an answer about trials 1 (measured 3.508) and 0 (measured 3.498)."""
    given: dict[str, Any] = {
        "trial": 1,
        "metric": "loss",
        "mean": 3.5121,
        "sd": 0.01,
        "noise": 0.0112,
        "chance": 0.712,
        "shortfall": 0.0071,
        "gains": (0.001, 0.0042),
        "means": {0: 3.5214, 1: 3.5121},
        "parameters": (),
    }
    found = Optimum(**(given | fields))
    document = optimum.as_document(SPACE, {0: 3.498, 1: 3.508, 2: 3.9}, found, curves=False)
    return list(document["sentences"])


def test_answer_in_words() -> None:
    assert said() == [
        "trial 1: loss 3.512 by the model (measured 3.508)",
        "71 % that it is within one run's noise (0.011) of the best in this space",
        "2 more trials: expected gain 0.004",
        "lowest measured: trial 0, 3.498 (3.521 by the model)",
    ]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"chance": 0.001}, "< 1 % that it is within", id="no chance"),
        pytest.param({"chance": 1.0}, "> 99 % that it is within", id="sure"),
        pytest.param({"gains": (0.0,)}, "1 more trial: expected gain below 0.0001", id="no gain"),
        pytest.param({"noise": 1e-6}, "the best in this space is expected to be 0.007 lower", id="no noise"),
        pytest.param({"means": {1: 3.5}}, "lowest measured: trial 0, 3.498", id="outside of the space"),
    ],
)
def test_odd_answers_in_words(fields: dict[str, Any], expected: str) -> None:
    assert any(line.startswith(expected) for line in said(**fields))
