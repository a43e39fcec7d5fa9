"""Stored trunks that a new trial can branch off from, and what it would still cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.search.encoding import Encoding
from sweeps.search.shared_stages import SEPARATION, RemainingCost, SharedStages, Start, Starts
from sweeps.search.stage_costs import StageCosts
from sweeps.space.definition import (
    Fixed,
    Objective,
    Program,
    Range,
    Search,
    Space,
    Stage,
    Trunk,
    Value,
)
from sweeps.space.domain import Domain
from sweeps.space.stages import Stages
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

SPACE = Space(
    name="case",
    objectives=(Objective(metric="loss"),),
    parameters=(
        Range(name="one.lr", min=1e-5, max=1e-1, kind="float", log=True),
        Range(name="one.steps", min=100, max=1000, kind="int", log=True),
        Range(name="two.lr", min=0.1, max=0.3, kind="float"),
        Range(name="two.steps", min=100, max=1000, kind="int"),
        Fixed(name="seed", value=7),
    ),
    program=Program(kind="function", function="m:f"),
    stages=(
        Stage(
            name="one",
            parameters=("one.*", "seed"),
            cost="2*one.steps",
            trunk=Trunk(length="one.steps", decay=0.2, every=50),
        ),
        Stage(
            name="two",
            parameters=("two.*",),
            cost="two.steps",
            trunk=Trunk(length="two.steps", decay=0.1, every=50),
        ),
    ),
)
units = st.floats(0, 1)
points = st.fixed_dictionaries({"p0": units, "p1": units, "p2": units, "p3": units})


def shared_of(space: Space = SPACE) -> tuple[SharedStages, Encoding]:
    encoding = Encoding(Domain(space))
    return SharedStages(space, encoding), encoding


SHARED, ENCODING = shared_of()
COSTS = StageCosts(Stages(SPACE), ENCODING).known(())


def trial(parameters: Mapping[str, Value], stage: str, *steps: int, index: int = 0, **rest: Any) -> Trial:
    published = tuple(
        StageRun(name=stage, key=f"{index:060x}{step:04x}", cost=1.0, snapshot=True, step=step)
        for step in steps
    )
    rest.setdefault("points", published)
    return Trial(trial=index, status="running", parameters=parameters, generator="sobol", **rest)


def remaining(*records: Trial, ends: tuple[Mapping[str, Value], ...] = ()) -> RemainingCost:
    stored = [trial(each, "one") for each in ends]
    return RemainingCost(SHARED, COSTS, Starts(SHARED, stored, SHARED.stored_trunks(records)))


BASE: dict[str, Value] = {
    "one.lr": 1e-3,
    "one.steps": 500,
    "two.lr": 0.2,
    "two.steps": 400,
    "seed": 7,
}


@given(points, points, st.sampled_from([0, 1]))
def test_a_branch_has_the_values_of_its_trunk_to_the_last_bit(
    first: dict[str, Value], other: dict[str, Value], stage: int
):
    record = trial(ENCODING.decode(first), ("one", "two")[stage], 10)
    (trunk,) = SHARED.stored_trunks([record])
    joined = SHARED.join(trunk.record.parameters, other, stage)
    assert joined is not None
    assert SHARED.identity(joined, stage) == SHARED.identity(record.parameters, stage)
    shared = ("one.lr", "seed") if stage == 0 else ("one.lr", "one.steps", "two.lr", "seed")
    decoded = ENCODING.decode(other)
    assert joined == decoded | {name: record.parameters[name] for name in shared}
    again = SHARED.snap(joined, [trunk])
    assert again is not None
    assert {name: again[name] for name in shared} == {name: joined[name] for name in shared}


@given(points, st.floats(-0.05, 0.05), st.sampled_from([0, 1]))
def test_what_nearly_lies_on_a_trunk_gets_exactly_that_trunk(point: dict[str, Value], off: float, stage: int):
    record = trial(ENCODING.decode(point), ("one", "two")[stage], 10)
    moved = ENCODING.decode({**point, "p0": min(max(float(point["p0"]) + off, 0.0), 1.0)})
    snapped = SHARED.snap(moved, SHARED.stored_trunks([record]))
    near, own = ENCODING.encode(moved), ENCODING.encode(record.parameters)
    assert near is not None
    assert own is not None
    if abs(float(near["p0"]) - float(own["p0"])) < SEPARATION:
        assert snapped is not None
        assert snapped == pytest.approx(moved | {"one.lr": record.parameters["one.lr"]}, rel=1e-12)
        assert snapped["one.lr"] == record.parameters["one.lr"]
    else:
        assert snapped is None


def test_steps_of_a_trunk_are_gathered_from_all_records():
    records = [
        trial(BASE, "one", 50, 100),
        trial(BASE | {"one.steps": 900, "two.lr": 0.3}, "one", 100, 700, index=1),
        trial(BASE | {"one.lr": 1e-2}, "one", 50, index=2),
        trial(BASE, "two", 50, index=3),
        trial(BASE | {"two.steps": 900}, "two", 800, index=4),
        trial(BASE | {"one.steps": 900}, "two", 50, index=5),
    ]
    found = SHARED.stored_trunks(records)
    assert [(t.trunk, t.record.trial, t.steps) for t in found] == [
        (1, 3, (50, 800)),
        (1, 5, (50,)),
        (0, 0, (50, 100, 700)),
        (0, 2, (50,)),
    ]


def test_only_stored_points_of_the_usual_fixed_values_count():
    (point,) = trial(BASE, "one", 50).points
    gone = trial(BASE, "one", points=(replace(point, snapshot=False),))
    repeat = trial(BASE | {"seed": 8}, "one", 50)
    partial = trial({"one.lr": 1e-3, "seed": 7}, "one", 50)
    assert SHARED.stored_trunks([gone, repeat, trial(BASE, "three", 50)]) == []
    assert all(
        SHARED.join(each.record.parameters, {"p0": 0.5}, 0) is None
        for each in SHARED.stored_trunks([partial])
    )
    none, _ = shared_of(replace(SPACE, search=Search(reuse="none")))
    assert none.trunks == ()
    assert none.stored_trunks([trial(BASE, "one", 50)]) == []


@pytest.mark.parametrize(
    ("records", "ends", "expected"),
    [
        pytest.param([], (), 1400.0, id="everything"),
        pytest.param([trial(BASE, "one", 50, 300)], (), 1400.0 - 600.0, id="first trunk"),
        pytest.param([trial(BASE, "one", 400)], (), 1400.0 - 800.0, id="where the decay begins"),
        pytest.param([trial(BASE, "one", 401)], (), 1400.0, id="after it"),
        pytest.param([trial(BASE, "one", 50, 401)], (), 1300.0, id="the latest before it"),
        pytest.param([], (BASE,), 400.0, id="end"),
        pytest.param([trial(BASE, "one", 300)], (BASE,), 400.0, id="end before its trunk"),
        pytest.param([trial(BASE, "two", 300)], (BASE,), 100.0, id="second trunk before the end"),
        pytest.param([trial(BASE, "two", 300)], (), 100.0, id="second trunk without the end"),
        pytest.param([trial(BASE, "two", 361)], (BASE,), 400.0, id="second trunk too far"),
        pytest.param([trial(BASE | {"two.lr": 0.3}, "two", 300)], (), 1400.0, id="another trunk"),
    ],
)
def test_the_furthest_that_is_stored_is_taken_off(
    records: list[Trial], ends: tuple[Any, ...], expected: float
):
    cost = remaining(*records, ends=ends)
    assert cost(BASE) == pytest.approx(expected)
    assert cost.full(BASE) == 1400.0


@given(points, points, st.lists(st.integers(1, 1000), max_size=4), st.lists(st.integers(1, 1000), max_size=4))
def test_more_steps_never_cost_more(
    point: dict[str, Value], other: dict[str, Value], first: list[int], second: list[int]
):
    parameters = ENCODING.decode(point)
    records = [trial(parameters, "one", *first), trial(parameters, "two", *second, index=1)]
    costs = [remaining(*records[:count])(parameters) for count in range(3)]
    assert costs == sorted(costs, reverse=True)
    steps = int(parameters["two.steps"])
    assert costs[2] >= min(round(0.1 * steps), costs[1])
    elsewhere = ENCODING.decode(other)
    if SHARED.identity(elsewhere, 0) != SHARED.identity(parameters, 0):
        assert remaining(*records)(elsewhere) == math.fsum(COSTS(elsewhere))


def test_a_trial_of_which_all_is_stored_still_costs_something():
    stages = tuple(replace(s, trunk=Trunk(length=f"{s.name}.steps", decay=0.0)) for s in SPACE.stages)
    space = replace(SPACE, stages=stages)
    shared, _ = shared_of(space)
    stored = [Start(trunk=1, record=trial(BASE, "two", 400), steps=(400,))]
    assert 0 < RemainingCost(shared, COSTS, Starts(shared, (), stored))(BASE) < 2.0


def test_what_trials_can_share_is_the_furthest_first():
    keys = SHARED.identities(BASE)
    assert [trunk for trunk, _ in keys] == [1, None, 0]
    cost = remaining()
    assert [cost.at_most(BASE, keys[at:]) for at in range(3)] == pytest.approx([40.0, 400.0, 600.0])


def test_cost_after_a_trunk_of_a_stage_that_searches_only_its_length():
    """The trunk and the end of the first stage have the same parameters, and not the same end."""
    space = replace(SPACE, parameters=tuple(p for p in SPACE.parameters if p.name != "two.lr"))
    shared, encoding = shared_of(space)
    cost = RemainingCost(shared, StageCosts(Stages(space), encoding).known(()), Starts(shared))
    parameters = {name: value for name, value in BASE.items() if name != "two.lr"}
    keys = shared.identities(parameters)
    assert [cost.at_most(parameters, keys[at:]) for at in range(3)] == pytest.approx([40.0, 400.0, 600.0])
