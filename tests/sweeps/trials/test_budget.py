"""Costs of a sweep, and the limits on them."""

from __future__ import annotations

import pytest

from sweeps.space.definition import Budget
from sweeps.trials.budget import exceeded, spent
from sweeps.trials.record import Attempt, Trial

HOUR = 3600.0


def trial(index: int, status: str, **changes) -> Trial:
    fields = {"parameters": {}, "generator": "sobol", "created": 0.0} | changes
    return Trial(trial=index, status=status, **fields)


def attempt(start: float, end: float) -> Attempt:
    return Attempt(attempt=1, worker="w", start=start, end=end, reason="completed")


def done(index: int, steps: float = 100.0, usd: float = 1.0, hours: float = 1.0) -> Trial:
    metrics = {"effective_steps": steps, "usd": usd}
    return trial(index, "completed", metrics=metrics, history=(attempt(0.0, hours * HOUR),))


def test_an_empty_sweep_has_spent_nothing():
    assert spent([], 1e9) == Budget(effective_steps=0, device_hours=0, usd=0, wall_hours=0)


def test_finished_trials_cost_what_they_report_and_wall_time_runs_from_the_first():
    assert spent([done(0), done(1, steps=50.0, usd=0.5)], 5 * HOUR) == Budget(
        effective_steps=150, usd=1.5, device_hours=2, wall_hours=5
    )


def test_a_running_trial_counts_as_a_usual_one_or_as_what_it_has_cost_if_that_is_more():
    young = trial(2, "running", worker="w", started=4 * HOUR)
    old = trial(2, "running", worker="w", started=0.0)
    assert spent([done(0), young], 4.5 * HOUR).device_hours == pytest.approx(2)
    assert spent([done(0), old], 4.5 * HOUR).device_hours == pytest.approx(1 + 4.5)
    assert spent([done(0, steps=80.0), young], 4.5 * HOUR).effective_steps == 160


def test_a_trial_that_was_stopped_early_counts_by_how_far_it_came():
    stopped = trial(2, "early_stopped", progress={"done": 0.25}, history=(attempt(0.0, HOUR),))
    assert spent([done(0, steps=80.0), stopped], HOUR).effective_steps == 100


def test_lost_attempts_have_cost_device_time_too():
    lost = trial(0, "pending", history=(attempt(0.0, 2 * HOUR), attempt(2 * HOUR, 3 * HOUR)))
    assert spent([lost], 3 * HOUR).device_hours == 3


def test_imported_trials_were_paid_for_elsewhere():
    assert spent([trial(0, "completed", generator="imported", metrics={"usd": 99.0})], HOUR).usd == 0


@pytest.mark.parametrize("name", ["effective_steps", "device_hours", "usd", "wall_hours"])
def test_each_limit_is_reached_at_its_value_and_not_before(name):
    records = [done(0), done(1)]
    costs = {"effective_steps": 200.0, "device_hours": 2.0, "usd": 2.0, "wall_hours": 5.0}
    assert name in exceeded(Budget(**{name: costs[name]}), records, 5 * HOUR)
    assert exceeded(Budget(**{name: costs[name] + 0.1}), records, 5 * HOUR) == ""


def test_without_a_budget_nothing_is_ever_spent():
    assert exceeded(Budget(), [done(i) for i in range(100)], 1e12) == ""
