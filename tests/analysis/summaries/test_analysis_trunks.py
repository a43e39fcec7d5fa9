"""Trunks of stages by the records of a sweep: who branched off where, what was paid, and which length is best."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.report.trunk_layout import ENDS, TRUNKS, layouts
from analysis.summaries.compute import with_price
from analysis.summaries.costs import Rate, cost
from analysis.summaries.reuse import Reuse, reuse
from analysis.table import TrialsTable


def found(document: dict[str, Any], goal: Any = "minimize") -> Reuse:
    shared = reuse(TrialsTable.from_document(document), "final_loss", goal)
    assert shared is not None
    return shared


def test_trials_of_several_lengths_share_a_trunk(
    branched: dict[str, Any],
) -> None:
    best, other = found(branched).trunks
    assert (best.stage, best.trial, other.trial) == ("stage1_9", 0, 4)
    ends = [(b.trials, b.leaves, b.end, b.length, b.best, b.best_trial) for b in best.branches]
    assert ends == [
        ((2,), 320, 400, 200, 3.2, 2),  # the one that leaves last comes first
        ((5,), 208, 260, 130, None, 5),  # its own point, where its decay begins
        ((0,), 160, 200, 100, 3.5, 0),
        ((1, 3), 80, 100, 50, 3.7, 3),
    ]
    assert best.reach == 360  # trial 7 still computes, and has stored so much
    assert [point.step for point in best.points] == [20, 40, 60, 80, 100, 104, 120, 140, 160, 180]
    assert {point.stored for point in best.points} == {True}
    assert {point.stored for point in other.points} == {False}
    assert (best.parameters, other.parameters) == ((("stage1_9.lr", "0.1"),), (("stage1_9.lr", "0.4"),))


def test_paid_is_less_than_nominal(branched: dict[str, Any]) -> None:
    totals = found(branched)
    best, other = totals.trunks
    assert (best.nominal, best.paid) == (1060, 200 + 20 + 240 + 60)
    assert (other.nominal, other.paid) == (300, 220)
    # And seven times Stage 2: nobody knows how much of it trial 5 did before it was stopped.
    assert (totals.nominal, totals.paid) == (1360 + 420, 740 + 420)
    assert (totals.stages, totals.branches) == (1, 4)
    assert (
        totals.summary() == "1,160 of 1,780 effective steps paid; 35 % saved by 1 reused stage and 4 branches"
    )
    assert totals.paid_until.tolist() == [260, 340, 640, 700, 960, 1080, 1160, 1160]


def test_branches_alone_are_enough_to_have_shared(branched: dict[str, Any]) -> None:
    branched["trials"] = branched["trials"][:2]
    totals = found(branched)
    assert totals.summary() == "340 of 420 effective steps paid; 19 % saved by 1 branch"
    assert totals.prefixes == ()
    assert totals.to_json()["branches"] == 1


def test_own_earlier_attempt_is_not_a_branch(branched: dict[str, Any]) -> None:
    for trial in branched["trials"]:
        for entry in (*trial.get("stages", ()), *trial.get("trunk_points", ())):
            if entry.get("branched_from") is not None:
                entry["branched_from"] = trial["trial"]
    branched["trials"][5]["cost_paid"] = 320  # as the export has it then
    totals = found(branched)
    assert (totals.trunks, totals.branches, totals.paid) == ((), 0, 1780 - 100)


def test_trunks_that_nobody_branched_off_are_not_shown(branched: dict[str, Any]) -> None:
    del branched["trials"][6]
    assert [trunk.trial for trunk in found(branched).trunks] == [0]


def test_two_trials_that_computed_the_same_are_on_one_trunk(branched: dict[str, Any]) -> None:
    """Trial 8 could not wait for the end of 1, and 9 (or 3) published a point that is gone by 4."""
    late = json.loads(json.dumps(branched["trials"][1])) | {"trial": 8}
    late["stages"][0] |= {"branched_from": None, "branched_at": None, "saved": 0}
    again = json.loads(json.dumps(branched["trials"][4])) | {"trial": 9, "stages": []}
    again["trunk_points"] = [again["trunk_points"][1] | {"snapshot": True}]
    for trials in ([*branched["trials"], late, again], [again | {"trial": 3}, *branched["trials"][4:]]):
        (trunk,) = [t for t in found(branched | {"trials": trials}).trunks if t.branches[-1].trials == (6,)]
        assert [point.stored for point in trunk.points] == [False, True, False, False]
    totals = found(branched | {"trials": [*branched["trials"], late]})
    assert totals.trunks[0].branches[-1].trials == (1, 3, 8)
    assert totals.trunks[0].paid == 520 + 100


def test_trunk_without_its_first_trial(branched: dict[str, Any]) -> None:
    del branched["trials"][0]
    first, second, _ = found(branched).trunks  # nothing joins trial 1 to 2 any more
    assert (first.trial, [branch.trials for branch in first.branches]) == (2, [(2,), (5,)])
    assert (second.trial, second.reach) == (1, 80)


def test_a_branch_shows_how_far_the_trial_that_it_left_had_come(branched: dict[str, Any]) -> None:
    branched["trials"][0]["trunk_points"] = []
    (best, _) = found(branched).trunks
    assert [(b.trials, b.leaves) for b in best.branches][2:] == [((0,), 160), ((1, 3), 80)]


def test_larger_values_are_better_if_the_goal_says_so(branched: dict[str, Any]) -> None:
    totals = found(branched, "maximize")
    assert [trunk.trial for trunk in totals.trunks] == [4, 0]
    assert totals.trunks[1].branches[-1].best_trial == 1
    assert totals.lengths[0].best == (50, 4.2)


def test_the_best_value_of_each_length_is_joined_on_each_trunk(branched: dict[str, Any]) -> None:
    (curve,) = found(branched).lengths
    assert (curve.stage, curve.in_steps) == ("stage1_9", True)
    assert curve.trunks == (((50, 3.7), (100, 3.5), (200, 3.2)), ((50, 4.2), (100, 4.0)))
    assert sorted(curve.points) == [(50, 3.7), (50, 3.8), (50, 4.2), (100, 3.5), (100, 4.0), (200, 3.2)]
    assert (curve.best, curve.trial) == ((200, 3.2), 2)


def test_without_a_parameter_of_steps_lengths_are_costs(branched: dict[str, Any]) -> None:
    for trial in branched["trials"]:
        del trial["parameters"]["stage1_9.max_steps"]
    (curve,) = found(branched).lengths
    assert not curve.in_steps
    assert curve.trunks[1] == ((100, 4.2), (200, 4.0))


def test_one_length_is_no_question(branched: dict[str, Any]) -> None:
    branched["trials"] = [branched["trials"][index] for index in (0, 5)]
    branched["trials"][1]["stages"][0]["branched_from"] = 0
    assert found(branched).lengths == ()


@pytest.mark.parametrize(
    "cell",
    [None, 3, "", "[", "points", [None, 3, {}], [{"name": "stage1_9", "key": "a", "step": True, "cost": 1}],
     [{"name": "stage1_9", "key": "a", "step": -1, "cost": 1}], [{"name": "stage1_9", "key": "a", "step": 1}]],
    ids=repr,
)  # fmt: skip
def test_points_that_are_none_are_not_drawn(branched: dict[str, Any], cell: object) -> None:
    for trial in branched["trials"]:
        trial["trunk_points"] = cell
    best = found(branched).trunks[0]
    assert (best.points, best.reach) == ((), 200)  # by where trials branched off


def test_csv_and_json_say_the_same(branched: dict[str, Any], tmp_path: Path) -> None:
    table = TrialsTable.from_document(branched).frame
    for column in ("stages", "trunk_points"):
        table[column] = table[column].map(json.dumps, na_action="ignore")
    table.to_csv(tmp_path / "t.csv", index=False)
    again = reuse(TrialsTable.open(tmp_path / "t.csv"), "final_loss")
    assert again is not None
    assert (again.trunks, again.lengths) == (found(branched).trunks, found(branched).lengths)


def test_dollars_and_time_leave_out_what_others_paid(branched: dict[str, Any]) -> None:
    """Each completed trial reports 4 dollars, with all of its Stage 1.9 at 1 cent a step; 5 reports none."""
    assert cost(branched["trials"], run_cap=None).so_far == pytest.approx(6 * 4 - 0.4 - 0.8 - 0.5 - 0.4 + 0.3)
    trials = [trial | {"seconds": 10.0} for trial in branched["trials"]]
    price = Rate(name="x", usd_per_hour=3600.0, kind="spot", dated="2026-11")
    comparable = with_price(TrialsTable.from_document(branched | {"trials": trials}), price).numbers("usd")
    assert comparable.tolist() == pytest.approx([10, 50, 90, 60, 10, 110, 50, 10])


class TestLayout:
    def test_the_longest_goes_on_in_the_row_of_its_trunk(self, branched: dict[str, Any]) -> None:
        (drawing,) = layouts(found(branched).trunks, "minimize")
        first, second = drawing.lines
        assert (first.y, [end.y for end in first.ends]) == (
            0,
            [1.6, 2.6, 3.6, 4.6],
        )  # 7 still computes the trunk
        assert (second.y, [end.y for end in second.ends]) == (6.6, [6.6, 7.6])
        assert (drawing.rows, drawing.reach, drawing.left_out) == (8.6, 400, "")
        assert [end.text for end in first.ends] == [
            *("3.2 · trial 2", "no result · trial 5", "3.5 · trial 0", "3.7 · trial 3, best of 2"),
        ]
        assert [end.branch.best_trial for end in drawing.ends if end.is_best] == [2]
        assert first.name == ("trial 0", "lr 0.1")

    def test_colours_go_from_the_best_to_the_worst(self, branched: dict[str, Any]) -> None:
        (drawing,) = layouts(found(branched).trunks, "minimize")
        colours = {end.branch.best: end.colour for end in drawing.ends}
        assert (colours[3.2], colours[4.2], colours[None]) == ("#2f80d0", "#d9730d", "#868e96")
        assert len(set(colours.values())) == len(colours)

    def test_parts_of_the_first_trunk_are_labelled(self, branched: dict[str, Any]) -> None:
        (drawing,) = layouts(found(branched).trunks, "minimize")
        assert [place[1:] for place in drawing.landmarks()] == [(16, 0, 2.3), (160, 0, 1.5), (324, 1.6, 0.7)]
        for trial in branched["trials"]:
            trial.pop("trunk_points", None)
        (drawing,) = layouts(found(branched).trunks, "minimize")
        assert [text.partition(":")[0] for text, *_ in drawing.landmarks()] == ["trunk", "decay"]

    def test_of_many_the_best_and_some_of_every_length_are_drawn(self, branched: dict[str, Any]) -> None:
        template, copies = branched["trials"], []
        for nth in range(40):  # 40 trunks of 30 ends
            for index in range(30):
                trial = json.loads(json.dumps(template[0])) | {"trial": 30 * nth + index}
                trial["stages"][0] |= {"key": f"{nth} {index}", "cost": 100.0 + 10 * index}
                if index:
                    trial["stages"][0] |= {"branched_from": 30 * nth, "branched_at": 40, "saved": 80.0}
                trial["trunk_points"] = []
                trial["metrics"]["final_loss"] = 9.0 - index / 10 - nth / 100
                copies.append(trial)
        totals = found(branched | {"trials": copies})
        assert len(totals.trunks) == 40
        (drawing,) = layouts(totals.trunks, "minimize")
        assert [line.trunk.trial for line in drawing.lines] == [
            30 * nth for nth in range(39, 39 - TRUNKS, -1)
        ]
        ends = [end.branch.end for end in drawing.lines[0].ends]
        assert len(ends) == ENDS
        assert ends[0] == 390
        assert min(ends) < 180
        assert drawing.left_out == (
            f"the best {TRUNKS} of 40 trunks, and of a trunk with more than {ENDS} ends the longest and the best "
            "of each range of lengths"
        )


lengths = st.lists(st.integers(5, 400), min_size=2, max_size=30)


@given(lengths, st.integers(0, 2**32))
def test_no_two_lines_cross_and_no_cost_is_lost(steps: list[int], seed: int) -> None:
    """Trials of one trunk in any order, each from the latest point that it can use, as workers do it."""
    draw, stored, rows = random.Random(seed), dict[int, int](), []
    for index, length in enumerate(steps):
        until = length - round(0.2 * length)
        at = max((step for step in stored if step <= until), default=None)
        entry = {"name": "s", "key": f"{index}", "cost": float(length)}
        if at is not None:
            entry |= {"branched_from": stored[at], "branched_at": at, "saved": float(at)}
        published = [step for step in range(1, until + 1) if step > (at or 0) and step not in stored]
        published = [step for step in published if step == until or (step % 16 == 0 and draw.random() < 0.7)]
        stored |= dict.fromkeys(published, index)
        rows.append(
            {
                "trial": index, "status": "completed", "attempt": 1, "generator": "sobol", "parameters": {},
                "metrics": {"final_loss": draw.random()}, "worker": None, "seconds": 1.0, "error": None,
                "stages": [entry],
                "trunk_points": [
                    {"name": "s", "key": f"p{step}", "step": step, "cost": float(step), "snapshot": True}
                    for step in published
                ],
            }
        )  # fmt: skip
    totals = reuse(TrialsTable.from_document({"schema": 1, "trials": rows}), "final_loss")
    if totals is None:
        return
    saved = sum(entry.get("saved", 0.0) for row in rows for entry in row["stages"])
    assert totals.nominal - totals.paid == pytest.approx(saved)
    for drawing in layouts(totals.trunks, "minimize"):
        xs = [x for _, x, _, _ in drawing.landmarks()]
        assert xs == sorted(xs)
        for line in drawing.lines:
            assert [end.y for end in line.ends] == sorted({end.y for end in line.ends})
            for upper in line.ends:
                assert 0 <= upper.branch.leaves <= min(upper.branch.end, line.trunk.reach)
                for lower in line.ends:
                    if lower.y > upper.y:  # its line down must not pass through the upper one's row
                        assert not upper.branch.leaves < lower.branch.leaves <= upper.branch.end
