"""Output for people and programs: documents to the letter, tables without noise, and no slow imports."""

from __future__ import annotations

import ast
import contextlib
import csv
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pandas as pd
import pytest

from analysis.report.contents import contents
from sweeps.experiment import Experiment
from sweeps.export import table as export
from sweeps.operations.report import report_document
from sweeps.operations.sources import progress
from sweeps.storage.local import LocalStore
from sweeps.trials import record as trial
from sweeps.trials.lifecycle import Complete


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


class TestStatus:
    def test_the_json_document_is_the_designs(self, sweep, finished):
        document = json.loads(sweep("status", "--format", "json").out)
        assert list(document) == ["url", "name", "run_cap", "trials", "best", "state", "why", "confirmation"]
        assert (document["state"], document["why"]) == ("running", None)
        assert (document["url"], document["name"], document["run_cap"]) == (finished, "toy", 5)
        assert document["trials"] == {
            "pending": 0,
            "running": 0,
            "completed": 5,
            "failed": 0,
            "early_stopped": 0,
            "abandoned": 0,
        }
        assert list(document["best"]) == ["trial", "parameters", "metrics"]

    def test_before_the_first_result_best_is_null(self, sweep, space_file):
        sweep("init", str(space_file))
        assert json.loads(sweep("status", "--format", "json").out)["best"] is None
        ran = sweep("best")
        assert (ran.status, ran.out) == (1, "")
        ran = sweep("best", "--format", "json")
        assert (ran.status, json.loads(ran.out)) == (1, None)
        assert "no trials yet" in sweep("trials").out

    def test_gain_and_stop_are_told_from_the_records(self, sweep, space_file):
        text = space_file.read_text().replace("method: random", "stop: {expected_gain: 0.01}")
        space_file.write_text(text + "baseline: {x: 0.9}\n")
        url = sweep("init", str(space_file)).out.strip()
        experiment = Experiment.open(LocalStore(url))
        for loss in (3.5, 3.2):
            record = experiment.ask("w")
            end = Complete(worker="w", attempt=1, metrics={"loss": loss, "effective_steps": 1.0})
            experiment.apply(record.trial, end)
        lines = sweep("status").out.splitlines()
        assert "gain    0.30 below the baseline (trial 0), one run of each" in lines
        assert any(line.startswith("stop    once 12 more trials") for line in lines)
        document = json.loads(sweep("status", "--format", "json").out)
        assert document["gain"]["difference"] == pytest.approx(0.3)
        assert (document["stop"]["ended"], document["stop"]["gain"]) == (False, None)
        data = {"schema": 1, "gain": 0.004, "trials": 12, "results": 30, "digest": "", "at": 1.0}
        experiment.store.create("stop.json", json.dumps(data).encode())
        assert "stop    the search is done: 12 more trials are" in sweep("status").out
        assert json.loads(sweep("status", "--format", "json").out)["stop"]["ended"]
        ran = sweep("ask")
        assert (ran.status, ran.out) == (1, "")
        assert "the search is done" in ran.err
        assert "sweep extend --expected-gain none" in ran.err
        ran = sweep("worker")
        assert ran.status == 0
        assert "the search is done" in ran.err
        assert '"done"' in sweep("list", "--format", "json").out
        ran = sweep("extend", "--expected-gain", "0.001")
        assert ran.out == "expected_gain 0.01 → 0.001\n"
        assert sweep("ask").status == 0

    def test_a_grid_costs_what_its_configurations_cost(self, sweep, space_file, tmp_path):
        """Not what a larger run cap allows, in the report neither."""
        text = space_file.read_text().replace("random, sobol: 4", "grid").replace("run_cap: 5", "run_cap: 20")
        text = text.replace("{min: 0.0, max: 1.0}", "{values: [0.1, 0.2]}")
        space_file.write_text(text.replace("{min: 1, max: 100}", "{values: [1, 2]}"))
        experiment = Experiment.open(LocalStore(sweep("init", str(space_file)).out.strip()))
        for _ in range(4):
            record = experiment.ask("w")
            metrics = {"loss": 1.0 + record.trial, "usd": 2.0}
            experiment.apply(record.trial, Complete(worker="w", attempt=1, metrics=metrics))
            cost = next(line for line in sweep("status").out.splitlines() if line.startswith("cost"))
            assert ", about $8.00 when all 4 are done" in cost
            document = report_document(experiment, experiment.trials())
            assert contents(document).cost.expected == 8.0
            ended = f"{record.trial + 1} of 4"
            assert f"trials  {ended}: " in sweep("status").out
            assert f"  {ended}  " in sweep("list").out
            if record.trial < 3:
                assert f"The search is not over: {ended} trials have ended" in document["next"][0]["text"]
                assert progress(experiment, experiment.trials()) == [
                    f"{record.trial + 1} of its 4 trials have ended"
                ]
        assert progress(experiment, experiment.trials()) == []

    def test_a_running_trial_is_shown_with_its_worker(self, sweep, space_file):
        url = sweep("init", str(space_file)).out.strip()
        Experiment.open(LocalStore(url)).ask("host-1-abc")
        out = sweep("status").out
        assert "1 of 5: 1 running" in out
        assert "host-1-abc" in out

    def test_damaged_record_is_one_line(self, sweep, finished, tmp_path):
        record = Path(finished, trial.key(2))
        record.write_bytes(record.read_bytes()[:50])
        reading = (
            ["status"],
            ["trials"],
            ["best"],
            ["pareto"],
            ["export", "t.csv"],
            ["report", "--out", "r.html"],
        )
        for command in (*reading, ["worker"], ["ask"]):
            ran = sweep(*command)
            assert ran.status == 1
            line, *others = ran.err.splitlines()
            assert line.startswith(f"sweep: error: {finished}/trials/000002.json: damaged ")
            assert "`sweep repair --yes`" in line
            assert "`sweep doctor`" in line
            assert len(others) <= (command == ["best"])
            assert bool(ran.out) == (command in reading)
        assert len(rows((tmp_path / "t.csv").read_text())) == 4
        assert (tmp_path / "r.html").exists()


