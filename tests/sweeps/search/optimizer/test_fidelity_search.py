"""The ask of a sweep with fidelities: cheap trials first, their best at the target, then a plain search there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sweeps.search.optimizer import FidelityOptimizer, Optimizer, asker, require_searchable
from sweeps.space.definition import (
    Choice,
    Fidelity,
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
from sweeps.space.fidelity import Ladder, at_target
from sweeps.trials.record import Trial

SPACE = Space(
    name="case",
    objectives=(Objective(metric="loss"),),
    parameters=(
        Range(name="x", min=0.0, max=1.0, kind="float"),
        Range(name="y", min=0.0, max=1.0, kind="float"),
        Choice(name="width", values=(64, 256), ordered=True),
    ),
    program=Program(kind="function", function="m:f"),
    search=Search(seed=3),
    run_cap=30,
    fidelity=(Fidelity(parameter="width", cost=(0.2, 1.0)),),
)
LOW = 9


def loss(parameters: Mapping[str, Any]) -> float:
    """The loss, best at (0.7, 0.3) at either width, and higher at the lower one."""
    return (parameters["x"] - 0.7) ** 2 + (parameters["y"] - 0.3) ** 2 + 64 / parameters["width"]


def record(index: int, parameters: Mapping[str, Value], generator: Any, **rest: Any) -> Trial:
    rest.setdefault("status", "completed")
    metrics = {"loss": loss(parameters)} if rest["status"] == "completed" else {}
    return Trial(trial=index, parameters=parameters, generator=generator, metrics=metrics, **rest)


def run(space: Space, count: int, known: Sequence[Trial] = ()) -> list[Trial]:
    optimizer, records = asker(space), list(known)
    while len(records) < count:
        optimizer.observe(records)
        (candidate,) = optimizer.generate()
        records.append(record(len(records), candidate.parameters, candidate.generator))
    return records


@pytest.fixture(scope="module")
def records() -> list[Trial]:
    return run(SPACE, LOW + 9)


def test_cheap_trials_come_first(records):
    assert Ladder(SPACE).planned == (LOW,)
    widths = [each.parameters["width"] for each in records]
    assert widths == [64] * LOW + [256] * 9
    assert [each.generator for each in records] == [
        *["fidelity"] * LOW,
        "botorch",
        *["sobol"] * 6,
        "botorch",
        "botorch",
    ]


def test_first_trial_at_the_target_is_the_best_below(records):
    first = records[LOW].parameters
    assert abs(float(first["x"]) - 0.7) < 0.1
    assert abs(float(first["y"]) - 0.3) < 0.1


def test_the_rest_is_a_plain_search_of_the_target(records):
    """Cheap trials that mislead cost what they cost, and the first trial at the target."""
    own = [replace(each, trial=index) for index, each in enumerate(records[LOW:])]
    plain = Optimizer(at_target(SPACE), more_first=1)
    for index in range(1, len(own)):
        plain.observe(own[:index])
        (candidate,) = plain.generate()
        assert dict(candidate.parameters) == dict(own[index].parameters)


def test_same_records_give_the_same_candidate(records):
    for count in (3, LOW, LOW + 4, LOW + 8):
        fresh = FidelityOptimizer(SPACE)
        fresh.observe(records[:count])
        (candidate,) = fresh.generate()
        assert dict(candidate.parameters) == dict(records[count].parameters)


def test_a_level_with_fewer_configurations_than_planned_does_not_end_the_sweep():
    choices = (Choice(name="y", values=(0.0, 0.3, 1.0)), SPACE.parameters[2], Fixed(name="x", value=0.5))
    records = run(replace(SPACE, parameters=choices), 6)
    assert [each.parameters["width"] for each in records] == [64] * 3 + [256] * 3


def test_abandoned_cheap_trial_is_made_up_for_and_a_failed_one_is_not(records):
    optimizer, low = FidelityOptimizer(SPACE), records[:LOW]
    optimizer.observe([*low[:-1], replace(low[-1], status="abandoned", metrics={})])
    assert optimizer.generate()[0].generator == "fidelity"
    optimizer.observe([*low[:-1], replace(low[-1], status="failed", failure="diverged", metrics={})])
    assert optimizer.generate()[0].parameters["width"] == 256


def test_workers_do_not_wait_for_cheap_trials(records):
    """Until half of them have results the target's first design is tried; then their best follows."""
    optimizer, low = FidelityOptimizer(SPACE), records[:LOW]
    waiting = [replace(each, status="running", worker="w", metrics={}) for each in low]
    optimizer.observe(waiting)
    (candidate,) = optimizer.generate()
    assert (candidate.generator, candidate.parameters["width"]) == ("sobol", 256)
    target = record(LOW, candidate.parameters, "sobol")
    optimizer.observe([*low, target])
    (candidate,) = optimizer.generate()
    assert (candidate.generator, candidate.parameters["width"]) == ("botorch", 256)


def test_where_all_cheap_trials_failed_the_target_is_searched_plainly(records):
    low = [replace(r, status="failed", failure="diverged", metrics={}) for r in records[:LOW]]
    assert [each.generator for each in run(SPACE, LOW + 3, low)[LOW:]] == ["sobol"] * 3


def test_a_users_own_trial_of_no_level_is_ignored():
    both = replace(
        SPACE,
        parameters=(*SPACE.parameters, Choice(name="depth", values=(2, 6), ordered=True)),
        fidelity=(*SPACE.fidelity, Fidelity(parameter="depth", cost=(1.0, 1.5))),
    )
    mixed = record(0, {"x": 0.5, "y": 0.5, "width": 256, "depth": 2}, "enqueued")
    assert run(both, 2, [mixed])[1].parameters["depth"] == 2
    assert run(both, 2, [mixed])[1].generator == "fidelity"


def test_best_of_a_middle_level_comes_from_below():
    three = replace(
        SPACE,
        parameters=(*SPACE.parameters[:2], Choice(name="width", values=(64, 128, 256), ordered=True)),
        fidelity=(Fidelity(parameter="width", cost=(0.1, 0.15, 1.0)),),
    )
    low, middle = Ladder(three).planned
    records = run(three, low + middle + 1)
    assert [each.parameters["width"] for each in records] == [64] * low + [128] * middle + [256]
    assert loss(records[low].parameters) - 0.5 < 0.02
    assert loss(records[-1].parameters) - 0.25 < 0.01


def test_where_lengths_share_a_trunk_the_first_long_run_continues_a_short_one():
    lengths = replace(
        SPACE,
        parameters=(*SPACE.parameters[:2], Choice(name="width", values=(64, 256), ordered=True)),
        stages=(
            Stage(
                name="only",
                parameters=("*",),
                cost="width",
                trunk=Trunk(length="width", decay=0.2),
            ),
        ),
        fidelity=(Fidelity(parameter="width"),),
        run_cap=40,
    )
    (count,) = Ladder(lengths).planned
    *low, first = run(lengths, count + 1)
    assert first.parameters["width"] == 256
    assert {**first.parameters, "width": 64} in [dict(each.parameters) for each in low]


def test_run_cap_is_compared_with_the_trials_at_the_target():
    assert require_searchable(SPACE) == Optimizer(at_target(SPACE), more_first=1).first_trials
