"""Candidates of a sweep whose trials branch off stored trunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from sweeps.search.optimizer import Optimizer
from sweeps.search.optimizer.stage_choice import PLAIN_EVERY
from sweeps.space.definition import Objective, Program, Range, Search, Space, Stage, Trunk, Value
from sweeps.space.stages import Stages
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

SPACE = Space(
    name="case",
    objectives=(Objective(metric="loss"),),
    parameters=(
        Range(name="one.lr", min=1e-4, max=1e-2, kind="float", log=True),
        Range(name="one.steps", min=100, max=1000, kind="int", log=True),
        Range(name="two.lr", min=0.1, max=0.3, kind="float"),
        Range(name="two.steps", min=100, max=1000, kind="int", log=True),
    ),
    program=Program(kind="function", function="m:f"),
    search=Search(sobol=6, seed=3),
    stages=tuple(
        Stage(
            name=name,
            parameters=(f"{name}.*",),
            cost=f"{cost}*{name}.steps",
            trunk=Trunk(length=f"{name}.steps", decay=0.1, every=100),
        )
        for name, cost in (("one", 2), ("two", 1))
    ),
)
STAGES = Stages(SPACE)


def result(parameters: Mapping[str, Value]) -> dict[str, float]:
    one, two, lr = (float(parameters[name]) for name in ("one.steps", "two.steps", "two.lr"))
    return {"loss": 100 * (lr - 0.15) ** 2 + 3 / one**0.5 + 3 / two**0.5}


def ended(index: int, parameters: Mapping[str, Value], by: str = "sobol") -> Trial:
    points = tuple(
        StageRun(name=name, key=f"{index:062x}{stage:02x}", cost=1.0, snapshot=True, step=step)
        for stage, name in enumerate(("one", "two"))
        if (step := STAGES.trunk_end(parameters, stage))
    )
    return Trial(
        trial=index,
        status="completed",
        parameters=parameters,
        generator="botorch" if by == "botorch" else "sobol",
        metrics=result(parameters),
        points=points,
    )


@pytest.fixture(scope="module")
def records() -> list[Trial]:
    """Return the records of the first design, of trials with different lengths."""
    optimizer, found = Optimizer(SPACE), []
    for index in range(6):
        optimizer.observe(found)
        (candidate,) = optimizer.generate()
        found.append(ended(index, candidate.parameters))
    return found


def asked(space: Space, records: list[Trial]) -> Mapping[str, Value]:
    optimizer = Optimizer(space)
    optimizer.observe(records)
    (candidate,) = optimizer.generate()
    assert candidate.generator == "botorch"
    return candidate.parameters


def on_trunk(parameters: Mapping[str, Value], records: list[Trial], stage: int) -> bool:
    """Return whether a stored point of the trunk is there for these parameters."""
    end = STAGES.trunk_end(parameters, stage)
    assert end is not None
    return any(
        run.step is not None and run.step <= end
        for record in records
        if STAGES.trunk_identity(record.parameters, stage) == STAGES.trunk_identity(parameters, stage)
        for run in record.points
        if run.snapshot and run.name == SPACE.stages[stage].name
    )


def test_it_branches_off_where_only_the_decay_is_left_to_pay(records: list[Trial]):
    parameters = asked(SPACE, records)
    assert on_trunk(parameters, records, 0) or on_trunk(parameters, records, 1)
    assert parameters not in [record.parameters for record in records]


def test_late_steps_give_the_same_candidate(records: list[Trial]):
    optimizer = Optimizer(SPACE)
    optimizer.observe([replace(record, points=()) for record in records])
    optimizer.observe(records)
    (candidate,) = optimizer.generate()
    assert candidate.parameters == asked(SPACE, records)


def test_what_is_not_stored_makes_no_difference(records: list[Trial]):
    gone = [
        replace(record, points=tuple(replace(run, snapshot=False) for run in record.points))
        for record in records
    ]
    bare = [replace(record, points=()) for record in records]
    assert asked(SPACE, gone) == asked(SPACE, bare)


def test_every_fourth_candidate_ignores_costs(records: list[Trial]):
    """Nothing then makes the branch that costs a tenth better than a fresh trial."""
    later = [replace(record, generator="botorch") for record in records[: PLAIN_EVERY - 1]]
    parameters = asked(SPACE, [*later, *records[PLAIN_EVERY - 1 :]])
    assert parameters != asked(SPACE, records)


def test_without_reuse_points_mean_nothing(records: list[Trial]):
    none = replace(SPACE, search=replace(SPACE.search, reuse="none"))
    bare = replace(none, stages=tuple(replace(stage, trunk=None) for stage in none.stages))
    assert asked(none, records) == asked(bare, records)
