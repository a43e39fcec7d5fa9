"""`init`, `worker`, `ask`, `tell`: a sweep from its file to its results, and every error in one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sweeps.experiment import Experiment
from sweeps.storage.local import LocalStore


def one_line(err: str) -> bool:
    return err.startswith("sweep: error: ") and err.count("\n") == 1


class TestInit:
    def test_it_prints_the_url_and_nothing_else_on_stdout(self, sweep, space_file):
        ran = sweep("init", str(space_file))
        assert (ran.status, ran.out) == (0, "./sweep-store/toy\n")
        assert "sweep worker --storage ./sweep-store/toy" in ran.err
        assert Experiment.open(LocalStore("sweep-store/toy")).space.name == "toy"

    def test_a_second_init_is_refused_and_skip_if_exists_is_not(self, sweep, space_file):
        sweep("init", str(space_file))
        again = sweep("init", str(space_file))
        assert again.status == 2
        assert one_line(again.err)
        assert sweep("init", str(space_file), "--skip-if-exists").status == 0

    def test_skip_if_exists_names_what_differs(self, sweep, space_file):
        sweep("init", str(space_file))
        space_file.write_text(space_file.read_text().replace("run_cap: 5", "run_cap: 6\nbrake: null"))
        ran = sweep("init", str(space_file), "--skip-if-exists")
        assert ran.status == 2
        assert one_line(ran.err)
        assert "brake: " in ran.err
        assert Experiment.open(LocalStore("sweep-store/toy")).space.run_cap == 5

    def test_skip_if_exists_extends_and_never_lowers(self, sweep, space_file):
        sweep("init", str(space_file))
        text = space_file.read_text()
        space_file.write_text(text.replace("run_cap: 5", "run_cap: 6"))
        ran = sweep("init", str(space_file), "--skip-if-exists")
        assert (ran.status, ran.out) == (0, "./sweep-store/toy\n")
        assert "extended: run_cap 5 → 6" in ran.err
        space_file.write_text(text.replace("run_cap: 5", "run_cap: 4"))
        ran = sweep("init", str(space_file), "--skip-if-exists")
        assert ran.status == 2
        assert "sweep extend --run-cap 4 --storage" in ran.err
        assert Experiment.open(LocalStore("sweep-store/toy")).space.run_cap == 6

    def test_the_command_that_lowers_a_limit_has_all_of_its_digits(self, sweep, space_file):
        text = space_file.read_text()
        space_file.write_text(f"{text}budget: {{effective_steps: 12345679}}\n")
        sweep("init", str(space_file))
        space_file.write_text(f"{text}budget: {{effective_steps: 12345678}}\n")
        ran = sweep("init", str(space_file), "--skip-if-exists")
        assert "effective_steps is 12345679 in the sweep here and 12345678 in these settings" in ran.err
        command = ran.err.rpartition("sweep: error: ")[2].split("`")[1].split()
        assert sweep(*command[1:]).status == 0
        assert Experiment.open(LocalStore("sweep-store/toy")).space.budget.effective_steps == 12345678

    def test_wandb_sweep_file_is_translated(self, sweep, tmp_path, monkeypatch):
        wandb = tmp_path / "sweep.yaml"
        wandb.write_text(
            "program: train.py\nmethod: bayes\nmetric: {name: loss, goal: minimize}\nrun_cap: 5\n"
            "parameters: {lr: {distribution: q_uniform, min: 0.1, max: 0.9, q: 0.2}}\n"
        )
        (tmp_path / "train.py").write_text("")
        made = tmp_path / "space.yaml"
        refused = sweep("init", str(wandb))
        assert (refused.status, "sweep init --from-wandb" in refused.err) == (2, True)
        ran = sweep("init", "--from-wandb", str(wandb), str(made))
        assert (ran.status, ran.out) == (0, "")
        assert f"sweep init {made}" in ran.err
        assert not Path("sweep-store").exists()
        again = sweep("init", "--from-wandb", str(wandb), str(made))
        assert (again.status, one_line(again.err), str(made) in again.err) == (2, True, True)
        monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")  # which has `python`
        made.write_text(made.read_text().replace("train.py", str(tmp_path / "train.py")))
        assert sweep("init", str(made)).status == 0
        assert Experiment.open(LocalStore("sweep-store/sweep")).space.run_cap == 5

    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            (("name: toy", "nam: toy"), "space.yaml:1: nam: unknown key"),
            (("min: 0.0, max: 1.0", "min: 1.0, max: 0.0"), "space.yaml:5: parameters.x"),
            (("paraboloid", "parabloid"), "cannot be loaded"),
            (("run_cap: 5", "run_cap: .inf"), "space.yaml:9: run_cap"),
        ],
        ids=["misspelt-key", "reversed-bounds", "misspelt-function", "infinite-cap"],
    )
    def test_a_wrong_space_is_one_line_status_2_and_no_sweep(self, sweep, space_file, change, expected):
        space_file.write_text(space_file.read_text().replace(*change))
        ran = sweep("init", str(space_file))
        assert ran.status == 2
        assert one_line(ran.err)
        assert expected in ran.err
        assert not Path("sweep-store").exists()

    def test_a_misspelt_trainer_key_fails_before_any_compute(self, sweep, space_file):
        text = space_file.read_text().replace(
            'program: {function: "objectives_for_tests:paraboloid"}',
            "program: {trainer: {overrides: [model=tiny]}}",
        )
        space_file.write_text(text.replace("  x:", "  stage1_9.optimiser.lr:").replace("loss", "final_loss"))
        ran = sweep("init", str(space_file))
        assert ran.status == 2
        assert "did you mean 'stage1_9.optimizer.lr'" in ran.err
        assert not Path("sweep-store").exists()

    def test_the_trainers_stages_are_filled_in_and_said(self, sweep, space_file):
        text = space_file.read_text().replace(
            'program: {function: "objectives_for_tests:paraboloid"}', "program: {trainer: }"
        )
        text = text[: text.index("parameters:")].replace("loss", "final_loss")
        text += "search: {method: grid}\nparameters:\n  seed: {values: [0, 1]}\n  stage2.max_steps: {values: [60, 90]}\n"
        space_file.write_text(text)
        ran = sweep("init", str(space_file))
        assert (ran.status, ran.out) == (0, "./sweep-store/toy\n")
        said = "trials that agree up to the end of stage1_9 compute it once"
        lengths = "and those with other lengths of stage2 what comes before the decay"
        assert f"sweep: {said}, {lengths}; search: {{reuse: none}} switches that off\n" in ran.err
        space = Experiment.open(LocalStore("sweep-store/toy")).space
        assert [(stage.name, stage.cost) for stage in space.stages] == [
            ("stage1_9", "200"),
            ("stage2", "stage2.max_steps"),
        ]
        assert [stage.trunk and stage.trunk.every for stage in space.stages] == [None, 21]
        assert sweep("init", str(space_file), "--skip-if-exists").status == 0
        space_file.write_text(text.replace("name: toy", "name: apart").replace("grid", "grid, reuse: none"))
        ran = sweep("init", str(space_file))
        assert (ran.status, "sweep: trials" in ran.err) == (0, False)

    def test_a_searched_seed_gets_one_line_of_advice(self, sweep, space_file):
        text = space_file.read_text().replace("  mode: {value: fast}", "  seed: {min: 0, max: 99}")
        stages = "stages: [{name: a, parameters: [seed, x]}, {name: b, parameters: [n]}]\n"
        space_file.write_text(text + stages)
        ran = sweep("init", str(space_file))
        assert ran.status == 0
        advice = [line for line in ran.err.splitlines() if "`seed` is searched" in line]
        assert len(advice) == 1
        assert "`sweep confirm`" in advice[0]
        assert "compute it once" not in ran.err

    def test_a_missing_file_and_a_storage_that_is_a_file(self, sweep, space_file):
        assert "no-such.yaml" in sweep("init", "no-such.yaml").err
        ran = sweep("init", str(space_file), "--storage", str(space_file))
        assert (ran.status, one_line(ran.err)) == (2, True)
        assert "this is a file" in ran.err


class TestWorker:
    def test_it_works_the_sweep_that_was_initialised_last(self, sweep, space_file):
        sweep("init", str(space_file))
        ran = sweep("worker", "--max-trials", "2")
        assert ran.status == 0
        assert "2 completed" in ran.err
        assert [r.status for r in Experiment.open(LocalStore("sweep-store/toy")).trials()] == [
            "completed"
        ] * 2

    def test_only_failures_are_status_1(self, sweep, space_file):
        space_file.write_text(space_file.read_text().replace("paraboloid", "not_a_number"))
        sweep("init", str(space_file))
        ran = sweep("worker")
        assert ran.status == 1
        assert "not a finite number" in ran.err

    def test_nothing_to_do_is_status_0(self, sweep, finished):
        assert sweep("worker", "--storage", finished).status == 0

    def test_no_sweep_is_status_2_with_advice(self, sweep):
        ran = sweep("worker")
        assert (ran.status, one_line(ran.err)) == (2, True)
        assert "sweep init" in ran.err

    @pytest.mark.parametrize(
        "signum",
        [
            pytest.param(signal.SIGTERM, id="sigterm"),
            pytest.param(signal.SIGINT, id="ctrl-c", marks=pytest.mark.slow),
        ],
    )
    def test_a_signal_hands_the_trial_back_with_status_75(self, sweep, space_file, tmp_path, signum):
        command = json.dumps(["sh", "-c", "touch started; sleep 600", "${overrides}"])
        text = space_file.read_text().replace(
            'program: {function: "objectives_for_tests:paraboloid"}', f"program: {{command: {command}}}"
        )
        space_file.write_text(text + "baseline: {x: 0.5}\n")  # a first trial without Ax
        url = sweep("init", str(space_file)).out.strip()
        process = subprocess.Popen(
            [sys.executable, "-m", "sweeps", "worker", "--storage", url],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        deadline = time.monotonic() + 60
        while not (tmp_path / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signum)
        _, err = process.communicate(timeout=100)
        assert process.returncode == 75, err
        assert "handed back" in err
        assert "Traceback" not in err
        (record,) = Experiment.open(LocalStore(url)).trials()
        assert (record.status, record.attempt, record.history[0].reason) == ("pending", 1, "released")


class TestAskAndTell:
    def ask(self, sweep) -> dict:
        ran = sweep("ask", "--format", "json")
        assert ran.status == 0
        return json.loads(ran.out)

    def report(self, sweep, index: int, document) -> object:
        Path("r.json").write_text(json.dumps(document))
        return sweep("tell", str(index), "--result", "r.json")

    def test_a_loop_of_ones_own(self, sweep, space_file):
        sweep("init", str(space_file))
        for _ in range(5):
            asked = self.ask(sweep)
            expected = self.report(sweep, asked["trial"], {"metrics": {"loss": asked["parameters"]["x"]}})
            assert (expected.status, expected.out) == (0, f"trial {asked['trial']} is completed\n")
        ran = sweep("ask", "--format", "json")
        assert (ran.status, json.loads(ran.out)) == (1, None)

    @pytest.mark.parametrize(
        ("cap", "end"),
        [
            ("", "all configurations of the grid are handed out, none is left"),
            ("run_cap: 2", "all configurations of the grid are handed out, none is left"),
            ("run_cap: 1", "the run cap of 1 trial is reached; `sweep extend --run-cap N` raises it"),
        ],
    )
    def test_what_has_ended_a_grid_is_said(self, sweep, space_file, cap, end):
        grid = "search: {method: grid}\nparameters: {x: {values: [1, 2]}}\n" + cap
        head = space_file.read_text().partition("parameters:")[0]
        space_file.write_text(head + grid)
        sweep("init", str(space_file))
        for _ in range(1 if cap == "run_cap: 1" else 2):
            self.ask(sweep)
        ran = sweep("ask")
        assert (ran.status, ran.err) == (1, f"sweep: {end}\n")

    def test_second_report_must_be_equal(self, sweep, space_file):
        sweep("init", str(space_file))
        self.ask(sweep)
        assert self.report(sweep, 0, {"loss": 1.0}).status == 0
        assert self.report(sweep, 0, {"loss": 1.0}).status == 0
        refused = self.report(sweep, 0, {"loss": 2.0})
        assert (refused.status, one_line(refused.err)) == (2, True)
        assert "completed" in refused.err

    def test_a_failure_can_be_reported(self, sweep, space_file):
        sweep("init", str(space_file))
        self.ask(sweep)
        said = self.report(sweep, 0, {"status": "failed", "error": "out of memory"})
        assert said.out == "trial 0 is failed\n"

    @pytest.mark.parametrize(
        ("document", "expected"),
        [({"acc": 1}, "no metric 'loss'"), ([], "not a JSON object"), ({"loss": "x"}, "'x', not a number")],
    )
    def test_a_wrong_result_file_leaves_the_trial_open(self, sweep, space_file, document, expected):
        sweep("init", str(space_file))
        self.ask(sweep)
        ran = self.report(sweep, 0, document)
        assert (ran.status, one_line(ran.err)) == (2, True)
        assert expected in ran.err
        assert self.report(sweep, 0, {"loss": 1.0}).status == 0

    @pytest.mark.parametrize(
        ("word", "written"), [("loss=0.5", "--metric loss=0.5"), ("0.5", "--metric NAME=0.5")]
    )
    def test_metric_without_its_option(self, sweep, space_file, word, written):
        sweep("init", str(space_file))
        self.ask(sweep)
        ran = sweep("tell", "0", word)
        assert (ran.status, ran.err) == (
            2,
            f"sweep: error: {word}: a metric is an option; write {written}\n",
        )
        assert sweep("tell", "0", "--metric", "loss=0.5").status == 0

    def test_an_unknown_trial_and_a_missing_file(self, sweep, space_file):
        sweep("init", str(space_file))
        assert sweep("tell", "0", "--result", "none.json").status == 2
        assert "trial 9" in self.report(sweep, 9, {"loss": 1}).err

    def test_a_workers_trial_cannot_be_reported_by_others(self, sweep, space_file):
        url = sweep("init", str(space_file)).out.strip()
        Experiment.open(LocalStore(url)).ask("worker-1")
        ran = self.report(sweep, 0, {"loss": 1.0})
        assert ran.status == 2
        assert "being run by worker-1" in ran.err


TRAINER_SPACE = """\
name: trained
objectives: [{metric: METRIC, goal: minimize}]
outcome_constraints: ["CONSTRAINED <= 40"]
program: {trainer: {overrides: [model=tiny, data=stdlib]}}
parameters:
  stage2.max_steps: {min: 100, max: 200}
