"""What the command line says of stages that were reused; of a sweep without any it says what it always did."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from sweeps.experiment import Experiment
from sweeps.stages import sharing
from sweeps.storage.local import LocalStore
from sweeps.trials.lifecycle import Complete, Fail, Heartbeat, StopEarly
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun
from sweeps.worker.progress import Events, Lines

SECOND = StageRun(name="stage2", key="", cost=60.0, usd=0.5)


def first(source: int | None = None) -> StageRun:
    """A Stage 1.9 of 200 effective steps and 2 dollars."""
    key = "ab" * 32
    return StageRun(
        name="stage1_9", key=key, cost=200.0, reused_from=source, snapshot=source is None, usd=2.0
    )


@pytest.fixture
def experiment(sweep: Any, space_file: Path) -> Experiment:
    """Trial 0 computed a stage, 1 and 2 reused it, 2 failed, 3 was stopped early, 4 runs with it."""
    space_file.write_text(space_file.read_text() + "budget: {effective_steps: 1000, usd: 50}\n")
    experiment = Experiment.open(LocalStore(sweep("init", str(space_file)).out.strip()))
    for index in range(5):
        experiment.ask("w")
        holder = {"worker": "w", "attempt": 1}
        metrics = {"loss": 3.0 - index, "effective_steps": 260.0, "usd": 2.5}
        source = None if index in (0, 3) else 0
        experiment.apply(index, Heartbeat(**holder, stages=(first(source),)))
        if index < 2:
            experiment.apply(index, Complete(**holder, metrics=metrics, stages=(first(source), SECOND)))
        elif index == 2:
            experiment.apply(index, Fail(**holder, error="diverged", failure="diverged"))
        elif index == 3:
            experiment.apply(index, StopEarly(**holder, metrics={}, detail="behind"))
    return experiment


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


class TestStatus:
    def test_one_line_says_what_was_paid_and_saved(self, sweep, experiment):
        lines = sweep("status").out.splitlines()
        # Nominal: 260 three times and 200 twice; 4 and the failed one have paid nothing yet. Trial 3 counts
        # all that it may have computed, also in the budget, where 4 counts the 60 steps to come.
        assert "compute 580 of 1,180 effective steps paid; 51 % saved by 3 reused stages" in lines
        assert "budget  640 of 1000 effective_steps, 6 of 50 usd" in lines
        assert any(line.startswith("cost    $5.00 so far") for line in lines)

    def test_programs_get_the_totals(self, sweep, experiment):
        assert json.loads(sweep("status", "--format", "json").out)["compute"] == {
            "nominal": 1180, "paid": 580, "saved": pytest.approx(600 / 1180), "reused_stages": 3,
            "branches": 0, "unit": "effective steps",
        }  # fmt: skip
        (row,) = rows(sweep("status", "--format", "csv").out)
        assert (row["cost_nominal"], row["cost_paid"]) == ("1180.0", "580.0")

    def test_without_reuse_there_is_no_such_line(self, sweep, finished):
        assert "compute" not in sweep("status").out
        assert "compute" not in json.loads(sweep("status", "--format", "json").out)
        assert "cost_paid" not in sweep("status", "--format", "csv").out


class TestTrials:
    def test_the_table_says_what_each_paid_and_took_from_whom(self, sweep, experiment):
        header, *lines = sweep("trials").out.splitlines()
        assert header.split()[-3:] == ["paid", "reused", "error"]
        assert "60  stage1_9 of 0" in lines[1]
        assert "stage1_9" not in lines[0]
        assert "reused" not in sweep("trials", "--format", "csv").out.splitlines()[0].split(",")

    def test_programs_get_costs_and_stages(self, sweep, experiment):
        documents = json.loads(sweep("trials", "--format", "json").out)
        assert [(d["cost_nominal"], d["cost_paid"]) for d in documents] == [
            *((260, 260), (260, 60), (200, 0), (260, 260), (200, 0)),
        ]
        assert documents[1]["stages"][0]["reused_from"] == 0

    def test_without_reuse_the_columns_are_those_of_before(self, sweep, finished):
        assert "paid" not in sweep("trials").out.splitlines()[0]


class TestBestAndPareto:
    def test_best_says_what_it_paid(self, sweep, experiment):
        assert sweep("best").out.splitlines()[1] == "  paid 60 of 260, reusing stage1_9 of trial 0"
        document = json.loads(sweep("best", "--format", "json").out)
        assert (document["cost_nominal"], document["cost_paid"], len(document["stages"])) == (260, 60, 2)

    def test_the_front_is_nominal_and_says_so_once(self, sweep, experiment):
        out = sweep("pareto").out
        assert out.count("counts reused stages as if computed") == 1
        # As `sweep status` says it: trial 3 counts what it may have computed of the stage that it was in.
        assert "compute: 580 of 1,180 effective steps paid; 51 % saved by 3 reused stages" in out
        document = json.loads(sweep("pareto", "--format", "json").out)
        assert {point["x"] for point in document["points"]} == {260.0}
        assert document["compute"] == json.loads(sweep("status", "--format", "json").out)["compute"]
        assert "as if computed" not in sweep("pareto", "--x", "seconds", "--y", "loss").out

    def test_an_exported_table_says_the_same(self, sweep, experiment):
        for name in ("t.csv", "t.json", "t.parquet"):
            assert sweep("export", name).status == 0
            out = sweep("pareto", "--table", name, "--x", "effective_steps", "--y", "loss").out
            assert "580 of 1,180 effective steps paid" in out

    def test_without_reuse_nothing_is_said(self, sweep, finished):
        assert "paid" not in sweep("best").out + sweep("pareto").out
        assert "compute" not in json.loads(sweep("pareto", "--format", "json").out)

    def test_the_report_draws_it(self, sweep, experiment, tmp_path):
        assert sweep("report", "--out", "page.html", "--no-surrogate").status == 0
        page = (tmp_path / "page.html").read_text()
        assert 'id="prefixes"' in page
        assert 'id="paid"' in page


class TestWorkersLines:
    def test_people_and_programs_see_what_a_trial_paid(self, experiment, capsys):
        record = experiment.trials()[1]
        Lines(experiment).ended(record)
        assert capsys.readouterr().err.rstrip().endswith("; paid 60 of 260, reusing stage1_9 of trial 0")
        Events(experiment).ended(record)
        document = json.loads(capsys.readouterr().err)
        assert (document["cost_nominal"], document["cost_paid"]) == (260, 60)

    def test_a_trial_that_reused_nothing_says_nothing(self, experiment, capsys):
        Lines(experiment).ended(experiment.trials()[0])
        assert "paid" not in capsys.readouterr().err


def test_costs_without_a_known_unit_have_none() -> None:
    stage = StageRun(name="a", key="", cost=0.25)
    taken = StageRun(name="a", key="", cost=0.25, reused_from=0)
    records = [
        Trial(trial=index, status="completed", parameters={}, generator="sobol", stages=stages)
        for index, stages in enumerate([(stage, stage), (taken, stage)])
    ]
    assert sharing.sweep_line(records) == "0.75 of 1 paid; 25 % saved by 1 reused stage"
