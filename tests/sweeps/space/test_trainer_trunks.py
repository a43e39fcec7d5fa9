"""Trunks that `sweep init` finds in a space of the trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

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
    Trunk,
    Value,
)
from sweeps.space.domain import probes
from sweeps.space.stages import Stages, decay_start
from sweeps.space.trainer_stages import FoundTrunk, with_trunks

STAGES = (Stage(name="stage1_9", parameters=("stage1_9.*",)), Stage(name="stage2", parameters=("stage2.*",)))
FIRST = Range(name="stage1_9.max_steps", min=10, max=400, kind="int", log=True)
SECOND = Choice(name="stage2.max_steps", values=(100, 200, 400), ordered=True)
LR = Range(name="stage2.optimizer.lr", min=1e-3, max=1e-2, kind="float")
DECAY = Range(name="stage2.schedule.decay_fraction", min=0.1, max=0.3, kind="float")


def space_of(*parameters: Parameter, overrides: tuple[str, ...] = (), reuse: str = "auto") -> Space:
    return Space(
        name="case",
        objectives=(Objective(metric="final_loss"),),
        parameters=parameters,
        program=Program(kind="trainer", overrides=overrides),
        search=Search(reuse="none" if reuse == "none" else "auto"),
    )


def trainer(parameters: Mapping[str, Value]) -> dict[str, FoundTrunk]:
    """Return what the trainer would: trunks of the stages that have steps."""
    found = {}
    for stage in ("stage1_9", "stage2"):
        steps = int(parameters.get(f"{stage}.max_steps", 100))
        decay = float(parameters.get(f"{stage}.schedule.decay_fraction", 0.2))
        if steps:
            found[stage] = FoundTrunk(key=stage * 8, until=decay_start(steps, decay), decay=decay)
    return found


Found = Callable[[Mapping[str, Value]], Mapping[str, FoundTrunk] | None]


def found_in(space: Space, found: Found = trainer) -> list[Trunk | None]:
    return [stage.trunk for stage in with_trunks(space, STAGES, probes(space), found)]


def test_each_listed_length_has_a_point_where_it_leaves():
    assert found_in(space_of(FIRST, SECOND, LR)) == [
        Trunk(length="stage1_9.max_steps", decay=0.2, every=40),
        Trunk(length="stage2.max_steps", decay=0.2, every=80),
    ]


@pytest.mark.parametrize(
    ("lengths", "every"),
    [((100, 200, 400), 80), ((100, 105), 11), ((100, 101, 400), 40), ((0, 100), 80), ((1, 2), 1)],
    ids=str,
)
def test_listed_lengths_share_at_most_16_points(lengths: tuple[int, ...], every: int):
    (_, trunk) = found_in(space_of(replace(SECOND, values=lengths), LR))
    assert trunk is not None
    assert trunk.every == every


def test_searched_decay_has_points_an_eighth_apart():
    last = Range(name="stage2.schedule.final_lr_ratio", min=0.0, max=0.1, kind="float")
    assert found_in(space_of(SECOND, DECAY, last))[1] == Trunk(
        length="stage2.max_steps", decay=DECAY.name, tail=(last.name,), every=45
    )


@pytest.mark.parametrize(
    "space",
    [
        pytest.param(space_of(LR), id="no length"),
        pytest.param(space_of(Fixed(name=SECOND.name, value=100), LR), id="fixed length"),
        pytest.param(space_of(SECOND, LR, reuse="none"), id="reuse none"),
        pytest.param(space_of(SECOND, LR, overrides=("stage2.trunk_every=0",)), id="user wants none"),
        pytest.param(space_of(SECOND, Fixed(name="stage2.trunk_every", value=0)), id="parameter, none"),
        pytest.param(
            space_of(Choice(name="seed", values=(0, 1), when=((1, (SECOND.name,)),)), SECOND),
            id="conditional length",
        ),
        pytest.param(space_of(replace(SECOND, values=(1, 0)), LR), id="nothing before the decay"),
    ],
)
def test_there_is_none(space: Space):
    low_decay = {"stage1_9": 1.0, "stage2": 1.0}

    def found(parameters: Mapping[str, Value]) -> dict[str, FoundTrunk]:
        if SECOND.name in parameters and int(parameters[SECOND.name]) < 2:
            return {
                name: replace(each, until=0, decay=low_decay[name])
                for name, each in trainer(parameters).items()
            }
        return trainer(parameters)

    assert found_in(space, found) == [None, None]


def test_the_user_says_how_far_points_are_apart():
    assert [t and t.every for t in found_in(space_of(SECOND, overrides=("stage2.trunk_every=7",)))] == [
        None,
        7,
    ]
    both = ("stage2.trunk_every=7", "stage2.trunk_every=9")
    assert [t and t.every for t in found_in(space_of(SECOND, overrides=both))] == [None, 9]
    listed = space_of(SECOND, overrides=("stage2.trunk_every=[5,7]",))
    assert [t is not None for t in found_in(listed)] == [False, True]  # the trainer has the points from there


def test_refused_configuration_excludes_no_trunk():
    kind = Choice(name="stage2.kind", values=("plain", "saliency"))

    def found(parameters: Mapping[str, Value]) -> Mapping[str, FoundTrunk] | None:
        return trainer(parameters) if parameters["stage2.kind"] == "plain" else refused

    refused: Mapping[str, FoundTrunk] | None = {}
    (_, trunk) = found_in(space_of(SECOND, kind), found)
    assert trunk is not None
    assert trunk.without == ((kind.name, "saliency"),)
    refused = None
    (_, trunk) = found_in(space_of(SECOND, kind), found)
    assert trunk is not None
    assert trunk.without == ()


def test_choices_without_a_trunk_leave_it_to_the_other_trials():
    """Such as saliency, or a `distill_schedule`, of which either alone has none."""
    saliency = Choice(name="stage1_9.saliency.enabled", values=(False, True))
    schedule = Choice(name="stage1_9.distill_schedule.type", values=("linear", "constant"))
    optimizer = Choice(name="stage1_9.optimizer.type", values=("muon", "adamw"))
    until = Range(name="stage1_9.optimizer.weight_decay_until", min=0.5, max=1.0, kind="float")

    def found(parameters: Mapping[str, Value]) -> Mapping[str, FoundTrunk]:
        is_plain = not parameters[saliency.name] and parameters[schedule.name] == "constant"
        ends = float(parameters.get(until.name, 1.0)) < 1.0
        return {
            name: trunk
            for name, trunk in trainer(parameters).items()
            if name != "stage1_9" or (is_plain and not ends)
        }

    space = space_of(FIRST, SECOND, saliency, schedule, optimizer)
    trunk = found_in(space, found)[0]
    assert trunk == Trunk(
        length=FIRST.name,
        decay=0.2,
        every=40,
        without=((saliency.name, True), (schedule.name, "linear")),
    )
    stages = Stages(replace(space, stages=(replace(STAGES[0], trunk=trunk), STAGES[1])))
    plain = {FIRST.name: 100, saliency.name: False, schedule.name: "constant"}
    assert stages.trunk_end(plain, 0) == 80
    assert stages.trunk_end({**plain, saliency.name: True}, 0) is None
    # A number decides here: nearly no trial would have the trunk.
    assert found_in(space_of(FIRST, saliency, schedule, until), found)[0] is None


def test_a_key_that_follows_the_length_is_no_trunk():
    """Such as of `stage2.lambda_warmup.warmup_steps=${stage2.max_steps}`."""

    def found(parameters: Mapping[str, Value]) -> dict[str, FoundTrunk]:
        each = trainer(parameters)
        return each | {"stage2": replace(each["stage2"], key=str(parameters[SECOND.name]))}

    assert found_in(space_of(FIRST, SECOND), found) == [
        Trunk(length="stage1_9.max_steps", decay=0.2, every=40),
        None,
    ]


def test_decay_that_varies_without_a_parameter_is_no_trunk():
    def found(parameters: Mapping[str, Value]) -> dict[str, FoundTrunk]:
        decay = 0.1 if float(parameters[LR.name]) > 5e-3 else 0.2
        return trainer({**parameters, "stage2.schedule.decay_fraction": decay})

    assert found_in(space_of(SECOND, LR), found) == [None, None]
