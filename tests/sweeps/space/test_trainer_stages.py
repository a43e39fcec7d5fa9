"""Stages of the trainer in `sweep.json`: what is shared, and that costs are what the trainer counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sweeps.errors import InputError
from sweeps.programs.trainer import TrainerProgram
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
from sweeps.space.space_file import load
from sweeps.space.stages import Stages
from sweeps.space.trainer_stages import trainer_stages
from trainer import api

SHIPPED = sorted((Path(__file__).parents[3] / "search_spaces").glob("*.yaml"))
LR = Range(name="stage2.optimizer.lr", min=1e-3, max=1e-2, kind="float", log=True)
SEED = Choice(name="seed", values=(0, 1))
DECAY_ENDS = "stage2.optimizer.weight_decay_until=0.5"
STEPS = Range(name="stage1_9.max_steps", min=10, max=60, kind="int", log=True)


def space_of(*parameters: Parameter, overrides: tuple[str, ...] = ()) -> Space:
    return Space(
        name="case",
        objectives=(Objective(metric="final_loss"),),
        parameters=parameters,
        program=Program(kind="trainer", overrides=("model=tiny", *overrides)),
    )


def stage_costs(space: Space, points: list[dict[str, Value]]) -> list[dict[str, tuple[int, int]]]:
    return [api.stage_costs(TrainerProgram(space).overrides(point)) for point in points]


def with_stages(space: Space) -> Space:
    points = probes(replace(space, parameter_constraints=()))
    return replace(space, stages=trainer_stages(space, stage_costs(space, points)))


def stages_of(*parameters: Parameter, overrides: tuple[str, ...] = ()) -> tuple[Stage, ...]:
    return with_stages(space_of(*parameters, overrides=overrides)).stages


def costs_of(*parameters: Parameter, overrides: tuple[str, ...] = ()) -> dict[str, str]:
    return {stage.name: stage.cost for stage in stages_of(*parameters, overrides=overrides)}


def test_all_that_names_no_later_stage_belongs_to_stage_1_9() -> None:
    group = Choice(name="optimizer@stage2.optimizer", values=("muon", "adamw"))
    data = Choice(name="eval.batches", values=(2, 4))
    assert stages_of(SEED, STEPS, data, LR, group) == (
        Stage(
            name="stage1_9",
            parameters=("seed", "stage1_9.max_steps", "eval.batches"),
            cost="2*stage1_9.max_steps",
        ),
        Stage(name="stage2", parameters=("stage2.*", "*@stage2.*"), cost="200"),
    )


@pytest.mark.parametrize(
    ("parameters", "overrides", "costs"),
    [
        ((LR,), (), {"stage1_9": "200", "stage2": "200"}),
        ((LR, STEPS), (), {"stage1_9": "2*stage1_9.max_steps", "stage2": "200"}),
        (
            (LR, Fixed(name="stage2.max_steps", value=60)),
            ("stage1_9.max_steps=7",),
            {"stage1_9": "14", "stage2": "stage2.max_steps"},
        ),
        ((LR,), ("stage2.distill.weight=0.5",), {"stage1_9": "200", "stage2": "400"}),
        (
            (Range(name="stage2.distill.weight", min=0.1, max=1.0, kind="float"),),
            (),
            {"stage1_9": "200", "stage2": "400"},
        ),
        # The teacher is on or off: no expression, and then it is left to what trials report.
        (
            (Range(name="stage2.distill.weight", min=0.0, max=1.0, kind="float"),),
            (),
            {"stage1_9": "", "stage2": ""},
        ),
        (
            (Choice(name="stage2.distill.weight", values=(0.0, 1.0)), STEPS),
            (),
            {"stage1_9": "", "stage2": ""},
        ),
        # A length that follows another one, or that is there under a condition only.
        ((STEPS, LR), ("stage2.max_steps=${stage1_9.max_steps}",), {"stage1_9": "", "stage2": ""}),
        (
            (Choice(name="seed", values=(0, 1), when=((1, ("stage1_9.max_steps",)),)), STEPS, LR),
            (),
            {"stage1_9": "", "stage2": ""},
        ),
        ((LR,), ("stage3.max_steps=5",), {"stage1_9": "200", "stage2": "200", "stage3": "10"}),
        (
            (Choice(name="stage3.max_steps", values=(0, 50)),),
            (),
            {"stage1_9": "200", "stage2": "200", "stage3": "2*stage3.max_steps"},
        ),
    ],
    ids=[
        "constants",
        "searched_length",
        "fixed_length",
        "distill",
        "distill_searched",
        "distill_from_0",
        "distill_on_or_off",
        "interpolated_length",
        "conditional_length",
        "stage3",
        "stage3_searched",
    ],
)
def test_cost_is_an_expression_in_the_length_or_a_constant(
    parameters: tuple[Parameter, ...], overrides: tuple[str, ...], costs: dict[str, str]
) -> None:
    overrides = ("stage2.lambda_warmup.enabled=false", "stage1_9.schedule.warmup_steps=1", *overrides)
    assert costs_of(*parameters, overrides=("stage2.schedule.warmup_steps=1", *overrides)) == costs


def test_stage_3_without_steps_splits_no_prefix() -> None:
    idle = Range(name="stage3.temperature", min=1.0, max=5.0, kind="float")
    space = with_stages(space_of(SEED, idle, Fixed(name="stage3/teacher", value="in_process")))
    assert [stage.name for stage in space.stages] == ["stage1_9", "stage2"]
    assert [Stages(space).position(name) for name in ("seed", "stage3.temperature", "stage3/teacher")] == [
        0,
        1,
        1,
    ]


@pytest.mark.parametrize(
    "overrides",
    [("stage1_9.max_steps=0",), ("stage2.max_steps=0",)],
    ids=["no_stage1_9", "nothing_after_it"],
)
def test_one_stage_of_one_length_has_nothing_to_share(overrides: tuple[str, ...]) -> None:
    assert TrainerProgram(space_of(LR, SEED, overrides=overrides)).complete().stages == ()


def test_one_stage_of_several_lengths_has_a_trunk() -> None:
    lengths = Choice(name="stage2.max_steps", values=(40, 80), ordered=True)
    alone = space_of(LR, lengths, overrides=("stage1_9.max_steps=0",))
    space = TrainerProgram(alone).complete()
    assert space.stages == (
        Stage(
            name="stage2",
            parameters=("stage2.optimizer.lr", "stage2.max_steps"),
            cost="stage2.max_steps",
            trunk=Trunk(length="stage2.max_steps", decay=0.3, every=28),
        ),
    )
    assert Stages(space).shared
    assert not Stages(replace(space, search=Search(reuse="none"))).shared
    # A weight decay that ends with a share of the steps has no trunk.
    until = replace(alone, program=replace(alone.program, overrides=(*alone.program.overrides, DECAY_ENDS)))
    assert TrainerProgram(until).complete().stages == ()


def test_a_stage_1_9_that_may_have_no_steps_is_a_stage() -> None:
    stages = Stages(with_stages(space_of(Choice(name="stage1_9.max_steps", values=(0, 100)), LR)))
    assert stages.shared
    assert stages.costs({"stage1_9.max_steps": 0, "stage2.optimizer.lr": 1e-3}) == {
        "stage1_9": 0.0,
        "stage2": 200.0,
    }


def test_a_later_stage_that_stage_1_9_refers_to_belongs_to_it() -> None:
    """`stage1_9.batch_size=${stage2.batch_size}`: another Stage 2 is another Stage 1.9."""
    batch = Choice(name="stage2.batch_size", values=(8, 16))
    first, second = stages_of(batch, overrides=("stage1_9.batch_size=${stage2.batch_size}",))
    assert (first.parameters, second.parameters) == (("stage2.batch_size",), ())
    first, second = stages_of(batch, overrides=("stage3.batch_size=${stage2.batch_size}",))
    assert (first.parameters, second.parameters) == ((), ("stage2.*",))


def between(*parameters: Parameter) -> Space:
    """A space whose constraints exclude both of its ends."""
    steps = Range(name="stage2.max_steps", min=40, max=400, kind="int")
    first = Range(name="stage1_9.max_steps", min=40, max=400, kind="int")
    constraints = tuple(f"2*{first.name} + {steps.name} {bound}" for bound in (">= 600", "<= 700"))
    return replace(space_of(first, steps, *parameters), parameter_constraints=constraints)


def test_a_misspelt_key_is_refused_even_if_both_ends_are_excluded() -> None:
    misspelt = replace(LR, name="stage2.optimizer.lrr")
    with pytest.raises(InputError, match="lrr"):
        TrainerProgram(between(misspelt)).complete()


def test_each_option_is_tried_even_if_both_ends_are_excluded() -> None:
    child = Range(name="k", min=1, max=9, kind="int")
    kind = Choice(name="kind", values=("a", "b", "c"), when=(("b", ("k",)),))
    space = between(kind, child)
    found = probes(space)
    assert [point["kind"] for point in found] == ["a", "b", "c"]
    assert ["k" in point for point in found] == [False, True, False]
    assert all(600 <= 2 * point["stage1_9.max_steps"] + point["stage2.max_steps"] <= 700 for point in found)
    assert {type(point["stage2.max_steps"]) for point in found} == {int}


def test_lengths_count_even_if_both_ends_are_excluded() -> None:
    space = between()
    assert [stage.cost for stage in with_stages(space).stages] == ["2*stage1_9.max_steps", "stage2.max_steps"]


def test_a_trainer_that_accepts_no_point_has_no_stages() -> None:
    space = space_of(LR, overrides=("stage1_9.max_steps=100", "stage1_9.schedule.warmup_steps=200"))
    with pytest.raises(InputError, match="warmup_steps"):
        TrainerProgram(space).complete()
    assert trainer_stages(space, []) == ()


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_costs_of_the_shipped_spaces_are_what_the_trainer_counts(file: Path) -> None:
    space = with_stages(load(file))
    points = probes(space)
    stages = Stages(space)
    assert bool(space.stages) == (file.stem != "stage3")  # it has no Stage 1.9
    for point, counted in zip(points, stage_costs(space, points), strict=True):
        expected = {name: counted[name][0] * counted[name][1] for name in stages.names}
        assert stages.costs(point) == expected
