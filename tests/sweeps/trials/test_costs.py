"""Nominal and paid costs of trials, and of a sweep."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.space.definition import Objective, Program, Space
from sweeps.trials import budget, costs
from sweeps.trials.costs import Compute, compute
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

SPACE = Space(
    name="toy",
    objectives=(Objective(metric="loss"),),
    parameters=(),
    program=Program(kind="function"),
)


def trial(index: int, *costs_: tuple[float, int | None], **changes: Any) -> Trial:
    """A completed trial whose stages have these costs, each with the trial that it was reused from."""
    stages = tuple(
        StageRun(name=f"s{at}", key="", cost=cost, reused_from=source)
        for at, (cost, source) in enumerate(costs_)
    )
    fields = {"parameters": {}, "generator": "sobol", "status": "completed", "stages": stages} | changes
    return Trial(trial=index, **fields)


def test_a_trial_of_before_stages_were_recorded_has_no_costs():
    assert (costs.nominal(trial(0)), costs.paid(trial(0))) == (None, None)


def test_a_reused_stage_is_nominal_and_not_paid():
    record = trial(5, (200.0, 3), (60.0, None))
    assert (costs.nominal(record), costs.paid(record)) == (260, 60)
    assert [stage.name for stage in costs.reused(record)] == ["s0"]


def test_a_snapshot_of_its_own_was_paid_for():
    record = trial(5, (200.0, 5), (60.0, None))
    assert (costs.paid(record), costs.reused(record)) == (260, ())


def test_the_part_until_a_branch_was_paid_by_the_other_trial():
    stage = StageRun(name="s0", key="", cost=200.0, branched_from=3, branched_at=40, saved=80.0)
    branch, own = trial(5, stages=(stage,)), trial(3, stages=(stage,))  # 3 went on from its own checkpoint
    assert (costs.paid(branch), costs.branched(branch)) == (120, (stage,))
    assert (costs.paid(own), costs.branched(own)) == (200, ())
    assert compute([own, branch]) == Compute(nominal=400, paid=320, reused=0, branched=1, branch_saved=80)


def test_a_sweep_that_reused_nothing_has_nothing_to_say():
    assert compute([]) is None
    assert (
        compute([trial(0, (200.0, None), (60.0, None)), trial(1, metrics={"effective_steps": 5.0})]) is None
    )


def test_all_own_trials_count_whatever_their_status():
    records = [
        trial(0, (200.0, None), (60.0, None), metrics={"effective_steps": 260.0}),
        trial(1, (200.0, 0), (40.0, None), metrics={"effective_steps": 240.0}),
        trial(2, (200.0, 0), status="failed"),
        trial(3, (200.0, 0), status="running", worker="w"),
        trial(4, (100.0, None), status="early_stopped", progress={"done": 0.5}),  # before its second stage
        trial(
            5,
            (200.0, None),
            (60.0, None),
            generator="confirm",
            attempt=1,
            metrics={"effective_steps": 260.0},
        ),
        trial(6, metrics={"effective_steps": 140.0}),  # of before stages were recorded
        trial(7, metrics={"effective_steps": 999.0}, generator="imported"),
        trial(8, status="pending"),
    ]
    assert compute(records) == Compute(nominal=1400, paid=800, reused=3, unit="effective steps")
    assert compute(records).saved == pytest.approx(0.6 / 1.4)


def test_a_trial_that_was_stopped_early_has_paid_for_a_part_of_its_stage():
    """The stage that it was stopped in is not among those that have ended; its progress says how far it was."""
    records = [
        trial(0, (200.0, None), (100.0, None)),
        trial(1, (200.0, 0), (60.0, None)),
        trial(2, (200.0, 0), status="early_stopped", progress={"done": 0.9}),  # of 200, and of 80 on average
    ]
    assert compute(records) == Compute(nominal=300 + 260 + 252, paid=300 + 60 + 52, reused=2)
    assert compute(records).paid == budget.spent(SPACE, with_steps(records), 0.0).effective_steps
    at_once = replace(records[2], progress={"done": 0.0})
    assert compute([*records[:2], at_once]) == Compute(nominal=300 + 260 + 200, paid=300 + 60, reused=2)
    point = StageRun(name="s1", key="", step=10, cost=20.0, reused_from=0)  # it branched off in the second
    assert compute([*records[:2], replace(records[2], points=(point,))]).paid == 300 + 60 + 32
    unknown = replace(records[2], progress={})  # counts in full, as for budgets
    assert compute([*records[:2], unknown]).paid == 300 + 60 + 80


def with_steps(records: list[Trial]) -> list[Trial]:
    return [
        replace(each, metrics={"effective_steps": costs.nominal(each)})
        if each.status == "completed"
        else each
        for each in records
    ]


def test_steps_of_unknown_unit_are_left_out():
    records = [
        trial(0, metrics={"effective_steps": 140.0}),
        trial(1, (200.0, 0), status="running", worker="w"),
    ]
    assert compute(records) == Compute(nominal=200, paid=0, reused=1)


def test_stages_that_cost_nothing_save_nothing():
    assert compute([trial(0, (0.0, None)), trial(1, (0.0, 0))]).saved == 0


@given(
    st.lists(st.lists(st.tuples(st.floats(0, 1e12), st.none() | st.integers(0, 5)), max_size=4), max_size=8)
)
def test_paid_lies_between_nothing_and_nominal(sweep: list[list[tuple[float, int | None]]]):
    found = compute([trial(index, *stages) for index, stages in enumerate(sweep)])
    if found is not None:
        assert 0 <= found.paid <= found.nominal
        assert 0 <= found.saved <= 1


def test_completed_trials_are_read_once_for_equal_stages() -> None:
    """A sweep of thousands, half of them stopped early, would else take a minute for each table."""
    completed = [trial(i, (100.0, None), (50.0, None)) for i in range(10)]
    read: list[int] = []

    def nominal(record: Trial) -> float:
        read.append(record.trial)
        return 0.0

    estimate = costs.estimator(completed, costs.Measure(nominal, lambda stage: stage.cost))
    stopped = [trial(i, (100.0, None), status="early_stopped", progress={"done": 0.8}) for i in range(10, 30)]
    assert {estimate(each) for each in stopped} == {(120.0, 120.0)}
    assert [index for index in read if index < 10] == list(range(10))
