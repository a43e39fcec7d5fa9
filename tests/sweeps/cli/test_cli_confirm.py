"""`sweep confirm`: the answer to the letter, what it writes, and one line for each mistake."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from pathlib import Path

import pytest

import sweeps
from analysis.report.report import render
from analysis.table import TrialsTable
from sweeps.errors import InputError
from sweeps.experiment import Experiment
from sweeps.export.table import best_confirmed
from sweeps.operations.report import report_document
from sweeps.search.confirm.plan import KEY, stored_plan
from sweeps.search.confirm.posterior import Estimate
from sweeps.storage.local import LocalStore
from sweeps.trials import control, lifecycle

SPACE = """\
name: noisy
objectives: [{metric: loss, goal: minimize}]
program: {function: "objectives_for_tests:noisy"}
parameters:
  x: {values: [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]}
  seed: {value: 0}
search: {method: grid}
"""
OBSERVED = "surrogate failed"


@pytest.fixture
def make(sweep, tmp_path: Path, built_once, monkeypatch: pytest.MonkeyPatch):
    """Return a function that makes a sweep, runs it and returns its URL; by observed values, as Ax is slow."""
    monkeypatch.setattr("sweeps.search.confirm.finalists._predictions", lambda space, records: ({}, OBSERVED))

    def make(text: str = SPACE, *, run: bool = True) -> str:
        file = tmp_path / "space.yaml"
        file.write_text(text)

        def build() -> str:
            url = sweep("init", str(file)).out.strip()
            if run:
                assert sweep("worker").status == 0
            return url

        return built_once(f"confirm {run} {hashlib.sha256(text.encode()).hexdigest()}", build)

    return make


@pytest.fixture
def searched(make) -> str:
    return make()


ANSWER = """\
trial 3: test_loss 3.0712 (95 %: 3.0431 to 3.0994), confirmed by 4 fresh seeds on the test text
  the best of 3 with a chance of 93 %
  its first loss was 3.0159, and is 3.0299 over fresh seeds: selection made it look 0.014 better

trial   first    loss  best %  seeds
    3  3.0159  3.0299      93      4
    4  3.0266  3.0401       7      4
    2  3.0459  3.0502       0      4

