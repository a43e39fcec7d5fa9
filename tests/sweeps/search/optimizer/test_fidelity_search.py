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


TWO = replace(
    SPACE,
    objectives=(*SPACE.objectives, Objective(metric="gain", goal="maximize")),
    fidelity=(Fidelity(parameter="width", cost=(0.3, 1.0)),),
    search=Search(seed=3, sobol=9),  # points of a surrogate for two take a second each
    run_cap=50,
)
LOW_OF_TWO = 10


def gain(parameters: Mapping[str, Any]) -> float:
    """The gain, best at (0.2, 0.3): with the loss the front is a line along x from 0.2 to 0.7."""
    return 10 - (parameters["x"] - 0.2) ** 2 - (parameters["y"] - 0.3) ** 2


def record(index: int, parameters: Mapping[str, Value], generator: Any, **rest: Any) -> Trial:
    rest.setdefault("status", "completed")
    metrics = {"loss": loss(parameters), "gain": gain(parameters)} if rest["status"] == "completed" else {}
    return Trial(trial=index, parameters=parameters, generator=generator, metrics=metrics, **rest)


def run(space: Space, count: int, known: Sequence[Trial] = ()) -> list[Trial]:
    optimizer, records = asker(space), list(known)
    while len(records) < count:
        optimizer.observe(records)
        (candidate,) = optimizer.generate()
        records.append(record(len(records), candidate.parameters, candidate.generator))
    return records


@pytest.mark.parametrize("seed", range(8))
def test_the_first_design_of_a_cheap_level_tries_every_option(seed: int) -> None:
    kinds = ("a", "b", "c")
    parameters = (*SPACE.parameters, Choice(name="kind", values=kinds))
    tried = run(replace(SPACE, parameters=parameters, search=Search(seed=seed)), 6)
    assert {record.generator for record in tried} == {"fidelity"}
    assert {record.parameters["kind"] for record in tried} == set(kinds)


@pytest.fixture(scope="module")
def records() -> list[Trial]:
    return run(SPACE, LOW + 9)


@pytest.fixture(scope="module")
def records_of_two() -> list[Trial]:
    return run(TWO, LOW_OF_TWO + 12)


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


def test_two_trials_at_the_target_are_spread_over_the_front_below(records_of_two):
    """The front is the line along x from 0.2 to 0.7, at y = 0.3."""
    assert (Ladder(TWO).planned, Ladder(TWO).promoted) == ((LOW_OF_TWO,), 2)
    assert [each.generator for each in records_of_two] == [
        *["fidelity"] * LOW_OF_TWO,
        *["botorch"] * 2,
        *["sobol"] * 9,
        "botorch",
    ]
    points = [each.parameters for each in records_of_two[LOW_OF_TWO : LOW_OF_TWO + 2]]
    assert {each["width"] for each in points} == {256}
    for each in points:
        assert abs(float(each["y"]) - 0.3) < 0.1
        assert 0.1 < float(each["x"]) < 0.8
    assert abs(float(points[0]["x"]) - float(points[1]["x"])) > 0.05


def test_another_worker_gets_another_point_of_the_front(records_of_two):
    first = replace(records_of_two[LOW_OF_TWO], status="running", worker="w", metrics={})
    optimizer = FidelityOptimizer(TWO)
    optimizer.observe([*records_of_two[:LOW_OF_TWO], first])
    assert dict(optimizer.generate()[0].parameters) == dict(records_of_two[LOW_OF_TWO + 1].parameters)


def test_front_below_needs_all_objectives(records_of_two):
    low = [replace(r, metrics={"loss": r.metrics["loss"]}) for r in records_of_two[:LOW_OF_TWO]]
    assert run(TWO, LOW_OF_TWO + 1, low)[-1].generator == "sobol"


@pytest.mark.parametrize(("bound", "least"), [(9.96, 9.95), (11.0, 9.7)], ids=["some", "none within"])
def test_front_below_is_within_the_outcome_constraints(records_of_two, bound, least):
    """Where no point is, the bound is the target's alone."""
    bounded = replace(TWO, outcome_constraints=(f"gain >= {bound}",))
    *_, first = run(bounded, LOW_OF_TWO + 1, records_of_two[:LOW_OF_TWO])
    assert first.generator == "botorch"
    assert gain(first.parameters) > least


def test_best_below_is_where_trials_do_not_fail():
    """The loss is lowest at x = 0.7, and trials beyond x = 0.5 fail."""
    xs = [0.05, 0.15, 0.3, 0.42, 0.48, 0.55, 0.65, 0.8, 0.95]
    low = [
        record(at, {"x": x, "y": 0.3, "width": 64}, "fidelity")
        if x < 0.5
        else record(at, {"x": x, "y": 0.3, "width": 64}, "fidelity", status="failed", failure="diverged")
        for at, x in enumerate(xs)
    ]
    *_, first = run(SPACE, LOW + 1, low)
    assert (first.generator, first.parameters["width"]) == ("botorch", 256)
    assert 0.4 < float(first.parameters["x"]) < 0.53


@pytest.mark.parametrize(
    ("space", "low", "promoted"), [(SPACE, LOW, 1), (TWO, LOW_OF_TWO, 2)], ids=["one", "two"]
)
def test_the_rest_is_a_plain_search_of_the_target(request, space, low, promoted):
    """Cheap trials that mislead cost what they cost, and the trials that they propose at the target."""
    records = request.getfixturevalue("records" if space is SPACE else "records_of_two")
    own = [replace(each, trial=index) for index, each in enumerate(records[low:])]
    plain = Optimizer(at_target(space), more_first=promoted)
    for index in range(promoted, len(own)):
        plain.observe(own[:index])
        (candidate,) = plain.generate()
        assert dict(candidate.parameters) == dict(own[index].parameters)


@pytest.mark.parametrize(
    ("space", "counts"),
    [(SPACE, (3, LOW, LOW + 4, LOW + 8)), (TWO, (3, LOW_OF_TWO, LOW_OF_TWO + 1, LOW_OF_TWO + 11))],
    ids=["one", "two"],
)
def test_same_records_give_the_same_candidate(request, space, counts):
    records = request.getfixturevalue("records" if space is SPACE else "records_of_two")
    for count in counts:
        fresh = FidelityOptimizer(space)
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


@pytest.mark.parametrize(("space", "cap"), [(SPACE, 40), (TWO, 50)], ids=["one objective", "two"])
def test_where_lengths_share_a_trunk_the_first_long_runs_continue_short_ones(space, cap):
    lengths = replace(
        space,
        search=Search(seed=3, sobol=20),
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
        run_cap=cap,
    )
    ladder = Ladder(lengths)
    (count,) = ladder.planned
    records = run(lengths, count + ladder.promoted)
    short = [dict(each.parameters) for each in records[:count]]
    long = [{**each.parameters, "width": 64} for each in records[count:]]
    assert all(each in short for each in long)
    assert len({tuple(each.values()) for each in long}) == ladder.promoted


def test_run_cap_is_compared_with_the_trials_at_the_target():
    assert require_searchable(SPACE) == Optimizer(at_target(SPACE), more_first=1).first_trials
