"""Costs of a sweep, and the limits on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sweeps.space.definition import Budget, Objective, Program, Space
from sweeps.trials import budget
from sweeps.trials.lifecycle import Claim, Expire, Heartbeat, apply, holder
from sweeps.trials.record import Attempt, Trial
from sweeps.trials.stage_run import StageRun

HOUR = 3600.0
SPACE = Space(
    name="toy",
    objectives=(Objective(metric="loss", goal="minimize"),),
    parameters=(),
    program=Program(kind="function"),
)


def trial(index: int, status: str, **changes) -> Trial:
    fields = {"parameters": {}, "generator": "sobol", "created": 0.0} | changes
    return Trial(trial=index, status=status, **fields)


def attempt(start: float, end: float) -> Attempt:
    return Attempt(attempt=1, worker="w", start=start, end=end, reason="completed")


def done(index: int, steps: float = 100.0, usd: float = 1.0, hours: float = 1.0) -> Trial:
    metrics = {"effective_steps": steps, "usd": usd}
    return trial(index, "completed", metrics=metrics, history=(attempt(0.0, hours * HOUR),))


def spent(records: Sequence[Trial], now: float) -> Budget:
    return budget.spent(SPACE, records, now)


def exceeded(limits: Budget, records: Sequence[Trial], now: float) -> str:
    return budget.reached_limit(replace(SPACE, budget=limits), records, now)


def test_an_empty_sweep_has_spent_nothing():
    assert spent([], 1e9) == Budget(effective_steps=0, device_hours=0, usd=0, wall_hours=0)


def test_finished_trials_cost_what_they_report():
    assert spent([done(0), done(1, steps=50.0, usd=0.5)], 5 * HOUR) == Budget(
        effective_steps=150, usd=1.5, device_hours=2, wall_hours=5
    )


def test_running_trial_counts_as_mean_or_its_cost_so_far():
    young = trial(2, "running", worker="w", started=4 * HOUR)
    old = trial(2, "running", worker="w", started=0.0)
    assert spent([done(0), young], 4.5 * HOUR).device_hours == pytest.approx(2)
    assert spent([done(0), old], 4.5 * HOUR).device_hours == pytest.approx(1 + 4.5)
    assert spent([done(0, steps=80.0), young], 4.5 * HOUR).effective_steps == 160


def test_early_stopped_trial_counts_by_progress():
    stopped = trial(2, "early_stopped", progress={"done": 0.25}, history=(attempt(0.0, HOUR),))
    assert spent([done(0, steps=80.0), stopped], HOUR).effective_steps == 100


def test_lost_attempts_have_cost_device_time_too():
    lost = trial(0, "pending", history=(attempt(0.0, 2 * HOUR), attempt(2 * HOUR, 3 * HOUR)))
    assert spent([lost], 3 * HOUR).device_hours == 3


def test_each_host_and_process_of_a_trial_costs_device_time():
    space = replace(SPACE, program=Program(kind="trainer", processes=4))
    assert budget.spent(space, [done(0), replace(done(1), nodes=2)], HOUR).device_hours == 4 * (1 + 2)


def test_a_command_costs_the_time_of_as_many_devices_as_it_says():
    program = Program(kind="command", command=("torchrun", "train.py", "${overrides}"), devices=8)
    space = replace(SPACE, program=program)
    assert budget.spent(space, [done(0), done(1)], HOUR).device_hours == 8 * 2


def test_nothing_runs_between_the_last_heartbeat_and_a_takeover_days_later():
    """A worker dies after an hour, and nobody looks for 60: the device ran for one."""
    record = apply(trial(0, "pending"), Claim(worker="w"), 0.0)
    record = apply(record, Heartbeat(**holder(record)), HOUR)
    assert spent([record], HOUR).device_hours == 1
    assert spent([record], 60 * HOUR).device_hours == pytest.approx(1 + SPACE.lease.expire_s / HOUR)
    record = apply(record, Expire(after_s=90, max_attempts=3), 60 * HOUR)
    assert spent([record], 60 * HOUR).device_hours == 1
    assert (record.history[0].end, record.history[0].detail) == (HOUR, "no heartbeat for 212400 s")
    assert exceeded(Budget(device_hours=20), [record], 60 * HOUR) == ""


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


def stage(name: str, cost: float, reused_from: int | None = None, **fields) -> StageRun:
    return StageRun(name=name, key="", cost=cost, reused_from=reused_from, **fields)


def two_stages(
    index: int, first: float, second: float, reused_from: int | None = None, **changes: Any
) -> Trial:
    """A completed trial of a Stage 1.9 and a Stage 2, whose dollars are a hundredth of its steps."""
    taken = {"seconds": HOUR * first / 100, "usd": first / 100}
    stages = (stage("stage1_9", first, reused_from, **taken), stage("stage2", second, usd=second / 100))
    metrics = {"effective_steps": first + second, "usd": (first + second) / 100}
    held = (second if reused_from is not None else first + second) / 100
    fields = {"metrics": metrics, "stages": stages, "history": (attempt(0.0, held * HOUR),)}
    return trial(index, "completed", **fields | changes)


class TestReuse:
    """Trial 0 computes a Stage 1.9 of 200 steps and a Stage 2 of 100; others start from its snapshot."""

    def test_a_reused_stage_is_paid_once(self):
        records = [two_stages(0, 200, 100), two_stages(1, 200, 60, 0), two_stages(2, 200, 40, 0)]
        assert spent(records, HOUR) == Budget(effective_steps=400, usd=4, device_hours=4, wall_hours=1)

    def test_trial_has_paid_for_its_own_checkpoint(self):
        assert spent([two_stages(0, 200, 100, 0)], HOUR).effective_steps == 300

    def test_trials_without_stages_count_what_they_report(self):
        records = [done(0, steps=300.0, usd=3.0), two_stages(1, 200, 100), two_stages(2, 200, 50, 1)]
        assert (spent(records, HOUR).effective_steps, spent(records, HOUR).usd) == (650, 6.5)

    @pytest.mark.parametrize("status", ["failed", "abandoned", "pending"])
    def test_trial_without_result_paid_for_ended_stages(self, status):
        records = [two_stages(0, 200, 100), two_stages(1, 200, 60, 0)]
        ended = trial(2, status, stages=(stage("stage1_9", 80, usd=0.8),))
        assert (spent([*records, ended], HOUR).effective_steps, spent([*records, ended], HOUR).usd) == (
            440,
            4.4,
        )
        taken_over = trial(2, status, stages=(stage("stage1_9", 200, 0, usd=2.0),))
        assert spent([*records, taken_over], HOUR).effective_steps == 360

    def test_running_trial_counts_stages_and_mean_rest(self):
        records = [two_stages(0, 200, 100), two_stages(1, 200, 60, 0)]
        young = trial(2, "running", worker="w", started=HOUR)
        assert spent([*records, young], HOUR).effective_steps == 360 + 180  # the mean of what was paid
        from_snapshot = trial(2, "running", worker="w", stages=(stage("stage1_9", 200, 0),))
        assert spent([*records, from_snapshot], HOUR).effective_steps == 360 + 80
        on_its_own = trial(2, "running", worker="w", stages=(stage("stage1_9", 900),))
        assert spent([*records, on_its_own], HOUR).effective_steps == 360 + 980

    def test_rest_of_running_trial_is_learnt_from_stages(self):
        records = [done(0, steps=1000.0), two_stages(1, 200, 100)]
        running = trial(2, "running", worker="w", stages=(stage("stage1_9", 200, 1),))
        assert spent([*records, running], HOUR).effective_steps == 1300 + 100

    def test_running_trial_counts_usd_of_stages_before_results(self):
        running = trial(0, "running", worker="w", stages=(stage("stage1_9", 200, usd=2.0),))
        assert spent([running], HOUR).usd == 2

    def test_early_stopped_trial_pays_its_share(self):
        records = [two_stages(0, 200, 100), two_stages(1, 200, 60, 0)]
        progress = {"done": 0.9}  # of 280, of which 200 are another's
        stopped = trial(2, "early_stopped", progress=progress, stages=(stage("stage1_9", 200, 0),))
        assert spent([*records, stopped], HOUR).effective_steps == pytest.approx(360 + 52)
        at_once = trial(2, "early_stopped", progress={"done": 0.0}, stages=(stage("stage1_9", 200, 0),))
        assert spent([*records, at_once], HOUR).effective_steps == 360

    def test_repeats_of_a_confirmation_pay_in_full(self):
        records = [two_stages(0, 200, 100), two_stages(1, 200, 100, generator="confirm", attempt=1)]
        assert spent(records, HOUR).effective_steps == 600

    def test_imported_trials_with_stages_were_paid_for_elsewhere(self):
        assert spent([two_stages(0, 200, 100, generator="imported")], HOUR).effective_steps == 0

    def test_costs_are_converted_by_reported_steps(self):
        """Stages that cost FLOPs or seconds must neither exhaust a budget of steps at once nor empty it."""
        flops = [
            replace(two_stages(i, 2e12, 1e12, r), metrics={"effective_steps": 300.0})
            for i, r in ((0, None), (1, 0))
        ]
        failed = trial(2, "failed", stages=(stage("stage1_9", 1e12),))
        assert spent([*flops, failed], HOUR).effective_steps == pytest.approx(300 + 100 + 100)
        assert spent([failed], HOUR).effective_steps == 0  # nothing is known of the unit yet

    def test_a_limit_is_on_what_was_paid(self):
        records = [two_stages(0, 200, 100), two_stages(1, 200, 100, 0)]
        assert exceeded(Budget(effective_steps=401.0), records, HOUR) == ""
        assert "400 of 400 effective_steps" in exceeded(Budget(effective_steps=400.0), records, HOUR)


def branched(index: int, first: float, saved: float, second: float) -> Trial:
    """A completed trial whose Stage 1.9 began at a point of trial 0's trunk."""
    full = two_stages(index, first, second)
    one = replace(full.stages[0], branched_from=0, branched_at=70, saved=saved)
    held = attempt(0.0, (first - saved + second) / 100 * HOUR)
    return replace(full, stages=(one, *full.stages[1:]), history=(held,))