python -c "from objectives_for_tests import noisy; print(noisy({'x': 0.3, 'seed': 0}))"
"""
ESTIMATE = Estimate(
    winner=3,
    mean=3.07123,
    low=3.0431,
    high=3.09941,
    on_test=True,
    chances={3: 0.931, 4: 0.0652, 2: 0.0038},
    means={3: 3.0299, 4: 3.0401, 2: 3.0502},
    luck=-0.014,
)


class TestAnswer:
    def test_the_answer_is_printed_to_the_letter(self, sweep, searched, monkeypatch):
        monkeypatch.setattr("sweeps.search.confirm.posterior.estimate", lambda *given, level: ESTIMATE)
        ran = sweep("confirm", "--top", "3", "--seeds", "4")
        assert ran.status == 0
        assert [line.rstrip() for line in ran.out.splitlines()] == ANSWER.splitlines()
        assert OBSERVED in ran.err
        assert "trials 3, 4, 2 by loss: at most 12 runs" in ran.err
        assert sweep("confirm").out == ran.out, "once finished, it is printed at once"
        assert len(Experiment.open(LocalStore(searched)).trials()) == 6 + 12

    def test_the_document_for_programs(self, sweep, searched):
        document = json.loads(sweep("confirm", "--top", "2", "--seeds", "3", "--format", "json").out)
        assert list(document) == [
            "metric", "finished", "round", "rounds", "racing", "why", "winner", "finalists",
        ]  # fmt: skip
        assert (document["finished"], document["rounds"]) == (True, 3)
        winner, first = document["winner"], document["finalists"][0]
        assert winner["trial"] == first["trial"]
        assert winner["low"] < winner["mean"] < winner["high"]
        assert winner["on_test"] is True
        assert winner["luck"] == pytest.approx(first["selection"] - first["first"])
        assert sum(row["chance"] for row in document["finalists"]) == pytest.approx(1)
        rows = list(csv.DictReader(io.StringIO(sweep("confirm", "--format", "csv").out)))
        assert [int(row["trial"]) for row in rows] == [row["trial"] for row in document["finalists"]]

    def test_the_report_names_the_winner_of_the_race(self, sweep, searched, tmp_path):
        document = json.loads(sweep("confirm", "--top", "2", "--seeds", "3", "--format", "json").out)
        winner = document["winner"]["trial"]
        assert sweep("report", "--out", "page.html", "--no-surrogate").status == 0
        page = (tmp_path / "page.html").read_text()
        assert f"Confirmed winner: trial {winner}" in page
        assert "mean of 3 fresh seeds" in page
        points = json.loads(sweep("pareto", "--x", "seconds", "--format", "json").out)["points"]
        assert [p["trial"] for p in points] == list(range(6)), "repeats are no points of their own"
        assert {p["confirmed_by_seeds"] for p in points} == {0, 3}

    def test_the_other_commands_show_what_is_confirmed(self, sweep, searched):
        unconfirmed = sweep("best")
        assert "`sweep confirm`" in unconfirmed.err
        assert sweep("status").out.splitlines()[-1] == "best    trial 3: loss 3.0159, in one run"
        assert json.loads(sweep("best", "--format", "json").out)["confirmed"] is None
        assert json.loads(sweep("status", "--format", "json").out)["confirmation"] is None
        assert "confirmation" not in sweep("trials").out

        answer = sweep("confirm", "--top", "2", "--seeds", "3").out.splitlines()
        best = sweep("best")
        assert best.out.splitlines() == [*answer[:3], answer[-1]]
        assert best.err == ""
        document = json.loads(sweep("best", "--format", "json").out)
        assert document["confirmed"]["trial"] == document["trial"]
        assert document["gain"] is document["model"] is None
        assert document["parameters"]["seed"] == 0, "the winner as the search made it, not a repeat"
        status = sweep("status").out
        assert "trials  6 of 6 and 6 to confirm the best: 12 completed" in status
        assert "confirm finished: trial " in status
        assert json.loads(sweep("status", "--format", "json").out)["confirmation"]["finished"]
        trials = sweep("trials").out
        assert "winner" in trials
        assert "repeats 3" in trials

    def test_a_later_better_number_is_pointed_out(self, sweep, searched):
        assert sweep("confirm", "--top", "2", "--seeds", "2").status == 0
        table = Path(searched).parent / "more.csv"
        table.write_text("param.x,loss\n0.3,2.5\n")
        assert sweep("import", str(table)).status == 0
        err = sweep("best").err
        assert "trial 10: loss 2.5" in err
        assert "`sweep confirm --again`" in err

    def test_repeats_that_are_all_alike_are_doubted(self, sweep, make):
        make(SPACE.replace(":noisy", ":paraboloid").replace("  seed: {value: 0}", "  n: {value: 1}"))
        ran = sweep("confirm", "--top", "2", "--seeds", "3", "--seed-name", "seed")
        assert ran.status == 0
        assert "repeats of trial 3" in ran.err
        assert "test_loss" in ran.err

    def test_finalist_that_fails_leaves(self, sweep, make):
        make(SPACE.replace(":noisy", ":diverges_by_seed"))
        ran = sweep("confirm", "--top", "3", "--seeds", "3")
        assert ran.status == 0
        assert ran.out.startswith("trial 3: test_loss")
        (line,) = [line for line in ran.out.splitlines() if line.strip().startswith("2 ")]
        assert line.split() == ["2", "3.0459", "0", "0", "failed", "with", "seed", "97880", "(trial", "8)"]

    def test_when_no_repeat_has_a_result_there_is_no_winner(self, sweep, make):
        make(SPACE.replace(":noisy", ":diverges_by_seed").replace("0.0, 0.1, 0.2, 0.3, 0.4, 0.5", "0.1, 0.2"))
        ran = sweep("confirm", "--seeds", "3")
        assert (ran.status, ran.out) == (1, "")
        assert "without a winner" in ran.err
        assert sweep("best").out.startswith("trial 1: loss"), "the best observed one"
        assert json.loads(sweep("confirm", "--format", "json").out)["winner"] is None


class TestPlan:
    def test_planning_alone_leaves_the_runs_to_the_workers(self, sweep, searched):
        ran = sweep("confirm", "--top", "2", "--seeds", "2", "--plan")
        assert (ran.status, ran.out) == (
            0, "confirm  round 2 of 2: 2 of 2 trials can still win; 0 running, 4 to come\n",
        )  # fmt: skip
        assert "confirm round 2 of 2: 2 of 2 trials" in sweep("status").out
        worker = sweep("worker")
        assert worker.status == 0
        assert worker.err.count("(confirm)") == 4
        assert sweep("confirm").out.startswith("trial ")

    def test_sweep_of_a_script_is_only_planned_here(self, sweep, tmp_path):
        space = {
            "name": "mine",
            "objectives": [{"metric": "loss"}],
            "parameters": {"x": {"values": [0.1, 0.2]}, "seed": {"value": 0}},
            "search": {"method": "grid"},
        }

        def loss(parameters):
            return parameters["x"] + parameters["seed"] % 1000 / 1e6

        created = sweeps.create(space, storage=tmp_path)
        created.run(loss)
        before = sorted(entry.key for entry in LocalStore(created.url).list(""))
        ran = sweep("confirm", "--top", "2", "--seeds", "2", "--storage", created.url)
        assert ran.status == 2
        assert "`sweep.confirm(function)`" in ran.err
        assert sorted(entry.key for entry in LocalStore(created.url).list("")) == before
        assert sweep("confirm", "--top", "2", "--seeds", "2", "--plan", "--storage", created.url).status == 0
        assert created.run(loss) == {"completed": 4}

    def test_a_searched_seed_may_be_written_large(self, sweep, make):
        url = make(SPACE.replace("seed:", "SEED: {values: [0, 1]}\n  seed:"))
        assert sweep("confirm", "--seed-name", "SEED", "--top", "2", "--plan").status == 0
        assert stored_plan(LocalStore(url))[0].seed_name == "SEED"

    def test_it_stays_within_the_budget(self, sweep, searched):
        ran = sweep("confirm", "--top", "3", "--budget", "7")
        assert (ran.status, ran.err.count("(confirm)")) == (0, 6)
        assert "budget of 7" in ran.err

    def test_seeds_are_fresh_and_common(self, sweep, searched):
        sweep("confirm", "--top", "2", "--seeds", "3", "--plan")
        store = LocalStore(searched)
        first = stored_plan(store)[0]
        assert len(set(first.seeds)) == 3
        assert 0 not in first.seeds
        assert sweep("worker").status == 0
        assert sweep("confirm", "--top", "2", "--seeds", "3", "--again", "--plan").status == 0
        second = stored_plan(store)[0]
        assert not set(first.seeds) & set(second.seeds)

    def test_a_new_plan_abandons_the_repeats_of_the_former_one_that_wait(self, sweep, searched):
        store = LocalStore(searched)
        experiment = Experiment.open(store)
        assert sweep("confirm", "--top", "2", "--seeds", "3", "--plan").status == 0
        waits, runs = (experiment.ask("w", confirming=True).trial for _ in range(2))
        experiment.apply(waits, lifecycle.Release(worker="w", attempt=1, detail="SIGINT"))
        planned = sweep("confirm", "--top", "2", "--seeds", "3", "--again", "--plan")
        assert "abandoned 1 repeat of the former plan that waited for a worker" in planned.err
        assert [experiment.trial(at).status for at in (waits, runs)] == ["abandoned", "running"]
        repeat = experiment.ask("w", confirming=True)
        assert repeat in stored_plan(store)[0].repeats(experiment.trials()).values()

    def test_a_failure_in_a_former_confirmation_refutes_nothing(self, sweep, searched):
        """Both finalists crashed in the first one; in the second all repeats have a result."""
        experiment = Experiment.open(LocalStore(searched))
        assert sweep("confirm", "--top", "2", "--seeds", "3", "--plan").status == 0
        for record in [experiment.ask("w", confirming=True) for _ in range(2)]:
            failed = lifecycle.Fail(worker="w", attempt=1, error="a mistake", failure="crashed")
            experiment.apply(record.trial, failed)
        again = sweep("confirm", "--top", "2", "--seeds", "3", "--again", "--format", "json")
        winner = json.loads(again.out)["winner"]
        assert json.loads(sweep("best", "--format", "json").out)["confirmed"]["trial"] == winner["trial"]
        records = experiment.trials()
        document = report_document(experiment, records)
        table = TrialsTable.from_document(document).configurations
        assert len(table.repeats.runs[winner["trial"]]) == winner["seeds"] == 3
        assert "Confirmed winner: trial" in render(document)
        assert best_confirmed(experiment.space, records) is not None

    def test_confirmation_does_not_count_towards_the_run_cap(self, sweep, make):
        random = SPACE.replace("method: grid", "method: random, sobol: 4") + "run_cap: 6\n"
        url = make(random, run=False)
        assert sweep("worker", "--max-trials", "4").status == 0
        assert sweep("confirm", "--top", "2", "--seeds", "2").status == 0
        assert sweep("worker").status == 0
        kinds = [record.generator for record in Experiment.open(LocalStore(url)).trials()]
        assert kinds.count("confirm") == 4
        assert len(kinds) == 10

    def test_confirm_runs_no_trial_of_the_search(self, sweep, make):
        make(SPACE.replace("method: grid", "method: random, sobol: 4") + "run_cap: 6\n", run=False)
        assert sweep("worker", "--max-trials", "3").status == 0
        pending = Experiment.open(LocalStore("sweep-store/noisy"))
        record = pending.ask("w")
        pending.apply(record.trial, lifecycle.Release(worker="w", attempt=1, detail="gone"))
        assert sweep("confirm", "--top", "2", "--seeds", "2").status == 0
        assert [r.status for r in pending.trials() if r.generator != "confirm"].count("pending") == 1

    def test_the_metric_of_a_several_objectives_sweep(self, sweep, make):
        two = SPACE.replace("minimize}]", "minimize}, {metric: effective_steps, goal: minimize}]")
        make(two)
        ran = sweep("confirm", "--plan", "--top", "2")
        assert "--max METRIC=VALUE" in ran.err
        ran = sweep("confirm", "--plan", "--again", "--top", "2", "--max", "effective_steps=200")
        assert "trials 2, 1 by loss" in ran.err
        ran = sweep("confirm", "--plan", "--again", "--top", "2", "--objective", "effective_steps")
        assert "trials 0, 1 by effective_steps" in ran.err
        assert "in one run" in sweep("status").out


class TestTrainer:
    """The trainer's repeats also measure the test text; it checks the plan before anything is written."""

    TEXT = """\
name: trained
objectives: [{metric: final_loss, goal: minimize}]
program: {trainer: {overrides: [model=tiny]}}
parameters: {stage2.optimizer.lr: {values: [0.001, 0.002, 0.003]}}
search: {method: grid}
"""

    @pytest.fixture
    def url(self, make, monkeypatch) -> str:
        monkeypatch.setattr("sweeps.programs.trainer.TrainerProgram.complete", lambda self: self.space)
        url = make(self.TEXT, run=False)
        experiment = Experiment.open(LocalStore(url))
        for loss in (3.1, 3.0, 3.2):
            record = experiment.ask("w")
            metrics = {"final_loss": loss}
            experiment.apply(record.trial, lifecycle.Complete(worker="w", attempt=1, metrics=metrics))
        return url

    def test_its_repeats_measure_the_test_text(self, sweep, url, monkeypatch):
        checked = []
        monkeypatch.setattr(
            "sweeps.programs.trainer.TrainerProgram.check", lambda self, probes: checked.extend(probes)
        )
        assert sweep("confirm", "--top", "2", "--plan").status == 0
        plan = stored_plan(LocalStore(url))[0]
        assert (plan.seed_name, plan.fixed, plan.test_metric) == ("seed", {"eval.test": True}, "test_loss")
        assert checked == [
            {"stage2.optimizer.lr": lr, "seed": plan.seeds[0], "eval.test": True} for lr in (0.002, 0.001)
        ]

    def test_a_key_that_the_trainer_refuses_is_one_line(self, sweep, url, monkeypatch):
        def refuse(space, probes):
            raise InputError("no key `no.seed`")

        monkeypatch.setattr("sweeps.programs.trainer.TrainerProgram.check", refuse)
        ran = sweep("confirm", "--seed-name", "no.seed")
        assert (ran.status, ran.out) == (2, "")
        assert "no key `no.seed`" in ran.err.splitlines()[-1]
        assert not Path(url, KEY).exists()


