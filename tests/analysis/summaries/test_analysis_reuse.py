"""What trials shared: totals, the tree of prefixes, and best value against paid compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.summaries.compute import with_price
from analysis.summaries.costs import Rate, cost
from analysis.summaries.reuse import Reuse, reuse
from analysis.table import TrialsTable


def found(document: dict[str, Any], goal: str = "minimize", metric: str = "final_loss") -> Reuse:
    shared = reuse(TrialsTable.from_document(document), metric, goal)  # type: ignore[arg-type]
    assert shared is not None
    return shared


def test_nothing_reused_is_nothing_to_show(sweep: dict[str, Any]) -> None:
    assert reuse(TrialsTable.from_document(sweep), "final_loss") is None
    sweep["trials"][1]["stages"] = [{"name": "stage1_9", "key": "a", "cost": 50.0}]
    assert reuse(TrialsTable.from_document(sweep), "final_loss") is None


def test_a_table_of_another_origin_has_no_stages(length_sweep_file: Path) -> None:
    assert reuse(TrialsTable.open(length_sweep_file), "final_loss") is None


def test_totals_are_those_of_all_own_trials(shared: dict[str, Any]) -> None:
    """Worked out by hand, see the fixture: 1110 steps in all, of which 710 were computed."""
    totals = found(shared)
    assert (totals.nominal, totals.paid, totals.stages, totals.unknown) == (1110, 710, 4, 0)
    assert totals.summary() == "710 of 1,110 effective steps paid; 36 % saved by 4 reused stages"
    assert totals.to_json() == {
        "nominal": 1110, "paid": 710, "saved": pytest.approx(4 / 11.1), "reused_stages": 4,
        "branches": 0, "unit": "effective steps",
    }  # fmt: skip


def test_imported_trial_below_the_target_was_paid_for_elsewhere(shared: dict[str, Any]) -> None:
    """The table marks it as one of `fidelity`; nobody has attempted it."""
    shared["trials"][7] |= {"generator": "fidelity", "attempt": 0}
    totals = found(shared)
    assert (totals.nominal, totals.paid) == (1110, 710)
    assert 7 not in totals.trials


def test_the_best_so_far_stands_against_what_the_search_had_paid(shared: dict[str, Any]) -> None:
    totals = found(shared)
    assert totals.trials == (0, 1, 2, 3, 4, 5, 6)  # neither the imported trial nor the repeat
    assert totals.paid_until.tolist() == [110, 270, 330, 390, 490, 490, 550]
    assert totals.nominal_until.tolist() == [110, 270, 430, 590, 690, 790, 950]
    assert totals.best.tolist() == pytest.approx([4.0, 3.6, 3.6, 3.5, 3.5, 3.5, 3.4])
    assert found(shared, "maximize").best.tolist() == pytest.approx([4.0] * 7)


def test_a_failed_trial_comes_with_its_cost_and_no_value(shared: dict[str, Any]) -> None:
    shared["trials"][6]["status"] = "failed"
    totals = found(shared)
    assert totals.paid == 710
    assert totals.best[-1] == pytest.approx(3.5)


def test_each_prefix_says_what_it_cost_and_what_it_saved(shared: dict[str, Any]) -> None:
    many, alone = found(shared).prefixes
    assert (many.stage, many.computed_by, many.trials) == ("stage1_9", (1,), (1, 2, 3, 5, 6))
    assert (many.cost, many.paid, many.rest, many.saved) == (100, 100, 240, 400)
    assert many.best == pytest.approx(3.4)
    assert many.parameters == (("stage1_9.max_steps", "50"),)
    assert (alone.computed_by, alone.trials, alone.saved, alone.count) == ((4,), (4,), 0, 1)


def test_prefixes_of_one_trial_each_are_one_row(shared: dict[str, Any]) -> None:
    shared["trials"][2]["stages"][0] |= {"key": "c", "reused_from": None}
    *_, others = found(shared).prefixes
    assert (others.count, others.trials, others.cost, others.paid) == (2, (2, 4), 100, 200)
    assert others.rest == 60
    assert others.best == pytest.approx(3.9)


def test_two_trials_that_could_not_wait_have_both_paid(shared: dict[str, Any]) -> None:
    shared["trials"][2]["stages"][0]["reused_from"] = None
    many, _ = found(shared).prefixes
    assert (many.computed_by, many.paid, many.saved) == ((1, 2), 200, 300)


def test_a_prefix_beyond_another_stands_below_it(document: Any, trial: Any) -> None:
    def path(index: int, *stages: tuple[str, str, int | None]) -> dict[str, Any]:
        entries = [{"name": n, "key": k, "cost": 10.0, "reused_from": r} for n, k, r in stages]
        return trial(index, 4.0 - index / 10) | {"stages": entries}

    a, b, c = ("a", "A", None), ("b", "AB", None), ("c", "", None)
    table = document(
        path(0, a, b, c),
        path(1, ("a", "A", 0), ("b", "AB", 0), c),
        path(2, ("a", "A", 0), ("b", "AD", None), c),  # alone beyond A
        path(3, ("a", "X", None), ("b", "XB", None), c),
        path(4, ("a", "X", 3), ("b", "XB", 3), c),
    )
    rows = [(p.depth, p.stage, p.trials, p.paid, p.rest, p.saved) for p in found(table).prefixes]
    assert rows == [
        (0, "a", (0, 1, 2), 10, 20, 20),  # trial 2's b and c are its own affair
        (1, "b", (0, 1), 10, 20, 10),
        (0, "a", (3, 4), 10, 0, 10),
        (1, "b", (3, 4), 10, 20, 10),
    ]


def test_repeat_is_a_prefix_only_if_it_reused(shared: dict[str, Any]) -> None:
    repeat = shared["trials"][8]
    assert repeat["generator"] == "confirm"
    assert all(8 not in prefix.trials for prefix in found(shared).prefixes)
    repeat["stages"][0] |= {"key": "a", "reused_from": 1}
    assert 8 in found(shared).prefixes[0].trials


def test_steps_of_older_trials_are_converted_or_left_out(shared: dict[str, Any]) -> None:
    for row in shared["trials"]:
        for stage in row.get("stages", ()):
            stage["cost"] *= 1e9  # FLOPs
    totals = found(shared)
    assert (totals.nominal, totals.unit) == (pytest.approx(1110e9), "")
    for row in shared["trials"]:
        if row.get("stages"):
            row["metrics"].pop("effective_steps", None)
    totals = found(shared)
    assert (totals.nominal, totals.unknown) == (pytest.approx(1000e9), 1)


def test_csv_and_json_say_the_same(shared: dict[str, Any], tmp_path: Path) -> None:
    table = TrialsTable.from_document(shared).frame
    table["stages"] = table["stages"].map(json.dumps, na_action="ignore")
    table.to_csv(tmp_path / "t.csv", index=False)
    again = reuse(TrialsTable.open(tmp_path / "t.csv"), "final_loss")
    assert again is not None
    assert again.prefixes == found(shared).prefixes
    assert again.to_json() == found(shared).to_json()


@pytest.mark.parametrize("value", [None, "low", float("nan")], ids=["missing", "word", "nan"])
def test_without_a_value_the_tree_is_still_there(shared: dict[str, Any], value: object) -> None:
    for row in shared["trials"]:
        row["metrics"]["final_loss"] = value
    totals = found(shared)
    assert totals.prefixes[0].best is None
    assert totals.paid == 710


stage_names = ("a", "b", "c")
paths = st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), min_size=1, max_size=12)


@given(paths, st.data())
def test_nothing_is_lost_in_the_tree(choices: list[list[int]], data: st.DataObject) -> None:
    """Every cost is in one place of one row: paid in all rows is paid, saved in all rows is saved."""
    trials, computed = [], {}
    for index, choice in enumerate(choices):
        stages = []
        for depth, name in enumerate(stage_names):
            key = "" if name == "c" else repr(choice[: depth + 1])
            source = computed.get(key) if key and data.draw(st.booleans()) else None
            stages.append({"name": name, "key": key, "cost": float(depth + 1), "reused_from": source})
            if source is None and data.draw(st.booleans()):
                stages[-1] |= {"branched_from": 1000, "branched_at": 1, "saved": 0.25}
            computed.setdefault(key, index)
        trials.append(_completed(index) | {"stages": stages})
    shared = reuse(TrialsTable.from_document({"schema": 1, "trials": trials}), "final_loss")
    if shared is None:
        return
    if not shared.prefixes:  # nothing but branches
        return
    assert sum(row.saved for row in shared.prefixes) == pytest.approx(shared.nominal - shared.paid)
    assert sum(row.paid + row.rest for row in shared.prefixes) == pytest.approx(shared.paid)
    assert 0 <= shared.saved <= 1
    assert shared.paid_until[-1] == pytest.approx(shared.paid)


def _completed(index: int) -> dict[str, Any]:
    return {
        "trial": index, "status": "completed", "attempt": 1, "generator": "sobol", "parameters": {},
        "metrics": {"final_loss": 3.0}, "worker": None, "seconds": 1.0, "error": None,
    }  # fmt: skip


class TestDollars:
    """Trial 1 computed a Stage 1.9 of 2 dollars and 60 s; trial 2 reused it."""

    @pytest.fixture
    def trials(self) -> list[dict[str, Any]]:
        first = {"name": "stage1_9", "key": "a", "cost": 1.0, "seconds": 60.0, "usd": 2.0}
        last = {"name": "stage2", "key": "", "cost": 1.0, "seconds": 30.0, "usd": 1.0}
        taken = first | {"reused_from": 1}
        done = [_completed(1) | {"stages": [first, last], "seconds": 90.0}, _completed(2)]
        done[1] |= {"stages": [taken, last], "seconds": 30.0}
        for row in done:
            row["metrics"]["usd"] = 3.0
        return done

    def test_reused_stage_is_paid_once(self, trials: Any) -> None:
        estimate = cost(trials, run_cap=4)
        assert (estimate.so_far, estimate.expected) == (4.0, 8.0)

    def test_unreported_trials_pay_for_their_stages(self, trials: Any) -> None:
        early = _completed(3) | {"status": "early_stopped", "metrics": {}, "stages": trials[0]["stages"][:1]}
        failed = _completed(4) | {"status": "failed", "metrics": {}, "stages": trials[1]["stages"][:1]}
        estimate = cost([*trials, early, failed], run_cap=None)
        assert (estimate.so_far, estimate.priced, estimate.unpriced) == (6.0, 3, 1)

    def test_priced_time_paid_and_nominal(self, trials: Any) -> None:
        price = Rate(name="x", usd_per_hour=60.0, kind="spot", dated="2026-11")
        assert cost(trials, run_cap=None, price=price).so_far == pytest.approx(2.0)
        table = with_price(TrialsTable.from_document({"schema": 1, "trials": trials}), price)
        assert table.numbers("usd").tolist() == pytest.approx([1.5, 1.5])
        longer = {"schema": 1, "trials": trials, "machine_seconds": {"2": 90.0}}  # it was preempted once
        table = with_price(TrialsTable.from_document(longer), price)
        assert table.numbers("usd").tolist() == pytest.approx([1.5, 2.5])
        several = {"machine_seconds": {"1": 180.0, "2": 60.0}, "hosts": {"1": 2, "2": 2}}
        table = with_price(TrialsTable.from_document({"schema": 1, "trials": trials} | several), price)
        assert table.numbers("usd").tolist() == pytest.approx([3.0, 3.0])


def test_what_breaks_the_constraints_is_never_the_best(shared: dict[str, Any]) -> None:
    totals = found(shared | {"infeasible": [6]})
    assert totals.best[-1] == pytest.approx(3.5)
    assert totals.paid_until[-1] == 550  # it was paid all the same
    assert 3.4 not in [prefix.best for prefix in totals.prefixes]
