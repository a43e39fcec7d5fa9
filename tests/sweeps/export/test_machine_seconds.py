"""Time that machines were taken for: of all attempts, on all hosts of a trial."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from analysis.report.contents import contents
from analysis.summaries.compute import column_of, with_price
from analysis.summaries.costs import Rate, cost
from analysis.table import TrialsTable
from sweeps.export import table
from sweeps.space.definition import Objective, Program, Range, Space
from sweeps.trials.lifecycle import Abandon, Claim, Complete, Expire, Heartbeat, Release, apply, holder
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

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


def at_once(index: int) -> Trial:
    """One attempt of half an hour."""
    record = apply(fresh(index), Claim(worker="w"), 0.0)
    return apply(record, Complete(**holder(record), metrics={"loss": 2.0}), 1800.0)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_trials_are_compared_by_the_time_of_all_their_attempts(tmp_path: Path, suffix: str) -> None:
    table.write(tmp_path / f"t.{suffix}", SPACE, "url", [preempted(1), at_once(1), fresh(2)])
    read = TrialsTable.open(tmp_path / f"t.{suffix}")
    assert read.numbers("seconds").fillna(-1).tolist() == [1800, 1800, -1]
    assert read.numbers("machine_seconds").fillna(-1).tolist() == [9000, 1800, -1]
    assert column_of("seconds", read) == "machine_seconds"
    assert with_price(read, RATE).numbers("usd").fillna(-1).tolist() == pytest.approx([7.5, 1.5, -1])


def test_tables_put_together_have_the_time_of_each_sweep() -> None:
    """Only one of the two has a trial of several attempts, and with it the column."""
    sweeps = ([preempted(1), at_once(1), fresh(2)], [at_once(3), fresh(4)])
    both = pd.concat([pd.DataFrame(table.flat_rows(SPACE, records)) for records in sweeps])
    read = TrialsTable.from_frame(both)
    assert read.numbers(column_of("seconds", read)).fillna(-1).tolist() == [9000, 1800, -1, 1800, -1]
    usd = with_price(read, RATE).numbers("usd").fillna(-1).tolist()
    assert usd == pytest.approx([7.5, 1.5, -1, 1.5, -1])


def test_the_report_weighs_against_the_time_of_all_attempts() -> None:
    page = contents(table.document(SPACE, "sweep", [preempted(1), at_once(1)]))
    assert page.tradeoff is not None
    assert [(point.trial, point.x) for point in page.tradeoff.result.points] == [(0, 9000), (1, 1800)]


def test_where_all_have_one_attempt_there_is_no_column_of_several(tmp_path: Path) -> None:
    table.write(tmp_path / "t.csv", SPACE, "url", [at_once(0), at_once(1)])
    read = TrialsTable.open(tmp_path / "t.csv")
    assert "machine_seconds" not in read
    assert column_of("seconds", read) == "seconds"


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_a_stage_that_was_reused_has_cost_on_all_hosts(tmp_path: Path, suffix: str) -> None:
    """Whoever reuses half an hour on two hosts is not cheaper than whoever computes it there."""
    stage = StageRun(name="stage1_9", key="k", cost=1.0, seconds=1800.0)
    first = replace(preempted(2), stages=(replace(stage, snapshot=True),))
    second = apply(fresh(1), Claim(worker="w", nodes=2), 0.0)
    second = apply(second, Complete(**holder(second), metrics={"loss": 2.0}), 7200.0)
    second = replace(second, stages=(replace(stage, reused_from=0),))
    alone = replace(at_once(2), stages=(replace(stage, reused_from=0),))
    table.write(tmp_path / f"t.{suffix}", SPACE, "url", [first, second, alone, fresh(3)])
    read = TrialsTable.open(tmp_path / f"t.{suffix}")
    assert with_price(read, RATE).numbers("usd").fillna(-1).tolist() == pytest.approx([15.0, 15.0, 3.0, -1])
    table.write(tmp_path / f"t.{suffix}", SPACE, "url", [alone])
    assert "hosts" not in TrialsTable.open(tmp_path / f"t.{suffix}")


def test_a_metric_of_that_name_does_not_hide_it() -> None:
    own = preempted(1)
    own = replace(own, metrics=dict(own.metrics) | {"machine_seconds": 7.0})
    (row,) = table.flat_rows(SPACE, [own])
    assert (row["machine_seconds"], row["metric.machine_seconds"]) == (9000, 7)


def test_means_over_seeds_are_of_all_attempts_too() -> None:
    """Two fresh runs confirm trial 0; their time is that of all their attempts."""
    first = at_once(0)
    repeats = [replace(preempted(1), trial=1), at_once(2)]
    records = [
        first,
        *(replace(r, generator="confirm", parameters={"x": 0.5, "seed": r.trial}) for r in repeats),
    ]
    read = TrialsTable.from_document(table.document(SPACE, "sweep", records)).configurations
    assert read.numbers("machine_seconds").tolist() == [(9000 + 1800) / 2]
