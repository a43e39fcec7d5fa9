"""Landscapes: tables that are complete, repeats that follow from them, and an emulator of one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from benchmarks.landscapes.emulator import Emulator
from benchmarks.landscapes.tables import (
    HERE,
    METRIC,
    RANDOM,
    SEED,
    Row,
    load_space,
    merge,
    names,
    read,
    repeats,
)
from benchmarks.landscapes.train import Plan

ALL = {RANDOM: 120, "defaults": 10, "best": 10, "good": 10, "middling": 10}
NUMBERS = {"smollm2": {RANDOM: 35, "defaults": 4, "best": 4, "good": 4, "middling": 3}}  # a lent GPU's time


@pytest.mark.parametrize("name", names())
def test_tables_are_complete_and_small(name: str) -> None:
    rows = read(name)
    assert Counter(row["kind"] for row in rows) == NUMBERS.get(name, ALL)
    assert len({row[SEED] for row in rows}) == len(rows)
    assert (HERE / f"{name}.csv").stat().st_size < 200_000


@pytest.mark.parametrize("name", names())
def test_repeats_follow_from_the_random_trials(name: str) -> None:
    rows = read(name)
    expected = repeats(name, [row for row in rows if row["kind"] == RANDOM], 10)
    found = {(row["kind"], row[SEED]): row for row in rows}
    for row in expected[: sum(row["kind"] != RANDOM for row in rows)]:  # fewer where time ran out
        same = found[row["kind"], row[SEED]]
        for key in load_space(name)["parameters"]:
            assert same[key] == (
                pytest.approx(row[key], rel=1e-5) if isinstance(row[key], float) else row[key]
            )


def test_later_rows_replace_earlier_ones_of_their_seed() -> None:
    old, new, other = (
        {"kind": RANDOM, SEED: seed, METRIC: loss} for seed, loss in ((1, 4.0), (1, 3.0), (2, 5.0))
    )
    assert merge([old, other], [new]) == [new, other]


@pytest.mark.slow
def test_emulator_predicts_other_seeds_of_a_configuration() -> None:
    rows = read("adamw")
    emulator = Emulator("adamw", [row for row in rows if row["kind"] == RANDOM])
    for kind in ("defaults", "best", "good", "middling"):
        again = [row for row in rows if row["kind"] == kind]
        assert emulator(again[:1])[0] == pytest.approx(np.mean([row[METRIC] for row in again]), abs=0.05)


def random_trials(number: int) -> list[Row]:
    """The first random trials of `adamw`, without what they gave."""
    keys = ("kind", SEED, *load_space("adamw")["parameters"])
    return [{key: row[key] for key in keys} for row in read("adamw")[:number]]


def end_next(plan: Plan, loss: float) -> None:
    name, row = plan.waiting.popleft()
    plan.take_in(name, {**row, METRIC: loss})


def test_repeats_come_after_the_last_random_trial() -> None:
    plan = Plan({"adamw": random_trials(3)}, {}, number_of_repeats=2)
    for loss in (3.6, 3.5):
        end_next(plan, loss)
    assert [row["kind"] for _, row in plan.waiting] == [RANDOM]
    end_next(plan, 3.7)
    assert [row["kind"] for _, row in plan.waiting] == 2 * ["defaults", "best", "good", "middling"]
    best = random_trials(2)[1]["stage2.optimizer.lr"]
    assert {row["stage2.optimizer.lr"] for _, row in plan.waiting if row["kind"] == "best"} == {best}


def test_dropped_trials_make_room_for_repeats() -> None:
    plan = Plan({"adamw": random_trials(4)}, {}, number_of_repeats=1)
    end_next(plan, 3.6)
    running = plan.waiting.popleft()
    plan.end_random()
    assert plan.dropped == 2
    assert not plan.waiting
    plan.take_in(running[0], {**running[1], METRIC: 3.5})
    assert Counter(row["kind"] for _, row in plan.waiting) == {
        "defaults": 1, "best": 1, "good": 1, "middling": 1
    }  # fmt: skip


def test_repeats_that_have_ended_are_not_begun_again() -> None:
    random = [{**row, METRIC: 3.5} for row in random_trials(1)]
    known = [*random, {"kind": "best", SEED: 2000, METRIC: 3.5}]
    plan = Plan({"adamw": random_trials(1)}, {"adamw": known}, number_of_repeats=1)
    assert [row["kind"] for _, row in plan.waiting] == ["defaults", "good", "middling"]