class TestMistakes:
    def refused(self, ran, message: str) -> None:
        assert (ran.status, ran.out) == (2, "")
        assert message in ran.err
        assert ran.err.count("\n") == 1
        assert ran.err.startswith("sweep: error: ")

    def test_a_sweep_with_nothing_completed(self, sweep, make):
        make(run=False)
        self.refused(sweep("confirm"), "no trial is completed")

    def test_a_sweep_that_is_stopped(self, sweep, searched):
        assert sweep("stop").status == 0
        self.refused(sweep("confirm"), "`sweep resume`")
        assert not Path(searched, KEY).exists()
        control.write(LocalStore(searched), "running", "test")
        assert sweep("confirm", "--top", "2", "--seeds", "2", "--plan").status == 0
        assert sweep("stop").status == 0
        self.refused(sweep("confirm"), "is stopped")

    def test_a_program_without_a_seed(self, sweep, make):
        make(SPACE.replace(":noisy", ":paraboloid").replace("  seed: {value: 0}", "  n: {value: 1}"))
        self.refused(sweep("confirm"), "no parameter `seed`")

    def test_a_budget_that_is_spent(self, sweep, make):
        make(SPACE + "budget: {effective_steps: 1400}\n")
        self.refused(sweep("confirm"), "1500 of 1400")

    def test_other_options_than_it_was_planned_with(self, sweep, searched):
        assert sweep("confirm", "--top", "2", "--seeds", "2", "--plan").status == 0
        assert sweep("confirm", "--top", "2", "--plan").status == 0
        for option, value in (("--seeds", "3"), ("--budget", "9"), ("--max", "a=1"), ("--seed-name", "s")):
            self.refused(sweep("confirm", option, value), f"{option} {value}: ")

    def test_a_damaged_plan_stops_workers_with_its_place(self, sweep, searched):
        Path(searched, KEY).write_text("{")
        for command in ("confirm", "status", "best", "trials", "worker"):
            ran = sweep(command)
            assert ran.status == 1
            assert f"{KEY}: damaged record" in ran.err