class TestTrialsAndBest:
    def test_trials_json_has_the_designs_keys(self, sweep, finished):
        documents = json.loads(sweep("trials", "--format", "json").out)
        assert [d["trial"] for d in documents] == list(range(5))
        assert list(documents[0]) == [
            "trial", "status", "attempt", "generator", "parameters", "metrics", "error",
            "failure",
        ]  # fmt: skip

    def test_trials_csv_is_the_exported_table(self, sweep, finished, tmp_path):
        shown = rows(sweep("trials", "--format", "csv").out)
        sweep("export", "t.csv")
        assert shown == rows((tmp_path / "t.csv").read_text())

    def test_the_table_shows_what_varies_and_not_what_does_not(self, sweep, finished):
        header = sweep("trials").out.splitlines()[0].split()
        assert header == ["trial", "status", "by", "x", "n", "loss", "seconds"]

    def test_best_is_the_best_and_its_overrides_can_be_pasted(self, sweep, finished):
        document = json.loads(sweep("best", "--format", "json").out)
        losses = {
            d["trial"]: d["metrics"]["loss"] for d in json.loads(sweep("trials", "--format", "json").out)
        }
        assert document["trial"] == min(losses, key=losses.get)
        assert document["overrides"][-1] == "mode=fast"
        # The line that it prints is one that a shell runs, with the result that the trial had.
        line = sweep("best").out.splitlines()[-1]
        start, flag, code = shlex.split(line)
        assert (start, flag) == ("python", "-c")
        written = io.StringIO()
        with contextlib.redirect_stdout(written):
            exec(code, {})
        assert ast.literal_eval(written.getvalue())["loss"] == pytest.approx(document["metrics"]["loss"])

    def test_a_command_can_be_run_again_by_hand(self):
        from sweeps.programs.command import CommandProgram
        from sweeps.space.definition import Objective, Program, Space
        from sweeps.trials.record import Trial

        command = ("${python}", "train.py", "--out=${run_dir}/${trial}", "${overrides}")
        space = Space(
            name="c",
            objectives=(Objective(metric="loss"),),
            parameters=(),
            program=Program(kind="command", command=command),
        )
        record = Trial(trial=7, status="completed", parameters={"lr": 0.1, "kind": "a b"}, generator="sobol")
        assert CommandProgram(space).command_line(record) == (
            'mkdir -p runs/best && SWEEP_RUN_DIR="$PWD/runs/best" '
            "python train.py --out=runs/best/7 lr=0.1 'kind='\"'\"'a b'\"'\"''"
        )


