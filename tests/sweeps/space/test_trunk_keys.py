"""Trunks of stages: who shares one, and where a trial leaves it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.space.definition import (
    Choice,
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
from sweeps.space.space_json import from_json, problem, read, to_json
from sweeps.space.stages import Stages, decay_start
from sweeps.text.step_key import step_key
from trainer.config import ScheduleConfig

FIRST = Trunk(length="one.steps", decay=0.2, tail=("one.last",), every=10)
SECOND = Trunk(length="two.steps", decay="two.decay", every=5)
SPACE = Space(
    name="case",
    objectives=(Objective(metric="loss"),),
    parameters=(
        Range(name="one.steps", min=0, max=400, kind="int", log=False),
        Range(name="one.lr", min=0.1, max=1.0, kind="float"),
        Range(name="one.last", min=0.0, max=1.0, kind="float"),
        Range(name="two.steps", min=1, max=400, kind="int"),
        Range(name="two.decay", min=0.0, max=1.0, kind="float"),
        Choice(name="two.kind", values=("a", "b")),
        Fixed(name="seed", value=3),
    ),
    program=Program(kind="function", function="m:f"),
    stages=(
        Stage(name="one", parameters=("one.*", "seed"), trunk=FIRST),
        Stage(name="two", parameters=("two.*",), trunk=SECOND),
    ),
)
shares = st.floats(0, 1)
configurations = st.fixed_dictionaries(
    {
        "one.steps": st.integers(0, 400),
        "one.lr": st.sampled_from([0.1, 0.2]),
        "one.last": st.integers(0, 8).map(
            lambda eighths: eighths / 8
        ),  # equal ones are so within the resolution
        "two.steps": st.integers(1, 400),
        "two.decay": shares,
        "two.kind": st.sampled_from(["a", "b"]),
        "seed": st.just(3),
    }
)


def trunks(space: Space = SPACE) -> Stages:
    return Stages(space)


TRUNKS = trunks()


def without(parameters: Mapping[str, Value], *names: str) -> dict[str, Value]:
    return {name: value for name, value in parameters.items() if name not in names}


@given(configurations, configurations)
def test_trials_on_one_trunk_differ_in_its_length_and_tail_alone(one: dict[str, Any], other: dict[str, Any]):
    on_first = one["one.lr"] == other["one.lr"]
    assert (TRUNKS.trunk_identity(one, 0) == TRUNKS.trunk_identity(other, 0)) == on_first
    tail = ("two.steps", "two.decay")
    on_second = without(one, *tail) == without(other, *tail)
    assert (TRUNKS.trunk_identity(one, 1) == TRUNKS.trunk_identity(other, 1)) == on_second


@given(configurations)
def test_a_trial_leaves_its_trunk_where_its_decay_begins(parameters: dict[str, Any]):
    assert TRUNKS.trunk_end(parameters, 0) == decay_start(parameters["one.steps"], 0.2)
    end = TRUNKS.trunk_end(parameters, 1)
    assert end == decay_start(parameters["two.steps"], parameters["two.decay"])
    assert end is not None
    assert 0 <= end <= parameters["two.steps"]


@given(st.integers(1, 300), st.integers(0, 300), shares, st.integers(0, 40))
def test_learning_rates_agree_until_the_decay(steps: int, more: int, decay: float, warmup: int):
    config = ScheduleConfig(warmup_steps=warmup, decay_fraction=decay, final_lr_ratio=0.0)
    end = decay_start(steps, decay)
    shared = range(min(end, decay_start(steps + more, decay)))
    assert all(config.lr_factor(at, steps) == config.lr_factor(at, steps + more) for at in shared)
    if end < steps and warmup < end:
        assert config.lr_factor(end, steps) < 1.0 == config.lr_factor(max(end - 1, warmup), steps)


def test_what_the_length_switches_on_is_part_of_the_trunk():
    length = Choice(name="two.steps", values=(10, 20), when=((20, ("two.extra",)),))
    extra = Range(name="two.extra", min=0.0, max=1.0, kind="float")
    found = trunks(replace(SPACE, parameters=(*SPACE.parameters[:3], length, *SPACE.parameters[4:], extra)))
    base = {"one.steps": 5, "one.lr": 0.1, "one.last": 0.0, "two.decay": 0.5, "two.kind": "a", "seed": 3}
    keys = [found.trunk_identity(base | {"two.steps": 20, "two.extra": value}, 1) for value in (0.1, 0.9)]
    assert len({*keys, found.trunk_identity(base | {"two.steps": 10}, 1)}) == 3


def test_decay_of_both_stages_belongs_to_the_first():
    both = tuple(
        replace(stage, trunk=replace(trunk, decay="one.last", tail=()))
        for stage, trunk in zip(SPACE.stages, (FIRST, SECOND), strict=True)
    )
    found = trunks(replace(SPACE, stages=both))
    base = {"one.steps": 50, "one.lr": 0.1, "two.steps": 10, "two.decay": 0.5, "two.kind": "a", "seed": 3}
    low, high = ({**base, "one.last": share} for share in (0.1, 0.2))
    assert found.trunk_identity(low, 0) == found.trunk_identity(high, 0)
    assert found.trunk_identity(low, 1) != found.trunk_identity(high, 1)
    assert found.trunk_end(high, 1) == 8


def test_without_reuse_or_a_length_there_is_no_trunk():
    none = trunks(replace(SPACE, search=Search(reuse="none")))
    assert none.trunk(0) is None
    assert none.trunk_end({"one.steps": 100}, 0) is None
    assert not none.is_tail("one.steps", 0)
    assert TRUNKS.trunk_end({"one.lr": 0.1}, 0) is None
    assert TRUNKS.trunk_end({"two.steps": 10, "two.decay": "x"}, 1) is None
    assert TRUNKS.trunk_end({"one.steps": True}, 0) is None


def test_a_point_has_a_key_of_its_own():
    assert step_key("a" * 64, 70) == "b5802c6025568fcdf1826c4135dfa850230178d18163deb5994a4d37a5b6dafe"
    assert len({step_key("a" * 64, 70), step_key("a" * 64, 7), step_key("b" * 64, 70)}) == 3


def test_a_space_with_trunks_is_stored_and_read_back():
    document = to_json(SPACE)
    assert from_json(document) == SPACE
    plain = replace(SPACE, stages=tuple(replace(stage, trunk=None) for stage in SPACE.stages))
    assert all("trunk" not in stage for stage in to_json(plain)["stages"])


@pytest.mark.parametrize(
    "change",
    [
        {"length": "none"},
        {"decay": 1.5},
        {"decay": float("nan")},
        {"decay": "none"},
        {"every": -1},
        {"every": 2.5},
        {"tail": (3,)},
    ],
    ids=str,
)
def test_an_edited_trunk_is_refused(change: dict[str, Any]):
    assert not problem(SPACE)
    first = replace(SPACE.stages[0], trunk=replace(FIRST, **change))
    edited = to_json(replace(SPACE, stages=(first, SPACE.stages[1])))
    with pytest.raises(ValueError, match="trunk"):
        read(json.dumps({"schema": 1, "space": edited}).encode())
