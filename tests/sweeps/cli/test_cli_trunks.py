"""What the command line says of trunks and of the trials that branch off them."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweeps.experiment import Experiment
from sweeps.stages import sharing
from sweeps.storage.local import LocalStore
from sweeps.trials.lifecycle import Complete, Heartbeat
from sweeps.trials.stage_run import StageRun
from sweeps.worker.progress import Events, Lines

FIRST = StageRun(name="stage1_9", key="a0" * 32, cost=200.0, snapshot=True)
SECOND = StageRun(name="stage2", key="", cost=60.0)
POINTS = tuple(
    StageRun(name="stage1_9", key=f"{step:064x}", cost=2.0 * step, step=step, snapshot=step > 20)
    for step in (20, 40, 80)
)
BRANCH = StageRun(
    name="stage1_9", key="b0" * 32, cost=100.0, snapshot=True, branched_from=0, branched_at=40, saved=80.0
)
REUSED = replace(BRANCH, reused_from=1, snapshot=False, branched_from=None, branched_at=None, saved=0.0)


@pytest.fixture
def experiment(sweep: Any, space_file: Path) -> Experiment:
    """Trial 0 left three points, of which one is gone; 1 branched off it, 2 reuses that; 3 has published 40 too."""
    experiment = Experiment.open(LocalStore(sweep("init", str(space_file)).out.strip()))
    runs = ((FIRST, POINTS), (BRANCH, ()), (REUSED, ()))
    for index, (stage, points) in enumerate(runs):
        experiment.ask("w")
        holder = {"worker": "w", "attempt": 1}
        steps = stage.cost + 60
        experiment.apply(index, Heartbeat(**holder, stages=(stage,), points=points))
        done = Complete(
            **holder, metrics={"loss": (3.0, 1.0, 2.0)[index], "effective_steps": steps}, stages=(stage, SECOND),
            points=points,
        )  # fmt: skip
        experiment.apply(index, done)
    experiment.ask("w")
    experiment.apply(3, Heartbeat(worker="w", attempt=1, points=POINTS[1:2]))
    return experiment


def columns(text: str, *names: str) -> list[tuple[str, ...]]:
    return [tuple(row[name] for name in names) for row in csv.DictReader(io.StringIO(text))]


class TestStatus:
    def test_one_line_says_what_is_stored_and_who_branched(self, sweep, experiment):
        lines = sweep("status").out.splitlines()
        # Nominal: 260 + 160 + 160; paid: 260, 160 less the 80 until the point, and 60.
        assert "compute 400 of 580 effective steps paid; 31 % saved by 1 reused stage and 1 branch" in lines
        assert (
            "trunks  2 points stored to branch off at; 1 trial branched, saving 80 effective steps (14 %)"
            in lines
        )

    def test_programs_get_the_totals(self, sweep, experiment):
        document = json.loads(sweep("status", "--format", "json").out)
        assert document["trunks"] == {"points": 2, "branched_trials": 1, "saved": 80}
        assert (document["compute"]["paid"], document["compute"]["branches"]) == (400, 1)
        out = sweep("status", "--format", "csv").out
        assert columns(out, "cost_nominal", "cost_paid") == [("580.0", "400.0")]

    def test_points_that_nobody_used_are_said_to_be_there(self, experiment):
        records = experiment.trials()[:1]
        assert sharing.trunks_line(records) == "2 points stored to branch off at; no trial has yet"
        assert sharing.sweep_document(records) == {
            "trunks": {"points": 2, "branched_trials": 0, "saved": 0.0}
        }
        assert sharing.sweep_line(records) == ""

    def test_a_sweep_without_trunks_says_nothing(self, sweep, finished):
        assert "trunk" not in sweep("status").out + sweep("status", "--format", "json").out


class TestTrials:
    def test_the_table_says_where_each_branched_off(self, sweep, experiment):
        header, *lines = sweep("trials").out.splitlines()
        assert header.split()[-3:] == ["paid", "reused", "branched"]
        assert lines[1].rstrip().endswith("stage1_9 of 0 at 40")
        assert lines[2].rstrip().endswith("stage1_9 of 1")
        assert "80" in lines[1].split()

    def test_programs_get_every_field(self, sweep, experiment):
        documents = json.loads(sweep("trials", "--format", "json").out)
        assert [document.get("cost_paid") for document in documents] == [260, 80, 60, None]
        first = documents[1]["stages"][0]
        assert (first["branched_from"], first["branched_at"], first["saved"]) == (0, 40, 80)
        assert [point["step"] for point in documents[0]["trunk_points"]] == [20, 40, 80]
        assert [point["step"] for point in documents[3]["trunk_points"]] == [40]  # it still runs
        out = sweep("trials", "--format", "csv").out
        (cell,) = columns(out, "trunk_points")[3]
        assert json.loads(cell)[0]["step"] == 40
        assert columns(out, "trunk_points")[1] == ("",)


class TestBestAndPareto:
    def test_best_says_what_the_branch_paid(self, sweep, experiment):
        line = "paid 80 of 160, branching off stage1_9 of trial 0 at step 40"
        assert sweep("best").out.splitlines()[1] == f"  {line}"
        document = json.loads(sweep("best", "--format", "json").out)
        assert (document["cost_nominal"], document["cost_paid"]) == (160, 80)

    def test_trial_with_reused_and_branched_stages(self, experiment):
        record = experiment.trials()[1]
        both = replace(record, stages=(*record.stages, replace(REUSED, name="stage3", reused_from=0)))
        assert sharing.trial_line(both) == (
            "paid 80 of 260, reusing stage3 of trial 0 and branching off stage1_9 of trial 0 at step 40"
        )

    def test_the_front_is_nominal_and_says_so(self, sweep, experiment):
        out = sweep("pareto").out
        assert "400 of 580 effective steps paid; 31 % saved by 1 reused stage and 1 branch" in out
        assert out.count("counts shared stages as if computed") == 1
        document = json.loads(sweep("pareto", "--format", "json").out)
        assert {point["x"] for point in document["points"]} == {260, 160}

    def test_the_report_draws_the_trunk(self, sweep, experiment, tmp_path):
        assert sweep("report", "--out", "page.html", "--no-surrogate").status == 0
        page = (tmp_path / "page.html").read_text()
        assert 'id="trunks-0"' in page
        assert 'id="lengths-0"' in page


def test_people_and_programs_get_what_a_trial_paid_from_a_worker(experiment, capsys):
    record = experiment.trials()[1]
    Lines(experiment).ended(record)
    line = capsys.readouterr().err.rstrip()
    assert line.endswith("; paid 80 of 160, branching off stage1_9 of trial 0 at step 40")
    Events(experiment).ended(record)
    assert json.loads(capsys.readouterr().err)["cost_paid"] == 80
