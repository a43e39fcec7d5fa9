"""Landscapes: tables that are complete, repeats that follow from them, and an emulator of one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from benchmarks.landscapes.emulator import Emulator
from benchmarks.landscapes.tables import HERE, METRIC, RANDOM, SEED, load_space, merge, names, read, repeats


@pytest.mark.parametrize("name", names())
def test_tables_are_complete_and_small(name: str) -> None:
    rows = read(name)
    assert Counter(row["kind"] for row in rows) == {
        RANDOM: 120, "defaults": 10, "best": 10, "good": 10, "middling": 10
    }  # fmt: skip
    assert len({row[SEED] for row in rows}) == 160
    assert (HERE / f"{name}.csv").stat().st_size < 200_000


@pytest.mark.parametrize("name", names())
def test_repeats_follow_from_the_random_trials(name: str) -> None:
    rows = read(name)
    expected = repeats(name, [row for row in rows if row["kind"] == RANDOM], 10)
    found = {(row["kind"], row[SEED]): row for row in rows}
    for row in expected:
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


def test_emulator_predicts_other_seeds_of_a_configuration() -> None:
    rows = read("adamw")
    emulator = Emulator("adamw", [row for row in rows if row["kind"] == RANDOM])
    for kind in ("defaults", "best", "good", "middling"):
        again = [row for row in rows if row["kind"] == kind]
        assert emulator(again[:1])[0] == pytest.approx(np.mean([row[METRIC] for row in again]), abs=0.05)
