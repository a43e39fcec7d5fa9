"""Levels of a sweep with fidelities: what their trials cost, how many there are, and which are results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.errors import SpaceError
from sweeps.space import space_json
from sweeps.space.definition import Choice, Fidelity, Fixed, Objective, Program, Space
from sweeps.space.domain import Domain
from sweeps.space.fidelity import Ladder, at_target, is_at_target
from sweeps.space.space_file import loads

TEXT = """\
name: case
objectives: [{metric: loss}]
program: {function: "m:f"}
parameters:
  lr: {min: 1.0e-4, max: 1.0e-1, distribution: log_uniform_values}
  width: {values: [64, 128, 256]}
  depth: {values: [2, 4, 6]}
  steps: {values: [10, 20, 40]}
run_cap: 30
"""
COSTS = "fidelity: {width: {cost: [3, 12, 60]}}\n"
STEPS = """\
fidelity: {steps: {}}
stages: [{name: only, parameters: ["*"], cost: 2*steps + 20, trunk: {length: steps, decay: 0.2}}]
"""


def space(more: str = COSTS, text: str = TEXT) -> Space:
    return loads(text + more, "case.yaml")


def test_costs_are_shares_of_a_trial_at_the_target():
    assert Ladder(space()).costs == (0.05, 0.2, 1.0)


def test_costs_of_two_parameters_multiply():
    both = "fidelity: {width: {cost: [1, 2, 4]}, depth: {cost: [1, 2, 5]}}\n"
    assert Ladder(space(both)).costs == (0.05, 0.2, 1.0)


def test_length_of_a_stage_costs_what_the_stages_do():
    assert Ladder(space(STEPS)).costs == (0.4, 0.6, 1.0)


@pytest.mark.parametrize(
    ("cap", "planned"),
    [(30, (18, 0)), (90, (30, 19)), (6, (0, 0)), (None, (18, 0))],
    ids=["usual", "thirty at most", "too few", "no cap"],
)
def test_lower_levels_cost_six_percent_at_most(cap, planned):
    ladder = Ladder(replace(space(), run_cap=cap))
    assert ladder.planned == planned
    total = sum(count * cost for count, cost in zip(planned, ladder.costs, strict=False))
    assert total <= 0.06 * (cap or 30)


def test_levels_that_leave_each_other_too_few_trials_are_said_to():
    text = str(Ladder(replace(space(), run_cap=6)))
    assert text.endswith("is not enough for 6 at each of 2 levels; leave one out, or raise run_cap")


@given(
    cap=st.integers(1, 500),
    objectives=st.integers(1, 3),
    costs=st.lists(st.floats(1e-4, 0.9), min_size=1, max_size=3, unique=True).map(sorted),
)
def test_what_plain_search_lacks_is_bounded(cap, objectives, costs):
    """Trials below, and those at the target that they propose: a tenth of the sweep, or 6 % and one trial."""
    ladder = Ladder(
        Space(
            name="case",
            objectives=tuple(Objective(metric=f"m{at}") for at in range(objectives)),
            parameters=(Choice(name="width", values=tuple(range(len(costs) + 1)), ordered=True),),
            program=Program(kind="function", function="m:f"),
            run_cap=cap,
            fidelity=(Fidelity(parameter="width", cost=(*costs, 1.0)),),
        )
    )
    below = sum(count * cost for count, cost in zip(ladder.planned, ladder.costs, strict=False))
    assert below <= 0.06 * cap + 1e-6
    assert below + ladder.promoted <= max(0.1 * cap, 0.06 * cap + 1) + 1e-6
    assert ladder.promoted == (1 if objectives == 1 else min(max(cap // 25, 1), 4))


@pytest.mark.parametrize(
    ("width", "level"), [(64, 0), (128, 1), (256, 2), (100, None), (None, None)], ids=str
)
def test_level_of_a_trial(width, level):
    parameters: dict[str, Any] = {"lr": 0.01, "depth": 2, "steps": 10, "width": width}
    assert Ladder(space()).level(parameters) == level
    assert is_at_target(space(), parameters) == (level == 2)


def test_mixture_of_two_parameters_is_no_level():
    both = space("fidelity: {width: {cost: [1, 2, 4]}, depth: {cost: [1, 2, 5]}}\n")
    assert Ladder(both).level({"width": 256, "depth": 2}) is None
    assert not is_at_target(both, {"width": 256, "depth": 2})


def test_target_space_has_the_last_value_fixed():
    found = at_target(space())
    assert Fixed(name="width", value=256) in found.parameters
    assert "width" not in Domain(found).searched
    assert found.fidelity == ()


def test_without_fidelities_every_trial_is_a_result():
    plain = space("")
    assert at_target(plain) is plain
    assert is_at_target(plain, {"width": 64})


def test_first_trial_is_one_at_the_target():
    found = space(COSTS + "baseline: {lr: 0.01}\n")
    assert found.baseline is not None
    assert found.baseline["width"] == 256


def test_sweep_json_keeps_the_fidelities():
    found = space()
    assert space_json.from_json(space_json.to_json(found)) == found
    assert "fidelity" not in space_json.to_json(space(""))


@pytest.mark.parametrize("damage", [{"parameter": "lr"}, {"parameter": "gone"}, {"cost": (1.0,)}], ids=str)
def test_edited_fidelity_is_damage(damage):
    (fidelity,) = space().fidelity
    damaged = replace(space(), fidelity=(replace(fidelity, **damage),))
    assert "fidelity" in (space_json.problem(damaged) or "")


def test_costs_of_the_trainer_are_known_only_with_its_stages():
    text = TEXT.replace('{function: "m:f"}', "{trainer: {overrides: [model=tiny]}}")
    found = space("fidelity: {steps: {}}\n", text)
    with pytest.raises(SpaceError, match="is not known"):
        Ladder(found)
