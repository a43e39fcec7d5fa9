"""Stages of a sweep: whose parameter is whose, which trials agree up to where, and what a stage costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from sweeps.space.stages import Stages

SPACE = Space(
    name="case",
    objectives=(Objective(metric="loss"),),
    program=Program(kind="function", function="m:f"),
    parameters=(
        Fixed(name="seed", value=3),
        Range(name="a.steps", min=10, max=60, kind="int"),
        Choice(name="a.gate", values=(True, False), when=((True, ("a.k", "a.mode")),)),
        Range(name="a.k", min=0.0, max=1.0, kind="float"),
        Choice(name="a.mode", values=("x", "y"), when=(("x", ("a.inner",)),)),
        Range(name="a.inner", min=0.0, max=1.0, kind="float"),
        Range(name="b.lr", min=1e-4, max=1e-2, kind="float", log=True),
        Fixed(name="b.steps", value=40),
        Range(name="c.steps", min=0, max=5, kind="int"),
    ),
    stages=(
        Stage(name="first", parameters=("seed", "a.*"), cost="2*a.steps + 1"),
        Stage(name="second", parameters=("b.*",), cost="b.steps"),
        Stage(name="third", parameters=("*",), cost="3*c.steps - a.steps/100"),
    ),
)
TRIAL: dict[str, Value] = {
    "seed": 3,
    "a.steps": 20,
    "a.gate": True,
    "a.k": 0.5,
    "a.mode": "x",
    "a.inner": 0.25,
    "b.lr": 1e-3,
    "b.steps": 40,
    "c.steps": 2,
}
STAGES = Stages(SPACE)
OTHER = {"a.steps": 21, "a.k": 0.75, "a.mode": "y", "a.inner": 0.5, "b.lr": 2e-3, "c.steps": 3}


def test_parameter_belongs_to_the_first_matching_stage() -> None:
    assert [STAGES.position(parameter.name) for parameter in SPACE.parameters] == [0] * 6 + [1, 1, 2]
    assert STAGES.position("eval.test") == 2  # of a trial, not of the space
    assert Stages(replace(SPACE, stages=SPACE.stages[:2])).position("c.steps") == 0


def test_parent_belongs_to_the_earliest_stage_of_its_children() -> None:
    """Or trials with one prefix would have and not have that parameter."""
    parameters: tuple[Parameter, ...] = (
        Choice(name="c.outer", values=(1, 2), when=((1, ("b.gate",)),)),
        Choice(name="b.gate", values=(True, False), when=((True, ("a.k", "c.k")),)),
        Range(name="a.k", min=0, max=1, kind="float"),
        Range(name="c.k", min=0, max=1, kind="float"),
    )
    stages = Stages(replace(SPACE, parameters=parameters))
    assert {parameter.name: stages.position(parameter.name) for parameter in parameters} == {
        "c.outer": 0,
        "b.gate": 0,
        "a.k": 0,
        "c.k": 2,
    }


@given(st.sets(st.sampled_from(sorted(OTHER))), st.integers(0, 2))
def test_prefix_is_of_a_stage_and_those_before_it(changed: set[str], stage: int) -> None:
    other = TRIAL | {name: OTHER[name] for name in changed}
    if "a.mode" in changed:
        changed = changed - {
            "a.inner"
        }  # inactive then: that it is there, and with another value, is no matter
    agree = all(STAGES.position(name) > stage for name in changed)
    assert (STAGES.end_identity(TRIAL, stage) == STAGES.end_identity(other, stage)) == agree
    assert hash(STAGES.end_identity(TRIAL, stage)) == hash(
        STAGES.end_identity(dict(reversed(TRIAL.items())), stage)
    )


def test_inactive_parameters_split_no_prefix_at_any_depth() -> None:
    off = TRIAL | {"a.gate": False}
    bare = {name: value for name, value in off.items() if name not in ("a.k", "a.mode", "a.inner")}
    assert STAGES.end_identity(off) == STAGES.end_identity(bare) != STAGES.end_identity(TRIAL)
    assert STAGES.parameters_until(off) == {"a.steps": 20, "a.gate": False}


def test_fixed_parameter_counts_only_with_another_value() -> None:
    """A confirmation repeats a trial with another seed; an imported trial may leave the fixed ones out."""
    without = {name: value for name, value in TRIAL.items() if name != "seed"}
    assert (
        STAGES.end_identity(without) == STAGES.end_identity(TRIAL) != STAGES.end_identity(TRIAL | {"seed": 4})
    )
    assert STAGES.end_identity(TRIAL | {"seed": True}) != STAGES.end_identity(TRIAL | {"seed": 1})


def test_costs_are_the_expressions_and_never_negative() -> None:
    assert STAGES.costs(TRIAL) == {"first": 41.0, "second": 40.0, "third": 5.8}
    assert STAGES.costs(TRIAL | {"c.steps": 0}) == {"first": 41.0, "second": 40.0, "third": 0.0}
    without = {name: value for name, value in TRIAL.items() if name != "b.steps"}
    assert STAGES.costs(without) == STAGES.costs(TRIAL)  # the fixed value of the space


@pytest.mark.parametrize("steps", [None, "many"], ids=["missing", "text"])
def test_costs_of_a_trial_that_lacks_a_number_are_unknown(steps: str | None) -> None:
    trial = {name: value for name, value in TRIAL.items() if name != "a.steps"}
    assert STAGES.costs(trial if steps is None else trial | {"a.steps": steps}) is None


def test_costs_are_unknown_if_that_of_one_stage_is() -> None:
    stages = (*SPACE.stages[:2], Stage(name="third", parameters=("*",)))
    assert Stages(replace(SPACE, stages=stages)).costs(TRIAL) is None


@pytest.mark.parametrize(
    ("change", "shared"),
    [
        ({}, True),
        ({"search": Search(reuse="none")}, False),
        ({"search": Search(method="grid")}, True),
        ({"stages": ()}, False),
        ({"stages": SPACE.stages[:1]}, False),
        ({"parameters": SPACE.parameters[:6]}, False),
        ({"parameters": SPACE.parameters[6:7]}, True),
    ],
    ids=["auto", "none", "grid", "no-stages", "one-stage", "first-alone", "later-alone"],
)
def test_stages_are_shared_if_a_later_one_is_searched(change: dict[str, object], shared: bool) -> None:
    assert Stages(replace(SPACE, **change)).shared is shared  # type: ignore[arg-type]


def test_without_stages_everything_is_one() -> None:
    stages = Stages(replace(SPACE, stages=()))
    assert (stages.names, stages.position("b.lr"), stages.costs(TRIAL)) == ((), 0, {})
    assert stages.end_identity(TRIAL) != stages.end_identity(TRIAL | {"b.lr": 2e-3})