class TestPareto:
    def test_the_document_is_the_designs_and_the_axes_are_chosen(self, sweep, finished):
        document = json.loads(sweep("pareto", "--format", "json").out)
        assert list(document) == ["x", "y", "points", "front", "most_efficient", "knee"]
        assert (document["x"], document["y"], len(document["points"])) == ("effective_steps", "loss", 5)

    def test_any_table_will_do(self, sweep, tmp_path):
        (tmp_path / "t.csv").write_text("cost,loss\n1,3\n2,2\n,1\n3,2.5\n")
        ran = sweep("pareto", "--table", "t.csv", "--x", "cost", "--y", "loss", "--format", "json")
        assert json.loads(ran.out) == {
            "x": "cost",
            "y": "loss",
            "points": [{"trial": 0, "x": 1.0, "y": 3.0}, {"trial": 1, "x": 2.0, "y": 2.0}, {"trial": 3, "x": 3.0, "y": 2.5}],
            "front": [0, 1],
            "most_efficient": None,
            "knee": None,
        }  # fmt: skip

    def test_more_of_a_column_may_be_better(self, sweep, tmp_path):
        (tmp_path / "t.csv").write_text("cost,accuracy\n1,0.3\n2,0.5\n3,0.4\n")
        asked = ("pareto", "--table", "t.csv", "--x", "cost", "--y", "accuracy", "--format", "json")
        assert json.loads(sweep(*asked).out)["front"] == [0]
        assert json.loads(sweep(*asked, "--goal", "maximize").out)["front"] == [0, 1]

    def test_rows_that_did_not_complete_are_named(self, sweep, tmp_path):
        head = "number;value;params_lr;state\n"
        (tmp_path / "t.csv").write_text(head + "0;0,5;0,1;COMPLETE\n1;0,1;0,2;PRUNED\n2;0,25;0,3;COMPLETE\n")
        asked = ("pareto", "--table", "t.csv", "--x", "params_lr", "--y", "value", "--format", "json")
        ran = sweep(*asked)
        assert [point["trial"] for point in json.loads(ran.out)["points"]] == [0, 2]
        assert "1 PRUNED" in ran.err
        for rows, message in (("", "no rows"), ("0;;0,1;FAIL\n", "no rows of completed trials")):
            (tmp_path / "t.csv").write_text(head + rows)
            ran = sweep(*asked)
            assert ran.status == 2
            assert f"t.csv: {message}\n" in ran.err

    def test_confirmed_and_unconfirmed_differ_in_every_format(self, sweep, tmp_path):
        """Trial 1 was the best, and its fresh seeds are worse: 0 wins."""
        header = "trial,status,attempt,generator,param.lr,param.seed,effective_steps,loss\n"
        runs = "2,completed,1,confirm,2,7,20,3.2\n3,completed,1,confirm,2,8,20,3.4\n"
        searched = "0,completed,1,sobol,1,,10,3.1\n1,completed,1,sobol,2,,20,2.9\n"
        (tmp_path / "t.csv").write_text(header + searched + runs)
        asked = ("pareto", "--table", "t.csv", "--x", "effective_steps", "--y", "loss")
        document = json.loads(sweep(*asked, "--format", "json").out)
        assert document["front"] == [0]
        assert [point["confirmed_by_seeds"] for point in document["points"]] == [0, 2]
        assert rows(sweep(*asked, "--format", "csv").out)[1]["confirmed_by_seeds"] == "2"
        shown = sweep(*asked, "--chances").out
        assert "confirmed: the mean over fresh seeds" in shown
        assert "with the spread over seeds, 0.14" in shown
        (tmp_path / "t.csv").write_text(header + searched)
        assert "confirmed" not in sweep(*asked).out + sweep(*asked, "--format", "csv").out

    def test_chances_are_in_tables_and_documents_too(self, sweep, tmp_path):
        (tmp_path / "t.csv").write_text("cost,loss,loss_sem\n100,7,0.1\n200,6.9,0.1\n400,5,0.1\n")
        asked = ("pareto", "--table", "t.csv", "--x", "cost", "--y", "loss", "--baseline", "8")
        assert "chances" not in json.loads(sweep(*asked, "--format", "json").out)
        assert "front_chance" not in sweep(*asked, "--format", "csv").out
        found = json.loads(sweep(*asked, "--chances", "--format", "json").out)["chances"]
        assert found["draws"] == 1000
        second = found["trials"]["1"]
        assert second["front"] == pytest.approx(0.76, abs=0.05)  # P(N(0.1, 0.1 * sqrt(2)) > 0)
        table = rows(sweep(*asked, "--chances", "--format", "csv").out)
        assert float(table[1]["front_chance"]) == second["front"]
        assert float(table[1]["efficiency"]) == second["efficiency"] == pytest.approx(0.55)
        assert float(table[1]["efficiency_range"]) == pytest.approx(1.96 * 0.1 / 2, rel=1e-3)

    def test_a_budget_is_answered_with_the_front(self, sweep, tmp_path):
        rows = "\n".join(f"{s},200,{loss}" for s, loss in ((50, 7.52), (100, 6.92), (200, 6.39), (500, 5.39)))
        (tmp_path / "t.csv").write_text(f"stage1_9_steps,stage2_steps,loss\n{rows}\n")
        asked = ("pareto", "--table", "t.csv", "--compute", "effective_steps", "--y", "loss", "--budget")
        expected = sweep(*asked, "800", "--baseline", "7.83", "--chances").out
        assert "800 effective_steps buy loss 5.9" in expected
        assert "with 300 steps of Stage 1.9 and 200 of Stage 2" in expected
        assert "0.103" in expected  # the efficiency of the first
        assert "hypervolume" in expected
        document = json.loads(sweep(*asked, "9000", "--format", "json").out)
        assert list(document)[-1] == "budget"
        assert document["budget"]["stage1_9_steps"] == 4400
        assert "outside" in document["budget"]["warnings"][0]
        table = sweep(*asked, "9000", "--format", "csv")
        assert len(table.out.splitlines()) == 5
        assert "warning: 9,000 lies outside" in table.err

    def test_three_objectives_have_one_front_in_all_of_them(self, sweep, space_file, tmp_path):
        three = "[{metric: loss}, {metric: score, goal: maximize}, {metric: memory, goal: minimize}]"
        space_file.write_text(space_file.read_text().replace("[{metric: loss, goal: minimize}]", three))
        # Trial 2 is beaten by 1 in all three; 0 has the least memory.
        rows = "0.1,1,fast,3,0.1,1\n0.2,2,fast,1,0.9,5\n0.3,3,fast,2,0.8,6\n"
        (tmp_path / "t.csv").write_text(f"param.x,param.n,param.mode,loss,score,memory\n{rows}")
        assert sweep("init", str(space_file)).status == 0
        assert sweep("import", "t.csv").status == 0
        document = json.loads(sweep("pareto", "--format", "json").out)
        assert (document["x"], document["y"]) == ("score", "loss")  # no measure of compute was imported
        assert document["objectives"]["front"] == [1, 0]
        assert document["objectives"]["metrics"][1] == {"metric": "score", "goal": "maximize"}
        assert "2 of 3 trials are on the front in all 3 objectives" in sweep("pareto").out
        alone = sweep("pareto", "--x", "memory", "--y", "loss", "--format", "json")
        assert "objectives" not in json.loads(alone.out)

    def test_a_hypervolume_beyond_all_numbers_is_infinite(self, sweep, space_file, tmp_path):
        rows = "0.1,1,fast,1e300,1e18,2\n0.2,2,fast,2,2e18,1\n0.3,3,fast,1.5,3e18,3\n"
        (tmp_path / "t.csv").write_text(f"param.x,param.n,param.mode,loss,flops,memory\n{rows}")
        three = "[{metric: loss}, {metric: flops}, {metric: memory}]"
        space_file.write_text(space_file.read_text().replace("[{metric: loss, goal: minimize}]", three))
        assert sweep("init", str(space_file)).status == 0
        assert sweep("import", "t.csv").status == 0
        ran = sweep("pareto")
        assert (ran.status, ran.err) == (0, "")
        assert "are on the front in all 3 objectives; hypervolume inf within (1.100e+300, " in ran.out
        objectives = json.loads(sweep("pareto", "--format", "json").out)["objectives"]
        assert (objectives["hypervolume"], objectives["reference"][0]) == (None, pytest.approx(1.1e300))

    def test_with_chances_a_hypervolume_of_two_columns_may_be_infinite(self, sweep, tmp_path):
        (tmp_path / "t.csv").write_text("cost,loss\n1000,1e308\n2000,3\n100,4\n")
        ran = sweep("pareto", "--table", "t.csv", "--x", "cost", "--y", "loss", "--chances")
        assert (ran.status, ran.err) == (0, "")
        assert "hypervolume inf within the reference point (2190, 1.100e+308)" in ran.out

    def test_fronts_leave_out_what_is_outside_of_the_constraints(self, sweep, space_file, tmp_path):
        space_file.write_text(space_file.read_text() + 'outcome_constraints: ["memory <= 4"]\n')
        rows = "0.1,1,fast,3,1,20\n0.2,2,fast,1,5,30\n0.3,3,fast,2,2,30\n"  # the best takes too much memory
        (tmp_path / "t.csv").write_text(f"param.x,param.n,param.mode,loss,memory,seconds.all\n{rows}")
        assert sweep("init", str(space_file)).status == 0
        assert sweep("import", "t.csv").status == 0
        asked = ("pareto", "--x", "seconds.all", "--y", "loss")
        assert json.loads(sweep(*asked, "--format", "json").out)["front"] == [0, 2]
        shown = sweep(*asked).out
        assert "2 of 2 trials are on the front" in shown
        assert "left out: 1 trial outside of the outcome constraints" in shown
        assert sweep("export", "out.csv").status == sweep("export", "out.json").status == 0
        for style in ("csv", "json"):
            (tmp_path / f"trials.{style}").write_text(sweep("trials", "--format", style).out)
            for name in ("out", "trials"):
                asked = ("pareto", "--table", f"{name}.{style}", "--x", "seconds.all", "--y", "loss")
                assert json.loads(sweep(*asked, "--format", "json").out)["front"] == [0, 2]

    @pytest.mark.parametrize(
        ("argv", "expected"),
        [
            (["--table", "t.csv", "--x", "a", "--compute", "usd", "--y", "b"], "give one of them"),
            (["--table", "t.csv", "--compute", "hours", "--y", "loss"], "the measures are"),
            (["--table", "t.csv", "--x", "cost", "--y", "loss", "--budget", "3"], "4 different amounts"),
            (["--table", "t.csv", "--x", "cots", "--y", "loss"], "cost"),
            (["--table", "none.csv", "--x", "a", "--y", "b"], "no such file"),
            (["--table", "t.csv"], "--table needs --x COLUMN and --y COLUMN"),
            (["--table", "t.csv", "--x", "cost", "--y", "loss", "--baseline", "nan"], "finite"),
        ],
        ids=["two-names", "no-measure", "no-curve", "misspelt-column", "no-file", "no-axes", "nan-baseline"],
    )
    def test_wrong_input_is_one_line_and_status_2(self, sweep, tmp_path, argv, expected):
        (tmp_path / "t.csv").write_text("cost,loss\n1,3\n")
        ran = sweep("pareto", *argv)
        assert (ran.status, ran.err.count("\n")) == (2, 1)
        assert expected in ran.err