class TestBranches:
    """Trial 0 computes a Stage 1.9 of 200 steps and a Stage 2 of 100; others begin at points of its trunk."""

    def test_the_part_until_the_point_is_paid_once(self):
        records = [two_stages(0, 200, 100), branched(1, 100, 60, 50), branched(2, 400, 140, 100)]
        assert spent(records, HOUR) == Budget(
            effective_steps=300 + 90 + 360, usd=7.5, device_hours=7.5, wall_hours=1
        )

    def test_a_trial_that_goes_on_from_its_own_point_has_paid_for_it(self):
        assert spent([branched(0, 100, 60, 50)], HOUR).effective_steps == 150

    def test_branched_running_trial_does_not_count_in_full(self):
        took = StageRun(name="stage1_9", key="", step=70, cost=140.0, reused_from=0)
        running = trial(1, "running", worker="w", points=(took,))
        records = [two_stages(0, 200, 100), running]
        assert spent(records, HOUR).effective_steps == 300 + 160
        published = replace(took, reused_from=None, snapshot=True)
        assert spent([records[0], replace(running, points=(published,))], HOUR).effective_steps == 600
        ended = replace(stage("stage1_9", 200), branched_from=0, branched_at=70, saved=140.0)
        later = replace(running, stages=(ended,))
        assert spent([records[0], later], HOUR).effective_steps == 300 + 60 + 100

    def test_early_stopped_trial_pays_no_shared_steps(self):
        took = StageRun(name="stage1_9", key="", step=70, cost=140.0, reused_from=0)
        stopped = trial(1, "early_stopped", points=(took,), progress={"done": 0.5})
        assert spent([two_stages(0, 200, 100), stopped], HOUR).effective_steps == 300 + 10
