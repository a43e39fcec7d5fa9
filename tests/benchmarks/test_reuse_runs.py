"""Sweeps of the tiny model with and without shared stages, as `benchmarks.reuse_runs` compares them."""

from __future__ import annotations

import pytest

from benchmarks.reuse_runs import SEARCHES, Row, best_at, paid_until, space, table
from sweeps.space import literals
from sweeps.space.space_json import problem


def row(sweep: str, paid: list[float], losses: list[float]) -> Row:
    nominal = 260.0 * len(paid)
    return {
        "sweep": sweep,
        "wall": 61.4,
        "trials": len(paid),
        "nominal": nominal,
        "paid": paid,
        "losses": losses,
    }


@pytest.mark.parametrize("reuse", SEARCHES)
def test_the_spaces_are_valid_and_differ_in_reuse_alone(reuse: str):
    found = literals.space_of(space(2, reuse, trials=24, batch=4), "here")
    assert problem(found) is None
    assert (found.search.reuse, found.search.seed, found.run_cap) == (reuse, 2, 24)


def test_table_compares_losses_at_the_cheaper_cost():
    plain, shared = (
        row("none-0", [260, 260, 260], [3.5, 3.4, 3.2]),
        row("auto-0", [260, 60, 200], [3.5, 3.45, 3.3]),
    )
    assert best_at(plain, 520) == 3.4
    assert best_at(plain, 100) == float("inf")
    assert paid_until(shared, 3.45) == 320
    assert table([plain, shared]).splitlines()[2:] == [
        "| none-0 | 3 | 61 s | 780 | 780 | 3.2000 | 3.4000 | 780 |",
        "| auto-0 | 3 | 61 s | 520 | 780 | 3.3000 | 3.3000 | inf |",
    ]
