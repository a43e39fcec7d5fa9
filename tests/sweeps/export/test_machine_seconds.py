"""Time that machines were taken for: of all attempts, on all hosts of a trial."""

from __future__ import annotations

import pytest

from analysis.report.contents import contents
from analysis.summaries.costs import Rate, cost
from sweeps.export import table
from sweeps.space.definition import Objective, Program, Range, Space
from sweeps.trials.lifecycle import Abandon, Claim, Complete, Expire, Heartbeat, Release, apply, holder
from sweeps.trials.record import Trial

SPACE = Space(
    name="case",
    objectives=(Objective(metric="loss"),),
    parameters=(Range(name="x", min=0.0, max=1.0, kind="float"),),
    program=Program(kind="function", function="m:f"),
    run_cap=2,
)
RATE = Rate(name="machine", usd_per_hour=3.0, kind="spot", dated="2026-01")


def fresh(index: int) -> Trial:
    return Trial(trial=index, status="pending", parameters={"x": 0.5}, generator="sobol")


def preempted(nodes: int) -> Trial:
    """Two attempts of an hour, then one of half an hour that completes it."""
    record, now = fresh(0), 0.0
    for _ in range(2):
        record = apply(record, Claim(worker="w", nodes=nodes), now)
        now += 3600.0
        record = apply(record, Release(**holder(record)), now)
        now += 999.0  # nobody has it
    record = apply(record, Claim(worker="w", nodes=nodes), now)
    return apply(record, Complete(**holder(record), metrics={"loss": 1.0}), now + 1800.0)


@pytest.mark.parametrize("nodes", [1, 2])
def test_earlier_attempts_and_hosts_have_cost_too(nodes: int) -> None:
    record = preempted(nodes)
    document = table.document(SPACE, "sweep", [record])
    assert document["trials"][0]["seconds"] == 1800.0
    assert document["machine_seconds"] == {"0": 9000.0 * nodes}
    for found in (contents(document, rate=RATE).cost, cost(table.cost_rows(SPACE, [record]), 2, RATE)):
        assert found.so_far == pytest.approx(7.5 * nodes)
        assert found.expected == pytest.approx(2 * 7.5 * nodes)


def test_a_trial_of_one_attempt_has_its_seconds_alone() -> None:
    record = apply(fresh(0), Claim(worker="w"), 5.0)
    record = apply(record, Heartbeat(**holder(record)), 65.0)
    assert (table.seconds(record), table.machine_seconds(record)) == (60.0, None)
    record = apply(record, Complete(**holder(record), metrics={"loss": 1.0}), 95.0)
    assert (table.seconds(record), table.machine_seconds(record)) == (90.0, None)
    assert "machine_seconds" not in table.document(SPACE, "sweep", [record, fresh(1)])


def test_nothing_runs_until_somebody_looks_days_later() -> None:
    record = apply(fresh(0), Claim(worker="w"), 0.0)
    record = apply(record, Heartbeat(**holder(record)), 3600.0)
    lost = apply(record, Expire(after_s=60, max_attempts=1), 1e6)
    assert (lost.status, table.seconds(lost), table.machine_seconds(lost)) == ("failed", 3600.0, None)
    waiting = apply(record, Release(**holder(record)), 4000.0)
    assert (table.seconds(waiting), table.machine_seconds(waiting)) == (None, 4000.0)
    assert table.seconds(apply(waiting, Abandon(by="me"), 1e6)) == 4000.0


def test_a_trial_that_waits_after_a_preemption_has_cost_too() -> None:
    record = apply(fresh(0), Claim(worker="w"), 0.0)
    record = apply(record, Release(**holder(record)), 3600.0)
    assert cost(table.cost_rows(SPACE, [record]), None, RATE).so_far == pytest.approx(3.0)
    record = apply(record, Claim(worker="w"), 7200.0)
    record = apply(record, Heartbeat(**holder(record)), 9000.0)
    assert cost(table.cost_rows(SPACE, [record]), None, RATE).so_far == pytest.approx(4.5)
