"""The answer of a confirmation, for either goal: winner, interval, and how much selection flattered it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_rounds import SPACE, by_quality, plan, repeat, run

from sweeps.search.confirm.answer import answer
from sweeps.search.confirm.rounds import standing


def result_of(trial: int, seed: int) -> dict[str, dict[str, float]]:
    loss = by_quality(trial, seed)["loss"]
    return {"metrics": {"final_loss": loss, "test_loss": loss + 1.0}, "status": "completed"}


def test_winner_has_the_interval_of_the_test_text_and_the_luck_of_its_first_number():
    of = replace(plan(), finalists=tuple(replace(f, first=2.9) for f in plan().finalists))
    end = standing(SPACE, of, run(of, result_of))
    found = answer(SPACE, of, end)
    assert found.rows[0].finalist.trial == found.winner.finalist.trial == 1
    assert (found.metric, found.on_test, found.equal) == ("test_loss", True, False)
    assert found.low < found.mean < found.high
    assert found.mean == pytest.approx(4.01, abs=0.01)
    assert found.winner.test == pytest.approx(4.01, abs=0.01)
    assert found.winner.mean == pytest.approx(3.01, abs=0.01)
    assert found.luck == pytest.approx(found.winner.mean - 2.9)
    assert found.winner.seeds == len(of.seeds)
    assert {row.left for row in found.rows[1:]} == set(end.left.values())
    assert [row.chance for row in found.rows] == sorted((row.chance for row in found.rows), reverse=True)


def test_a_goal_to_maximize_is_the_mirror_image():
    def mirrored(trial, seed):
        return result_of(trial, seed) | {
            "metrics": {n: -v for n, v in result_of(trial, seed)["metrics"].items()}
        }

    of = plan()
    up = replace(of, goal="maximize", finalists=tuple(replace(f, first=-f.first) for f in of.finalists))
    low, high = (
        answer(SPACE, each, standing(SPACE, each, run(each, by)))
        for each, by in ((of, result_of), (up, mirrored))
    )
    assert (high.mean, high.low, high.high) == (-low.mean, -low.high, -low.low)
    assert (high.luck, high.winner.chance) == (low.luck, low.winner.chance)
    assert [(r.finalist.trial, r.mean, r.test) for r in high.rows] == [
        (r.finalist.trial, None if r.mean is None else -r.mean, None if r.test is None else -r.test)
        for r in low.rows
    ]


def test_a_finalist_that_failed_does_not_win():
    of = plan(finalists=2, seeds=2)
    records = [repeat(of, 20 + i, (0, seed), 2.0) for i, seed in enumerate(of.seeds)]
    records += [repeat(of, 22, (1, 100), 3.0), repeat(of, 23, (1, 101), 3.0)]
    assert answer(SPACE, of, standing(SPACE, of, records)).winner.finalist.trial == 0
    records[1] = repeat(of, 21, (0, 101), status="failed", failure="diverged", error="nan")
    found = answer(SPACE, of, standing(SPACE, of, records))
    assert (found.winner.finalist.trial, found.equal, found.luck) == (1, True, 0.0)
    assert (found.metric, found.on_test) == ("final_loss", False)
    records[2:] = [repeat(of, 22, (1, 100), status="failed", failure="crashed", error="x")]
    assert answer(SPACE, of, standing(SPACE, of, records)) is None


def test_a_finalist_outside_of_the_outcome_constraints_does_not_win():
    """It has the better loss, and the winner runs all its seeds beside it."""
    of, space = plan(finalists=2, seeds=4), replace(SPACE, outcome_constraints=("ms <= 10",))

    def outcome(trial: int, seed: int) -> dict:
        return {
            "status": "completed",
            "metrics": {"final_loss": 2.0 + trial + seed / 1000, "ms": 11.0 - trial},
        }

    without = standing(SPACE, of, run(of, outcome))
    assert (list(without.left), answer(SPACE, of, without).winner.finalist.trial) == ([1], 0)
    end = standing(space, of, run(of, outcome, space))
    found = answer(space, of, end)
    assert [(row.finalist.trial, row.left) for row in found.rows] == [
        (1, ""),
        (0, "its means are outside of the outcome constraints"),
    ]
    assert (found.winner.seeds, found.winner.chance, found.rows[1].mean) == (4, 1.0, None)
    assert answer(replace(space, outcome_constraints=("ms <= 9",)), of, end) is None
