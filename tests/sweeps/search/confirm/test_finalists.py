"""Finalists of a confirmation: the best by posterior mean, one trial of each configuration."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from sweeps.search.confirm.finalists import choose
from sweeps.space.definition import Choice, Fixed, Objective, Program, Range, Search, Space
from sweeps.trials.record import Trial

SPACE = Space(
    name="finalists",
    objectives=(Objective(metric="loss"), Objective(metric="steps")),
    parameters=(Range(name="x", min=0.0, max=1.0, kind="float"), Fixed(name="seed", value=0)),
    program=Program(kind="function", function="objectives_for_tests:noisy"),
    search=Search(sobol=4, seed=1),
)


def done(index: int, x: float, loss: float, generator="sobol", **rest) -> Trial:
    metrics = {"loss": loss, "steps": 100.0 * index}
    parameters = {"x": x, "seed": 0}
    record = Trial(
        trial=index, status="completed", parameters=parameters, generator=generator, metrics=metrics
    )
    return replace(record, **rest)


def chosen(space: Space, records: list[Trial], top: int = 3, **rest):
    options = {"metric": "loss", "seed_name": "seed", "within": {}, **rest}
    return choose(space, records, top=top, **options)


def trials(found) -> list[int]:
    return [finalist.trial for finalist in found.finalists]


def test_lucky_result_among_poor_neighbours_is_no_finalist():
    noise = random.Random(4)
    records = [done(i, i / 24, 3 + 4 * (i / 24 - 0.3) ** 2 + noise.gauss(0, 0.02)) for i in range(25)]
    lucky = done(22, 22 / 24, 2.97)
    records[22] = lucky
    assert min(records, key=lambda r: r.metrics["loss"]) == lucky
    found = chosen(SPACE, records, 4)
    assert found.note == ""
    assert 22 not in trials(found)
    assert all(4 <= trial <= 11 for trial in trials(found))
    assert [f.predicted for f in found.finalists] == sorted(f.predicted for f in found.finalists)
    assert all(f.first == records[f.trial].metrics["loss"] for f in found.finalists)


def test_too_few_results_are_ranked_as_they_were_observed():
    records = [done(0, 0.1, 3.0), done(1, 0.2, 2.9), done(2, 0.3, 3.1)]
    found = chosen(SPACE, records, 2)
    assert trials(found) == [1, 0]
    assert found.note.startswith("3 results ")
    assert [f.predicted for f in found.finalists] == [None, None]


def test_no_surrogate_without_searched_parameter():
    space = replace(SPACE, parameters=(Fixed(name="seed", value=0),))
    records = [done(i, 0, 3.0 - i, parameters={"seed": i}, generator="imported") for i in range(5)]
    found = chosen(space, records)
    assert (trials(found), found.note) == ([4], "no parameter was searched")


def test_seeds_of_an_ablation_are_repeats_and_their_mean_counts():
    """The configuration with the one lucky seed is not the better one; its luckiest trial stands for it."""
    space = replace(
        SPACE,
        parameters=(
            Choice(name="mode", values=("a", "b")),
            Choice(name="seed", values=(0, 1, 2)),
        ),
        search=Search(method="grid"),
    )
    runs = {"a": (2.90, 3.30, 3.31), "b": (3.00, 3.01, 3.02)}
    records = [
        done(3 * at + seed, 0, loss, parameters={"mode": mode, "seed": seed}, generator="grid")
        for at, (mode, losses) in enumerate(runs.items())
        for seed, loss in enumerate(losses)
    ]
    found = chosen(space, records)
    assert trials(found) == [3, 0]
    assert [f.first for f in found.finalists] == [3.00, 2.90]


def test_earlier_repeats_count_but_are_no_finalists():
    records = [done(0, 0.1, 2.90), done(1, 0.2, 3.00)]
    records += [done(2 + i, 0.1, 3.2, "confirm", parameters={"x": 0.1, "seed": 50 + i}) for i in range(1)]
    assert trials(chosen(SPACE, records)) == [1, 0]


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_the_goal_decides_the_order(goal):
    space = replace(SPACE, objectives=(Objective(metric="loss", goal=goal),))
    records = [done(i, i / 3, 3.0 + i) for i in range(3)]
    assert trials(chosen(space, records)) == ([0, 1, 2] if goal == "minimize" else [2, 1, 0])


def test_limits_and_outcome_constraints_leave_trials_out():
    records = [done(i, i / 3, 3.0 - i / 10) for i in range(3)]
    assert trials(chosen(SPACE, records, within={"steps": 100.0})) == [1, 0]
    assert trials(chosen(SPACE, records, within={"no_such": 1.0})) == []
    assert trials(chosen(replace(SPACE, outcome_constraints=("steps >= 100",)), records)) == [2, 1]
    assert trials(chosen(SPACE, records, metric="steps")) == [0, 1, 2]


def test_only_completed_trials_with_the_metric_count():
    records = [
        done(0, 0.1, 3.0),
        done(1, 0.2, 2.0, status="early_stopped"),
        done(2, 0.3, 2.0, status="failed", metrics={}, error="x", failure="diverged"),
        done(3, 0.4, 2.0, metrics={"steps": 1.0, "loss": None}),
        done(4, 0.5, 2.5),
    ]
    found = chosen(SPACE, records)
    assert trials(found) == [4, 0]
    assert found.note.startswith("3 results ")