class TestExportAndReport:
    @pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
    def test_every_format_holds_the_same_trials(self, sweep, finished, tmp_path, suffix):
        from analysis.table import read

        assert sweep("export", f"t.{suffix}").status == 0
        table = read(tmp_path / f"t.{suffix}")
        assert list(table["trial"]) == list(range(5))
        expected = [r.metrics["loss"] for r in Experiment.open(LocalStore(finished)).trials()]
        assert list(table["loss"]) == pytest.approx(expected)
        assert set(table["param.mode"]) == {"fast"}

    def test_losses_of_sequences_in_report_and_export(self, sweep, space_file, tmp_path):
        url = sweep("init", str(space_file)).out.strip()
        (tmp_path / "t.csv").write_text(
            "param.x,param.n,param.mode,loss,loss_sem,effective_steps\n"
            "0.1,1,fast,3,0.1,10\n0.2,2,fast,2,0.1,20\n"
        )
        assert sweep("import", "t.csv").status == 0
        store = LocalStore(url)
        losses = {"final": [3.0, 3.5], "teacher": [2.0, 2.25]}
        for record in Experiment.open(store).trials():
            key = f"runs/{record.trial:06d}/attempt-{record.attempt}/held_out.json"
            store.create(key, json.dumps({"schema": 1, "losses": losses}).encode())
        assert sweep("export", "plain.json").status == 0
        assert "held_out" not in json.loads((tmp_path / "plain.json").read_text())
        assert sweep("export", "paired.json", "--held-out").status == 0
        held_out = json.loads((tmp_path / "paired.json").read_text())["held_out"]
        assert held_out == {"0": losses, "1": losses}
        assert "%: in how many of" in sweep("pareto", "--chances").out
        ran = sweep("export", "paired.csv", "--held-out")
        assert (ran.status, ran.err.count("\n")) == (2, 1)
        assert "only a .json TABLE" in ran.err
        assert sweep("export", "--held-out", "--optuna", "journal.log").status == 2

    @pytest.mark.timeout(300)  # Ax and Optuna are imported
    def test_other_tools_get_files_of_their_own(self, sweep, finished, tmp_path):
        for option in ("--optuna", "--ax"):
            refused = sweep("export", "t.csv", option, "nowhere/file")
            assert (refused.status, "there is no folder 'nowhere'" in refused.err) == (2, True)
            assert not Path("t.csv").exists()
        ran = sweep("export", "t.csv", "--optuna", "journal.log", "--ax", "ax.json")
        assert ran.status == 0
        assert ran.out.splitlines() == ["t.csv: 5 trials", "journal.log: 5 trials", "ax.json: 5 trials"]
        assert json.loads((tmp_path / "ax.json").read_text())
        ran = sweep("export")
        assert (ran.status, ran.err.count("\n")) == (2, 1)
        assert "--optuna JOURNAL" in ran.err

    def test_export_refuses_other_suffixes_and_paths(self, sweep, finished):
        assert sweep("export", "t.xlsx").status == 2
        for command in (("export", "no/such/folder/t.csv"), ("report", "--out", "no/such/folder/r.html")):
            ran = sweep(*command)
            assert (ran.status, ran.err.count("\n")) == (2, 1)
            assert "there is no folder 'no/such/folder'" in ran.err

    def test_the_report_is_one_file_that_names_the_best_trial(self, sweep, finished, tmp_path):
        ran = sweep("report", "--out", "page.pdf")
        assert (ran.status, "ends in .html" in ran.err, Path("page.pdf").exists()) == (2, True, False)
        assert sweep("report", "--out", "page.html", "--no-surrogate").status == 0
        page = (tmp_path / "page.html").read_text()
        assert "made without the surrogate" in page
        best = json.loads(sweep("best", "--format", "json").out)
        assert page.startswith("<!DOCTYPE html>") or page.startswith("<!doctype html>")
        assert f"Best trial: {best['trial']}<" in page
        shown = page.split('id="next"')[1].split("</section>")[0]
        words = ("extend", "--run-cap", "+5"), ("export", "trials.csv")
        assert [f"<code>sweep {' '.join(each)} --storage " in shown for each in words] == [True, True]
        assert "--seed-name NAME" in shown
        assert "<code>sweep confirm" not in shown  # without a seed a repeat would be the same run
        assert "<code>sweep worker" not in shown

    @pytest.mark.slow
    @pytest.mark.timeout(600)  # Ax fits once
    def test_the_report_says_what_mattered_and_what_it_cost(self, sweep, finished, tmp_path):
        assert sweep("report", "--out", "page.html", "--device", "RunPod A100").status == 0
        page = (tmp_path / "page.html").read_text()
        assert 'id="sensitivity-0"' in page
        assert "RunPod A100 at $1.19 an hour" in page

    def test_status_tells_dollars_where_there_are_any(self, sweep, finished):
        assert "$" not in sweep("status").out
        expected = sweep("status", "--device", "v6e-4", "--spot").out
        assert (
            "cost    $0.00 so far, about $0.00 when all 5 are done, GCP v6e-4 at $1.70 an hour spot"
            in expected
        )
        assert list(json.loads(sweep("status", "--device", "v6e-4", "--format", "json").out)) == [
            *("url", "name", "run_cap", "trials", "best", "state", "why", "confirmation"),
        ]

    @pytest.mark.parametrize("command", ["status", "pareto", "report"])
    def test_a_price_that_is_none_is_one_line_and_status_2(self, sweep, finished, command):
        for argv, word in ((["--spot"], "need --device"), (["--device", "abacus"], "no device 'abacus'")):
            ran = sweep(command, *argv)
            assert (ran.status, ran.err.count("\n")) == (2, 1)
            assert word in ran.err

    def test_loss_against_dollars(self, sweep, finished):
        argv = ("pareto", "--compute", "usd", "--format", "json")
        assert sweep(*argv).status == 2
        document = json.loads(sweep(*argv, "--device", "RunPod A100").out)
        assert document["x"] == "usd"
        assert len(document["points"]) == 5

    def test_a_parquet_column_of_mixed_types_is_written(self, space, tmp_path):
        mixed = [
            trial.Trial(
                trial=i, status="completed", parameters={"x": value}, generator="sobol", metrics={"m": m}
            )
            for i, (value, m) in enumerate([("adamw", 1), (3, 2.5), (True, None)])
        ]
        export.write(tmp_path / "t.parquet", space, "url", mixed)
        table = pd.read_parquet(tmp_path / "t.parquet")
        assert list(table["param.x"]) == ["adamw", "3", "True"]
        assert list(table["m"][:2]) == [1.0, 2.5]