search: {method: random}
run_cap: 2
"""


class TestMetricsOfTheTrainer:
    @pytest.mark.parametrize(
        ("metric", "constrained", "expected"),
        [
            ("finl_loss", "usd", "no 'finl_loss'; did you mean `final_loss`?"),
            ("accuracy", "usd", "no 'accuracy'; known are: final_loss, "),
            ("final_loss", "peak_memory_gb", "no 'peak_memory_gb'; did you mean `peak_memory_gib`?"),
        ],
        ids=["misspelt", "unknown", "constraint"],
    )
    def test_unknown_metric_is_refused_by_init(self, sweep, tmp_path, metric, constrained, expected):
        file = tmp_path / "trained.yaml"
        file.write_text(TRAINER_SPACE.replace("METRIC", metric).replace("CONSTRAINED", constrained))
        ran = sweep("init", str(file))
        assert (ran.status, ran.out) == (2, "")
        assert one_line(ran.err)
        section = "objectives" if constrained == "usd" else "outcome_constraints"
        assert f"error: {section}: the trainer reports {expected}" in ran.err
        assert "tokens_per_second" in ran.err  # all of them are listed
        assert not Path("sweep-store").exists()

    def test_a_sweep_by_the_test_text_has_to_ask_for_it(self, sweep, tmp_path):
        file = tmp_path / "trained.yaml"
        text = TRAINER_SPACE.replace("METRIC", "test_loss").replace("CONSTRAINED", "usd")
        file.write_text(text)
        ran = sweep("init", str(file))
        assert (ran.status, ran.out) == (2, "")
        assert one_line(ran.err)
        assert "program.overrides: 'test_loss' is reported only with eval.test=true" in ran.err
        assert not Path("sweep-store").exists()
        file.write_text(text.replace("data=stdlib]", "data=stdlib, eval.test=true]"))
        assert sweep("init", str(file)).status == 0

    def test_those_that_it_reports_are_taken(self, sweep, tmp_path):
        file = tmp_path / "trained.yaml"
        file.write_text(
            TRAINER_SPACE.replace("METRIC", "final_loss").replace("CONSTRAINED", "peak_memory_gib")
        )
        assert sweep("init", str(file)).status == 0


class TestRunCapAndSobol:
    def space(self, space_file: Path, search: str, cap: int, more: str = "") -> str:
        text = space_file.read_text().replace("{method: random, sobol: 4}", search)
        space_file.write_text(text.replace("run_cap: 5", f"run_cap: {cap}") + more)
        return str(space_file)

    @pytest.mark.parametrize(
        ("search", "cap", "more", "warned"),
        [
            ("{sobol: 4}", 4, "", True),
            ("{sobol: 4}", 5, "", False),
            ("{sobol: 4}", 5, "baseline: {x: 0.5}\n", True),
            ("{sobol: 4}", 6, "baseline: {x: 0.5}\n", False),
            ("{}", 6, "", True),
            ("{method: random, sobol: 4}", 3, "", False),
        ],
    )
    def test_low_run_cap_is_one_warning(self, sweep, space_file, search, cap, more, warned):
        ran = sweep("init", self.space(space_file, search, cap, more))
        assert ran.status == 0
        warnings = [line for line in ran.err.splitlines() if line.startswith("sweep: warning: ")]
        assert len(warnings) == warned
        assert all(f"run_cap {cap}" in line for line in warnings)

    def test_of_a_space_that_is_refused_nothing_but_why_is_reported(self, sweep, space_file):
        space_file.write_text(space_file.read_text().replace("paraboloid", "parabloid"))
        ran = sweep("init", self.space(space_file, "{sobol: 4}", 4))
        assert ran.status == 2
        assert one_line(ran.err)


class TestSecrets:
    def test_init_refuses_a_space_that_holds_one_and_writes_nothing(
        self, sweep, space_file, tmp_path, monkeypatch
    ):
        monkeypatch.setenv("WANDB_API_KEY", "s3cr3t-v4lue-0f-mine")
        text = space_file.read_text().replace("mode: {value: fast}", "mode: {value: s3cr3t-v4lue-0f-mine}")
        space_file.write_text(text)
        ran = sweep("init", str(space_file))
        assert ran.status == 2
        assert "holds a secret" in ran.err
        assert "s3cr3t" not in ran.err + ran.out
        assert not (tmp_path / "sweep-store").exists()

    def test_storage_url_with_a_password_is_refused(self, sweep):
        ran = sweep("status", "--storage", "https://me:hunter2@host/sweeps")
        assert ran.status == 2
        assert "hunter2" not in ran.err + ran.out

    def test_output_of_failed_program_hides_the_secret(self, sweep, space_file, tmp_path, monkeypatch):
        monkeypatch.setenv("HF_TOKEN", "tok-9f8e7d6c5b4a")
        monkeypatch.setenv("MIRROR", "https://u:p4ssw0rd@h")
        program = 'program: {command: [sh, -c, "echo $HF_TOKEN $MIRROR >&2; exit 70", "${overrides}"]}'
        lines = [
            program if line.startswith("program") else line for line in space_file.read_text().splitlines()
        ]
        space_file.write_text("\n".join(lines))
        sweep("init", str(space_file))
        ran = sweep("worker", "--max-trials", "1")
        expected = sweep("trials", "--format", "json").out
        records = "".join(p.read_text() for p in (tmp_path / "sweep-store").rglob("0*.json"))
        for text in (ran.err, ran.out, expected, records):
            assert "tok-9f8e7d6c5b4a" not in text
            assert "p4ssw0rd" not in text
        assert "diverged: *** https://***@h" in expected
