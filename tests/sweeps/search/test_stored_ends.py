"""First stages that trials share: what is published, what starts from it, and what is a near copy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.search.encoding import WIDE, Encoding
from sweeps.search.shared_stages import SEPARATION, SharedStages, Start
from sweeps.space.definition import (
    Choice,
    Fixed,
    Objective,
    Program,
    Range,
    Search,
    Space,
    Stage,
    Value,
)
from sweeps.space.domain import Domain
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

SPACE = Space(
    name="case",
    objectives=(Objective(metric="loss"),),
    parameters=(
        Range(name="first.lr", min=1e-5, max=1e-1, kind="float", log=True),
        Choice(name="first.gate", values=("on", "off"), when=(("on", ("first.k",)),)),
        Range(name="first.k", min=0.1, max=0.3, kind="float"),
        Range(name="second.steps", min=1, max=5000, kind="int", log=True),
        Choice(name="second.kind", values=("a", "b", "c")),
        Fixed(name="seed", value=7),
    ),
    program=Program(kind="function", function="m:f"),
    stages=(Stage(name="one", parameters=("first.*", "seed")), Stage(name="two", parameters=("second.*",))),
)
units = st.floats(0, 1)
points = st.fixed_dictionaries(
    {
        "p0": units,
        "p1": st.sampled_from(["on", "off"]),
        "p2": units,
        "p3": units,
        "p4": st.sampled_from(["a", "b", "c"]),
    }
)


def shared_of(space: Space = SPACE) -> tuple[SharedStages, Encoding]:
    encoding = Encoding(Domain(space))
    return SharedStages(space, encoding), encoding


SHARED, ENCODING = shared_of()


def trial(parameters: Mapping[str, Value], index: int = 0, *, snapshot: bool = True, **rest: Any) -> Trial:
    run = StageRun(name="one", key=f"{index:064x}", cost=1.0, snapshot=snapshot)
    rest.setdefault("status", "completed")
    return Trial(trial=index, parameters=parameters, generator="sobol", stages=(run,), **rest)


@given(points, points)
def test_trial_on_stored_stage_has_its_exact_values(first: dict[str, Value], other: dict[str, Value]):
    record = trial(ENCODING.decode(first))
    joined = SHARED.join(record.parameters, other)
    assert joined is not None
    assert SHARED.identity(joined) == SHARED.identity(record.parameters)
    expected = {n: v for n, v in record.parameters.items() if n.startswith("first.") or n == "seed"}
    assert {n: v for n, v in joined.items() if n in expected} == expected
    later = {n: v for n, v in ENCODING.decode(other).items() if n.startswith("second.")}
    assert {n: v for n, v in joined.items() if n.startswith("second.")} == later
    assert ENCODING.domain.misfit(joined) is None


@given(points, st.floats(-0.05, 0.05))
def test_near_copy_of_stored_stage_becomes_exact(point: dict[str, Value], off: float):
    record = trial(ENCODING.decode(point))
    moved = {**point, "p0": min(max(float(point["p0"]) + off, 0.0), 1.0)}
    parameters = ENCODING.decode(moved)
    snapped = SHARED.snap(parameters, [Start(record=record)])
    encoded, own = ENCODING.encode(parameters), ENCODING.encode(record.parameters)
    assert encoded is not None
    assert own is not None
    if abs(float(encoded["p0"]) - float(own["p0"])) < SEPARATION:
        assert snapped == {**parameters, "first.lr": record.parameters["first.lr"]}
    else:
        assert snapped is None


def lengths(low: int, high: int) -> tuple[SharedStages, Encoding]:
    steps = Range(name="first.steps", min=low, max=high, kind="int", log=True)
    return shared_of(replace(SPACE, parameters=(steps, *SPACE.parameters[3:])))


def test_twice_a_short_length_is_another_stage():
    shared, encoding = lengths(1, 64)
    rest = {"second.steps": 100, "second.kind": "a", "seed": 7}
    stored = Start(record=trial({"first.steps": 1, **rest}))
    assert shared.snap({"first.steps": 2, **rest}, [stored]) is None
    first, second = encoding.encode({"first.steps": 1, **rest}), encoding.encode({"first.steps": 2, **rest})
    assert first is not None
    assert second is not None
    assert shared.is_separate(first, [second])


def test_lengths_are_as_far_apart_whether_integers_have_an_axis_of_their_own():
    def apart(low: int, high: int) -> float:
        encoding = lengths(low, high)[1]
        first, second = (
            encoding.encode({"first.steps": n, "second.steps": 100, "second.kind": "a", "seed": 7})
            for n in (2 * low, 3 * low)
        )
        assert first is not None
        assert second is not None
        return encoding.distance(first, second)

    for low in (1, 11):
        assert apart(low, low + WIDE - 1) == pytest.approx(apart(low, low + WIDE + 10), rel=0.05)


def test_another_option_of_the_first_stage_is_another_stage():
    record = trial(ENCODING.decode({"p0": 0.5, "p1": "off", "p3": 0.5, "p4": "a"}))
    parameters = ENCODING.decode({"p0": 0.5, "p1": "on", "p2": 0.5, "p3": 0.5, "p4": "a"})
    assert SHARED.snap(parameters, [Start(record=record)]) is None


def test_only_a_stored_snapshot_of_the_first_stage_is_published():
    parameters = [ENCODING.decode({"p0": u, "p1": "off", "p3": 0.5, "p4": "a"}) for u in (0.1, 0.5, 0.9)]
    records = [
        trial(parameters[0], 0, snapshot=False),
        trial(parameters[1], 1, status="running"),
        trial(parameters[1], 2),
        replace(trial(parameters[2], 3), stages=(StageRun(name="two", key="", cost=1.0, snapshot=True),)),
        trial(parameters[2], 4, status="failed"),
    ]
    found = SHARED.stored_ends(records)
    assert [record.trial for record in found.values()] == [1, 4]
    assert list(found) == [SHARED.identity(parameters[1]), SHARED.identity(parameters[2])]


def test_a_repeat_with_another_seed_offers_nothing():
    parameters = ENCODING.decode({"p0": 0.1, "p1": "off", "p3": 0.5, "p4": "a"})
    assert SHARED.stored_ends([trial({**parameters, "seed": 8})]) == {}
    assert len(SHARED.stored_ends([trial(parameters)])) == 1


def test_what_switches_the_first_stage_belongs_to_it():
    space = replace(
        SPACE,
        parameters=(
            Choice(name="second.gate", values=("on", "off"), when=(("on", ("first.k",)),)),
            Range(name="first.k", min=0.1, max=0.3, kind="float"),
        ),
    )
    found, encoding = shared_of(space)
    record = trial(encoding.decode({"p0": "on", "p1": 0.5}))
    assert found.join(record.parameters, {"p0": "off", "p1": 0.5}) == dict(record.parameters)
    assert found.join(record.parameters, {"p0": "on", "p1": 0.9}) == dict(record.parameters)


@given(points, points)
def test_distance_is_a_metric_within_options(first: dict[str, Value], second: dict[str, Value]):
    distance = ENCODING.distance(first, second)
    assert ENCODING.distance(first, first) == 0.0
    assert distance == ENCODING.distance(second, first)
    if (first["p1"], first["p4"]) != (second["p1"], second["p4"]):
        assert math.isinf(distance)
    else:
        assert distance == max(abs(float(first[axis]) - float(second[axis])) for axis in ("p0", "p2", "p3"))
    assert SHARED.is_separate(first, [second]) == (distance >= SEPARATION)


def test_inactive_axes_make_another_point():
    assert math.isinf(ENCODING.distance({"p0": 0.5, "p1": "on", "p2": 0.5}, {"p0": 0.5, "p1": "on"}))


def test_choice_needs_both_stages_searched_and_shared():
    assert SHARED.has_choice
    assert not shared_of(replace(SPACE, search=Search(reuse="none")))[0].has_choice
    assert not shared_of(replace(SPACE, stages=()))[0].has_choice
    assert not shared_of(replace(SPACE, parameters=SPACE.parameters[:3]))[0].has_choice
    assert not shared_of(replace(SPACE, parameters=SPACE.parameters[3:]))[0].has_choice
