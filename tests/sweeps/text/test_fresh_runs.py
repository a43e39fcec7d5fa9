"""A failure with a fresh seed refutes a configuration in its own plan, not in a later one."""

from __future__ import annotations

import pytest

from sweeps.text.fresh_runs import failed_configurations

FIRST_ROUNDS = [("a", 1, True), ("b", 1, True), ("a", 2, True), ("b", 2, True)]
LATER_PLAN = [("a", 6, True), ("b", 6, True), ("a", 7, True), ("b", 7, True)]


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (FIRST_ROUNDS, set()),
        ([("a", 1, False), *FIRST_ROUNDS[1:]], {"a"}),
        ([*FIRST_ROUNDS, ("a", 3, False), ("a", 4, True), ("a", 5, True)], {"a"}),
        # Who had left takes its place, with the same seeds.
        (
            [*FIRST_ROUNDS, ("a", 3, False), ("a", 4, True), ("a", 5, True)]
            + [("b", seed, True) for seed in (3, 4, 5)],
            {"a"},
        ),
        ([*FIRST_ROUNDS, ("a", 3, False), *LATER_PLAN], set()),
        ([*FIRST_ROUNDS, ("a", 3, False), *LATER_PLAN[:2], ("a", 7, None), ("b", 7, None)], {"a"}),
        ([*FIRST_ROUNDS, ("a", 3, False), *LATER_PLAN, ("a", 8, False)], {"a"}),
        ([*FIRST_ROUNDS, ("a", 3, False), ("b", 6, True), ("c", 6, True), ("b", 7, True)], {"a"}),
    ],
    ids=["none", "first", "last", "others", "anew", "one-anew", "failed-anew", "others-anew"],
)
def test_a_failure_counts_until_the_configuration_is_planned_anew(runs, expected):
    assert failed_configurations(runs) == expected