class TestWhichSweep:
    def test_name_storage_and_environment(self, sweep, space_file, monkeypatch, tmp_path):
        sweep("init", str(space_file))
        space_file.write_text(space_file.read_text().replace("name: toy", "name: other"))
        sweep("init", str(space_file))

        def name(*argv: str) -> str:
            return json.loads(sweep("status", "--format", "json", *argv).out)["name"]

        assert name() == "other"  # the last one made
        assert name("--name", "toy") == "toy"
        assert name("--storage", "./sweep-store/toy") == "toy"
        assert name("--storage", f"file://{tmp_path}/sweep-store", "--name", "toy") == "toy"
        monkeypatch.setenv("SWEEP_NAME", "toy")
        assert name() == "toy"
        assert name("--name", "other") == "other"
        monkeypatch.setenv("SWEEP_STORAGE", f"{tmp_path}/sweep-store/other")
        assert name() == "other"

    def test_two_sweeps_and_no_hint_asks_which(self, sweep, space_file):
        for new in ("a", "b"):
            space_file.write_text(space_file.read_text().replace("name: toy", f"name: {new}"))
            space_file.write_text(space_file.read_text().replace("name: a", f"name: {new}"))
            sweep("init", str(space_file))
        Path("sweep-store/.latest").unlink()
        ran = sweep("status")
        assert ran.status == 2
        assert "--name with one of a, b" in ran.err

    @pytest.mark.parametrize(
        ("argv", "expected"),
        [
            (["--storage", "ftp://host/x"], "unknown storage ftp://"),
            (["--name", "../x"], "one folder's name"),
            (["--name", "nothing"], "no sweep here"),
            (["--storage", "./sweep-store/toy", "--name", "other"], "leave out --name"),
            (["--storage", ""], "--storage is empty"),
            (["--name", ""], "--name is empty"),
            (["--storage", "file://relative/folder"], "three slashes"),
            (["--storage", "x" * 300], "file name too long"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, sweep, finished, argv, expected):
        ran = sweep("status", *argv)
        assert (ran.status, ran.err.count("\n")) == (2, 1)
        assert expected in ran.err


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["status"],
        ["status", "--format", "json"],
        ["trials"],
        ["best"],
        ["trials", "--format", "csv"],
        ["export", "trials.csv"],
        ["export", "trials.json", "--held-out"],
    ],
    ids=" ".join,
)
def test_reading_commands_import_neither_torch_nor_ax(finished, argv, tmp_path):
    code = (
        "import sys\n"
        f"sys.argv = ['sweep', *{argv!r}]\n"
        "from sweeps.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as e:\n    assert not e.code, e.code\n"
        "heavy = {'torch', 'ax', 'botorch', 'transformers', 'pandas', 'hydra', 'scipy', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_locale_that_lacks_a_character_leaves_documents_whole(sweep, space_file, encoding):
    space_file.write_text(space_file.read_text().replace("{value: fast}", "{value: é→}"), encoding="utf-8")
    url = sweep("init", str(space_file)).out.strip()
    Experiment.open(LocalStore(url)).ask("w")
    environment = {**os.environ, "PYTHONIOENCODING": encoding}

    def printed(style: str) -> str:
        command = [sys.executable, "-m", "sweeps", "trials", "--format", style, "--storage", url]
        return subprocess.run(command, env=environment, capture_output=True, check=True).stdout.decode()

    (record,) = json.loads(printed("json"))
    assert record["parameters"]["mode"] == "é→"
    (row,) = rows(printed("csv"))
    assert row["param.mode"] == "é→"


def test_every_command_has_help_and_its_line_in_the_overview(sweep):
    from sweeps.cli import cli

    overview = sweep("--help").out
    commands = cli.list_commands(click.Context(cli))
    assert len(commands) >= 18
    for command in commands:
        assert f"\n  {command} " in overview
        ran = sweep(command, "--help")
        assert ran.status == 0
        assert ran.out.startswith(f"Usage: sweep {command}")


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["no-such-command"], "sweep"),
        (["status", "--no-such-option"], "sweep status"),
        (["worker", "--max-trials", "0"], "sweep worker"),
        (["init"], "sweep init"),
        (["pool", "scale", "some"], "sweep pool scale"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_status_2(sweep, argv, command):
    ran = sweep(*argv)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("sweep: error: ")
    assert ran.err.endswith(f"; see `{command} --help`\n")
    assert ran.err.count("\n") == 1
    assert " range;" not in ran.err  # not: 'some' is not a valid integer range
