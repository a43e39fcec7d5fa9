"""Table of trials in the dashboard: what a trial has paid, and conditions on numbers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from views import view_of

from sweeps.dashboard.trial_table import Query, trial_table
from sweeps.export import table
from sweeps.space.space_file import loads
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

SPACE = loads(
    """
name: case
objectives: [{metric: loss}]
program: {function: "m:f"}
parameters:
  lr: {min: 0.0, max: 1.0}
""",
    "space.yaml",
)


def trial(index: int, *stages: float, **changes: Any) -> Trial:
    runs = tuple(StageRun(name=f"s{at}", key="", cost=cost) for at, cost in enumerate(stages))
    fields = {
        "status": "completed",
        "parameters": {"lr": 0.5},
        "generator": "sobol",
        "stages": runs,
    } | changes
    return Trial(trial=index, **fields)


def test_paid_counts_the_stage_in_which_a_trial_was_stopped() -> None:
    """Shown, sorted and searched as `cost_paid` of an export: 0.9 of an average of 500, not 100."""
    records = (
        trial(0, 100.0, 300.0),
        trial(1, 100.0, status="early_stopped", progress={"done": 0.9}),
        trial(2, 100.0, 500.0),
    )
    view = view_of(SPACE, records)
    shown = trial_table(view, Query(sort="paid", order="desc"))
    place = [column.name for column in shown.columns].index("paid")
    assert [(record.trial, texts[place]) for record, texts in shown.rows] == [
        (2, "600"),
        (1, "450"),
        (0, "400"),
    ]
    assert [row["cost_paid"] for row in table.flat_rows(SPACE, records)] == [400.0, 450.0, 600.0]
    assert [record.trial for record, _ in trial_table(view, Query(q="paid>420")).rows] == [1, 2]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("param.seed=123456", [1]),
        ("param.seed=20261129", [3]),
        ("param.seed=9007199254740993", [5]),  # 2^53 + 1, which is no float
        ("param.seed=2.026e7", [3, 4]),  # as the table shows it
        ("loss=3", [0, 1]),
        ("loss=3.0001", [0, 1]),
        ("loss=20261129", [2]),
    ],
)
def test_equality_is_exact_for_whole_numbers(asked: str, found: list[int]) -> None:
    seeds = (123455, 123456, 123467, 20261129, 20261130, 2**53 + 1, 2**53)
    losses = (3.0, 3.0001, 20261129.0, 20261130.0)
    records = tuple(
        trial(index, parameters={"lr": 0.5, "seed": seed}, metrics={"loss": loss})
        for index, (seed, loss) in enumerate(itertools.zip_longest(seeds, losses))
    )
    view = view_of(SPACE, records)
    assert [record.trial for record, _ in trial_table(view, Query(q=asked)).rows] == found
