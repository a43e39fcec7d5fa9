"""Improvement over the baseline per hundred effective steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.statistics.efficiency import effective_steps, efficiency, efficiency_sem, most_efficient
from analysis.statistics.pareto import front
from analysis.table import read

NAN = float("nan")


def test_the_notebooks_table_gives_the_notebooks_figures(length_sweep_file: Path) -> None:
    table = read(length_sweep_file)
    steps = effective_steps(table["stage1_9_steps"], table["stage2_steps"])
    found = efficiency(table["final_loss"], steps, 7.83)
    assert steps.tolist() == [300, 400, 600, 1200, 2200]
    assert found.round(2).tolist() == [0.10, 0.23, 0.24, 0.20, 0.14]
    assert found.round(2).tolist() == table["reported_efficiency"].tolist()
    best = most_efficient(table["final_loss"], steps, 7.83)
    assert best is not None
    assert table["stage1_9_steps"].iloc[best] == 200


def test_effective_steps_count_stage_1_9_twice() -> None:
    assert effective_steps(200, 200) == 600
    assert effective_steps(0, 60) == 60
    assert effective_steps(np.array([1.0, 2.0]), np.array([3.0, 4.0])).tolist() == [5.0, 8.0]


def test_efficiency_without_cost_or_loss_is_undefined() -> None:
    found = efficiency([1.0, 1.0, 1.0, NAN, float("inf")], [0.0, -5.0, NAN, 100.0, 100.0], 2.0)
    assert np.isnan(found).all()


def test_maximizing_turns_the_sign() -> None:
    assert efficiency([0.9], [100], 0.5, "maximize").tolist() == pytest.approx([0.4])
    assert efficiency([0.9], [100], 0.5, "minimize").tolist() == pytest.approx([-0.4])


def test_without_a_baseline_nobody_is_most_efficient() -> None:
    assert most_efficient([1.0, 0.5], [100, 200], None) is None


@pytest.mark.parametrize(
    ("loss", "steps"),
    [
        pytest.param([], [], id="no trials"),
        pytest.param([2.0, 3.0], [100, 200], id="equal or worse"),
        pytest.param([NAN], [100], id="missing loss"),
        pytest.param([1.0], [0], id="nothing spent"),
    ],
)
def test_nobody_is_most_efficient_without_an_improvement(loss: list[float], steps: list[float]) -> None:
    assert most_efficient(loss, steps, 2.0) is None


def test_ties_go_to_who_spent_least_then_to_the_first() -> None:
    assert most_efficient([1.0, 1.5, 1.5], [200, 100, 100], 2.0) == 1


@settings(deadline=None)  # the machine is shared
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=30))
def test_the_most_efficient_trial_is_on_the_front(trials: list[tuple[int, int]]) -> None:
    loss, steps = zip(*trials, strict=True)
    found = most_efficient(loss, steps, 20.0)
    assert found is None or found in front(np.column_stack((steps, loss)), ["minimize", "minimize"])


def test_errors_in_common_with_the_baseline_cancel() -> None:
    assert efficiency_sem([0.3], [100], 0.3, covariance=[0.09]).tolist() == [0.0]
    assert efficiency_sem([0.3], [100], 0.4, covariance=[0.06]) == pytest.approx([0.13**0.5])
    assert efficiency_sem([0.3], [100], 0.3, covariance=[0.09 + 1e-15]).tolist() == [0.0]  # rounding
