"""Cells of column `stages`, as exports hold them and as people spoil them."""

from __future__ import annotations

import json
import math

import pytest

from analysis.statistics.stages import Stage, branched, computed, parse, reused, total

CELL = [
    {"name": "stage1_9", "key": "ab", "cost": 200, "reused_from": 3, "snapshot": False, "seconds": 9.5},
    {"name": "stage2", "key": "", "cost": 60.0, "reused_from": None, "usd": 0.5},
]


def test_a_list_and_its_json_are_the_same_stages() -> None:
    stages = parse(CELL)
    assert stages == parse(json.dumps(CELL)) == parse(tuple(CELL))
    assert stages[0] == Stage(name="stage1_9", key="ab", cost=200.0, reused_from=3, seconds=9.5)
    assert (reused(stages), computed(stages)) == (stages[:1], stages[1:])


def test_own_earlier_attempt_counts_as_computed() -> None:
    assert reused(parse(CELL, trial=3)) == ()
    assert len(reused(parse(CELL, trial=4))) == 1


def test_a_branch_has_paid_for_the_rest_of_its_stage() -> None:
    cell = [CELL[1] | {"branched_from": 3, "branched_at": 45, "saved": 45.0, "seconds": 8.0}]
    (stage,) = stages = parse(cell, trial=4)
    assert (stage.paid, stage.branched_from, stage.branched_at) == (15.0, 3, 45)
    assert (stage.not_paid(stage.seconds), stage.not_paid(None)) == (6.0, None)
    assert branched(stages) == computed(stages) == stages
    (own,) = parse(cell, trial=3)
    assert (own.paid, own.branched_at, branched([own])) == (60.0, None, ())


def test_a_stage_without_a_cost_has_nothing_to_share_of_it() -> None:
    (stage,) = parse([{"name": "a", "cost": 0, "usd": 1.0, "branched_from": 3, "saved": 0}])
    assert (stage.paid, stage.not_paid(stage.usd)) == (0.0, 0.0)


def test_reused_stage_is_not_a_branch() -> None:
    (stage,) = parse([CELL[0] | {"branched_from": 3, "branched_at": 1, "saved": 50.0}])
    assert (stage.paid, branched([stage])) == (0.0, ())


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(None, id="none"),
        pytest.param(math.nan, id="an empty cell"),
        pytest.param("", id="empty text"),
        pytest.param("stage1_9", id="words"),
        pytest.param('[{"name": "a", "cost": 1', id="half"),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param({"name": "a", "cost": 1}, id="one object"),
        pytest.param([3], id="a number"),
        pytest.param([{"key": "ab", "cost": 1}], id="no name"),
        pytest.param([{"name": "a", "key": 7, "cost": 1}], id="a key that is no text"),
        pytest.param([{"name": "a"}], id="no cost"),
        pytest.param([{"name": "a", "cost": -1}], id="a negative cost"),
        pytest.param([{"name": "a", "cost": math.nan}], id="nan"),
        pytest.param([{"name": "a", "cost": 10**400}], id="beyond floats"),
        pytest.param([{"name": "a", "cost": True}], id="a boolean cost"),
        pytest.param([{"name": "a", "cost": 1, "reused_from": "3"}], id="a trial that is text"),
        pytest.param([{"name": "a", "cost": 1, "branched_from": True}], id="a branch of no trial"),
        pytest.param([{"name": "a", "cost": 1, "branched_at": "3"}], id="a step that is text"),
        pytest.param([{"name": "a", "cost": 1, "branched_from": 3, "saved": 2}], id="more saved than cost"),
        pytest.param(
            [{"name": "a", "cost": 1, "branched_from": 3, "saved": None}], id="nothing known of saved"
        ),
        pytest.param([*CELL, None], id="half a list"),
    ],
)
def test_a_spoilt_cell_is_that_of_a_trial_without_stages(cell: object) -> None:
    assert parse(cell) == ()


def test_unknown_amounts_are_left_out_of_sums() -> None:
    assert total([1.5, None, 2.0]) == 3.5
    assert parse([{"name": "a", "cost": 1, "seconds": "long", "usd": math.inf}]) == (
        Stage(name="a", key="", cost=1.0),
    )
