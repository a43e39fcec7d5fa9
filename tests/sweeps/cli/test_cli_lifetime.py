"""Commands about one trial and about a sweep as a whole: show, list, extend, archive, rename, delete, watch."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest
from fake_gcs import Fault

import sweeps
from sweeps.experiment import Experiment
from sweeps.operations.status import COLUMNS
from sweeps.storage.local import LocalStore
from sweeps.storage.urls import open_store
from sweeps.trials import control
from sweeps.trials.lifecycle import Complete, Fail, Heartbeat

FAILING = """\
name: failing
objectives: [{metric: loss, goal: minimize}]
program: {command: [sh, -c, "echo the very last words; exit 3", "${overrides}"]}
parameters: {x: {min: 0.0, max: 1.0}}
search: {method: random}
brake: null
run_cap: 2
"""


def opened(url: str) -> Experiment:
    return Experiment.open(LocalStore(url))


class TestShow:
    def test_all_about_a_failed_trial_is_there_with_its_log(self, sweep, tmp_path):
        (tmp_path / "failing.yaml").write_text(FAILING)
        url = sweep("init", "failing.yaml").out.strip()
        sweep("worker", "--max-trials", "1")
        ran = sweep("show", "0")
        assert ran.status == 0
        for expected in (
            "trial 0 of failing: failed",
            f"{url}/trials/000000.json",
            f"the end of {url}/runs/000000/attempt-1/log.txt\n  the very last words\n",
            "error    crashed\n  the program exited with status 3",
            "sh -c 'echo the very last words; exit 3' x=",
        ):
            assert expected in ran.out
        document = json.loads(sweep("show", "0", "--format", "json").out)
        assert (document["failure"], document["log"]) == ("crashed", "the very last words")
        assert document["history"][0]["reason"] == "crashed"
        assert Path(document["files"]).is_dir()
        assert json.loads(sweep("show", "0", "--lines", "0", "--format", "json").out)["log"] == ""
        for lines in (10**9, 10**30):
            assert "  the very last words\n" in sweep("show", "0", "--lines", str(lines)).out

    @pytest.fixture
    def bucket(self, sweep, space_file, gcs, monkeypatch) -> str:
        """Return the URL of a sweep in a bucket, with a log of 16 MiB of trial 0."""
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
        url = sweep("init", str(space_file), "--storage", f"gs://bucket/{uuid.uuid4().hex}").out.strip()
        store = open_store(url)
        Experiment.open(store).ask("worker")
        store.create("runs/000000/attempt-1/log.txt", b"a line of a log\n" * 2**20 + b"the end\n")
        return url

    def test_of_a_large_log_in_a_bucket_only_the_end_is_read(self, sweep, bucket, gcs):
        gcs.journal.clear()
        ran = sweep("show", "0", "--storage", bucket)
        assert "  the end\n" in ran.out
        assert sum(entry.sent for entry in gcs.journal.entries()) < 2**20

    @pytest.mark.parametrize("style", ["table", "json"])
    def test_a_log_that_cannot_be_read_is_said_and_the_rest_is_shown(self, sweep, bucket, gcs, style):
        gcs.faults.add(Fault(action="status", status=403, name="*log.txt", times=None))
        ran = sweep("show", "0", "--storage", bucket, "--format", style)
        assert (ran.status, "parameters" in ran.out, "the end" in ran.out) == (0, True, False)
        assert "sweep: the log is left out: gs://bucket/" in ran.err

    def test_large_integers_are_there_in_full(self, sweep, space_file):
        text = space_file.read_text()
        space_file.write_text(text.replace("{value: fast}", "{value: 1234567891}"))
        url = sweep("init", str(space_file)).out.strip()
        experiment = opened(url)
        record = experiment.ask("w")
        metrics = {"loss": 1.0, "effective_steps": 25000000}
        experiment.apply(record.trial, Complete(worker="w", attempt=1, metrics=metrics))
        said = sweep("show", "0").out
        assert "  mode  1234567891\n" in said
        assert "  effective_steps  25000000\n" in said

    def test_run_folder_can_be_imported(self, sweep, tmp_path):
        """As `sweep doctor` advises after a record was lost."""
        good = FAILING.replace('-c, "echo the very last words; exit 3"', "good.sh").replace("failing", "good")
        (tmp_path / "good.yaml").write_text(good)
        (tmp_path / "good.sh").write_text("echo '{\"loss\": 2.5}' > $SWEEP_RUN_DIR/result.json\n")
        url = sweep("init", "good.yaml").out.strip()
        sweep("worker", "--max-trials", "1")
        parameters = dict(opened(url).trial(0).parameters)
        record = Path(url, "trials", "000000.json")
        record.write_bytes(record.read_bytes()[:70])
        assert "move the record of trial 0" in sweep("repair", "--yes").out
        findings = {f["kind"]: f for f in json.loads(sweep("doctor", "--format", "json").out)["findings"]}
        advice = findings["ownerless"]["remedy"].split("`")[1].split()
        assert advice[:2] == ["sweep", "import"]
        result = Path(advice[2])
        assert json.loads(result.read_text()) == {"loss": 2.5}
        assert sweep(*advice[1:]).out.endswith(
            "imported as trial 1\n"
        )  # the folder keeps its number to itself
        imported = opened(url).trial(1)
        assert (dict(imported.parameters), dict(imported.metrics)) == (parameters, {"loss": 2.5})
        (result.parent / "trial.json").unlink()
        ran = sweep(*advice[1:])
        assert ran.status == 2
        assert "parameters" in ran.err


class TestSeveral:
    @pytest.fixture
    def failed(self, sweep, space_file) -> str:
        """Five trials: 0 and 2 crashed, 1 diverged, 3 is claimed, 4 is pending."""
        url = sweep("init", str(space_file)).out.strip()
        experiment = opened(url)
        for index in range(4):
            experiment.ask("w", leased=False)
            if index < 3:
                kind = "diverged" if index == 1 else "crashed"
                experiment.apply(index, Fail(worker="w", attempt=1, error=kind, failure=kind))
        return url

    def test_several_are_retried_and_all_that_failed_by_kind(self, sweep, failed):
        assert sweep("retry", "0", "1", "0").out.endswith("pending: 0, 1\n")
        assert sweep("retry", "--failed", "--reason", "diverged").out.startswith("no trial ")
        again = sweep("retry", "--failed", "--reason", "crashed", "--reason", "lost")
        assert again.out == "trial 2 is pending\n"
        assert sweep("retry", "--failed").out.startswith("no trial ")

    def test_nothing_is_changed_if_one_of_them_cannot_be(self, sweep, failed):
        ran = sweep("retry", "0", "3")
        assert (ran.status, ran.out) == (2, "")
        assert "trial 3 is running" in ran.err
        assert sweep("abandon", "3", "99").status == 2
        assert [r.status for r in opened(failed).trials()] == ["failed"] * 3 + ["running"]

    def test_why_a_trial_was_abandoned_stays_with_it(self, sweep, failed):
        assert sweep("abandon", "3", "--reason", "out of\nmoney").out.split()[-1] == "abandoned"
        assert opened(failed).trial(3).history[-1].detail.endswith(": out of money")

    @pytest.mark.parametrize(
        ("argv", "expected"),
        [
            (["--metric", "loss=0.5", "--metric", "n_tokens=7"], 0),
            (["--metric", "loss=nan"], 2),
            (["--metric", "n=3"], 2),
        ],
    )
    def test_a_result_is_told_by_its_metrics(self, sweep, failed, argv, expected):
        ran = sweep("tell", "3", *argv)
        assert ran.status == expected
        metrics = {"loss": 0.5, "n_tokens": 7} if expected == 0 else {}
        assert dict(opened(failed).trial(3).metrics) == metrics
        assert ran.err.count("\n") == (expected == 2)


class TestList:
    def test_every_sweep_is_there_a_damaged_one_too(self, sweep, finished, tmp_path):
        for name in ("other", "third"):
            text = (tmp_path / "space.yaml").read_text().replace("name: toy", f"name: {name}")
            (tmp_path / f"{name}.yaml").write_text(text)
            sweep("init", f"{name}.yaml")
        Path("sweep-store/third/sweep.json").write_text("{")
        Path("sweep-store/no-sweep").mkdir()
        rows = {row["name"]: row for row in json.loads(sweep("list", "--format", "json").out)}
        assert list(rows) == ["other", "third", "toy"]
        assert {tuple(row) for row in rows.values()} == {COLUMNS}  # the header of the CSV
        assert (rows["toy"]["state"], rows["toy"]["trials"], rows["toy"]["run_cap"]) == ("done", 5, 5)
        best = json.loads(sweep("best", "--format", "json", "--name", "toy").out)
        assert rows["toy"]["best"] == best["metrics"]["loss"]
        assert (rows["other"]["state"], rows["other"]["best"]) == ("open", None)
        assert "doctor" in rows["third"]["state"]
        assert "third (the default)" in sweep("list").out

    def test_only_what_the_run_cap_counts_is_of_it(self, sweep, finished, tmp_path):
        (tmp_path / "t.csv").write_text("param.x,param.n,param.mode,loss\n0.1,1,fast,3\n")
        assert sweep("import", "t.csv").status == 0
        assert "  5 of 5  " in sweep("list").out
        (row,) = json.loads(sweep("list", "--format", "json").out)
        assert (row["trials"], row["searched"], row["run_cap"]) == (6, 5, 5)

    def test_nowhere_is_said(self, sweep):
        ran = sweep("list", "--storage", "nowhere")
        assert (ran.status, ran.out.count("\n")) == (0, 1)
        assert "`sweep init SPACE.yaml`" in ran.out

    @pytest.mark.parametrize("storage", ["sweep-store/toy", "."])
    def test_a_sweeps_own_url_lists_that_one(self, sweep, finished, monkeypatch, storage):
        if storage == ".":
            monkeypatch.chdir(finished)
        (row,) = json.loads(sweep("list", "--storage", storage, "--format", "json").out)
        assert (row["name"], row["state"]) == ("toy", "done")
        assert "  5 of 5  " in sweep("list", "--storage", storage).out

    def test_csv_has_its_header_without_a_sweep(self, sweep, finished):
        header = sweep("list", "--format", "csv").out.splitlines()[0]
        assert header == "name,state,trials,run_cap,running,metric,best,last_change,searched,most_trials"
        assert sweep("list", "--storage", "nowhere", "--format", "csv").out == f"{header}\n"

    def test_a_bucket_has_its_sweeps_too(self, sweep, gcs, monkeypatch, space_file):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
        storage = f"gs://bucket/lists/{os.getpid()}"
        sweep("init", str(space_file), "--storage", storage)
        (row,) = json.loads(sweep("list", "--storage", storage, "--format", "json").out)
        assert row["name"] == "toy"
        ran = sweep("status", "--storage", storage, "--name", "toyy")
        assert f"did you mean toy? {storage}" in ran.err


class TestExtend:
    def test_workers_go_on_and_status_says_who_changed_what(self, sweep, finished):
        ran = sweep("extend", "--run-cap", "6", "--budget", "device_hours=2")
        assert (ran.status, ran.out) == (0, "run_cap 5 → 6\ndevice_hours none → 2\n")
        assert f"--storage {finished}" in ran.err
        sweep("worker")
        out = sweep("status").out
        assert "6 of 6: 6 completed" in out
        assert "changed run_cap 6, device_hours 2 by " in out
        document = json.loads(sweep("status", "--format", "json").out)
        assert (document["run_cap"], document["amendments"][0]["changes"]["run_cap"]) == (6, 6)
        assert sweep("extend", "--run-cap", "none", "--budget", "device_hours=none").status == 0
        assert "budget" not in sweep("status").out

    def test_plus_adds_to_the_present_limit(self, sweep, finished):
        assert sweep("extend", "--run-cap", "+2", "--wall-hours", "10").out.startswith("run_cap 5 → 7\n")
        assert sweep("extend", "--wall-hours", "+2.5").out == "wall_hours 10 → 12.5\n"
        assert sweep("extend", "--run-cap", "none").status == 0
        ran = sweep("extend", "--run-cap", "+2")
        assert (ran.status, "run cap" in ran.err) == (2, True)
        assert sweep("extend", "--until", "2001-01-01").status == 2

    def test_both_of_two_who_add_at_once_count(self, sweep, finished, monkeypatch):
        create = LocalStore.create

        def create_after_another(store, key, data):
            monkeypatch.setattr(LocalStore, "create", create)
            sweeps.open(finished).extend(run_cap=25)
            return create(store, key, data)

        monkeypatch.setattr(LocalStore, "create", create_after_another)
        assert sweep("extend", "--run-cap", "+20").out == "run_cap 25 → 45\n"
        assert sweeps.open(finished).status()["run_cap"] == 45

    def test_a_locale_that_lacks_a_character_has_it_escaped(self, sweep, finished):
        command = [sys.executable, "-m", "sweeps", "extend", "--run-cap", "+3", "--storage", finished]
        environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stdout) == (0, "run_cap 5 \\u2192 8\n")
        assert "Traceback" not in ran.stderr

    def test_limit_that_is_reached_is_a_warning(self, sweep, finished):
        ran = sweep("extend", "--run-cap", "3", "--budget", "device_hours=1e-9")
        assert (ran.status, ran.out.splitlines()[0]) == (0, "run_cap 5 → 3")
        lines = ran.err.splitlines()
        assert "run_cap is 3, and there are 5" in lines[0]
        assert "device_hours are spent" in lines[1]
        assert "warning" not in sweep("extend", "--run-cap", "6", "--budget", "device_hours=none").err


class TestLifetime:
    def test_an_archived_sweep_is_out_of_sight_until_it_is_taken_out(self, sweep, finished):
        assert sweep("archive").status == 0
        assert json.loads(sweep("list", "--format", "json").out) == []
        assert "1 sweep put away" in sweep("list").out
        assert json.loads(sweep("list", "--all", "--format", "json").out)[0]["state"] == "archived"
        assert sweep("archive").out.endswith("already\n")
        assert sweep("archive", "--undo").status == 0
        assert sweep("archive", "--undo").status == 2
        assert len(json.loads(sweep("list", "--format", "json").out)) == 1

    def test_resumed_sweep_is_no_longer_in_the_archive(self, sweep, finished):
        out = sweep("archive").out
        assert out.endswith(f"is in the archive; `sweep archive --undo --storage {finished}` takes it out\n")
        assert "archive" in sweep("status").out
        assert sweep("resume").status == 0
        assert "archive" not in sweep("status").out
        assert [row["name"] for row in json.loads(sweep("list", "--format", "json").out)] == ["toy"]
        assert sweep("archive", "--undo").status == 2
        assert "is in the archive; " in sweep("archive").out
        assert json.loads(sweep("status", "--format", "json").out)["state"] == "stopped"

    def test_archived_sweep_that_runs_is_stopped(self, sweep, finished):
        sweep("archive")
        control.write(LocalStore(finished), "running", "an earlier version")
        assert "state   in the archive, and running; " in sweep("status").out
        assert sweep("archive").out.startswith(f"{finished} is in the archive; ")
        assert json.loads(sweep("status", "--format", "json").out)["state"] == "stopped"
        control.write(LocalStore(finished), "running", "an earlier version")
        assert sweep("archive", "--undo").out == f"{finished} is listed again; it is running\n"

    def test_renamed_sweep_stays_the_default(self, sweep, finished, space_file):
        assert "./sweep-store/better" in sweep("rename", "better").out
        assert sweep("status").out.startswith("sweep   better  (./sweep-store/better)\n")
        space_file.write_text(space_file.read_text().replace("name: toy", "name: better"))
        assert sweep("init", str(space_file), "--skip-if-exists").status == 0

    def test_rename_to_the_same_name_says_that_nothing_changed(self, sweep, finished):
        ran = sweep("rename", "toy")
        assert (ran.status, ran.out) == (0, "./sweep-store/toy has this name already; nothing is changed\n")

    def test_in_its_own_folder_a_sweep_is_renamed_and_deleted(self, sweep, finished, monkeypatch):
        store = Path("sweep-store").absolute()
        monkeypatch.chdir(store / "toy")
        assert "give --storage ., which is a sweep itself" in sweep("status").err
        assert sweep("rename", "better", "--storage", ".").status == 0
        monkeypatch.chdir(store / "better")
        assert sweep("status", "--storage", ".").out.startswith("sweep   better  ")
        assert sweep("delete", "--storage", ".", "--yes").status == 0
        assert not (store / "better").exists()

    def test_all_goes_but_only_what_was_named_and_confirmed(self, sweep, finished):
        assert sweep("delete").status == 2
        ran = sweep("delete", "--name", "toy")
        assert ran.status == 2
        assert "5 trials (5 completed)" in ran.out
        assert sweep("trials").out.count("completed") == 5
        assert sweep("delete", "--name", "toy", "--yes").out.endswith("is deleted\n")
        assert not Path(finished).exists()
        assert sweep("status").status == 2

    @pytest.mark.parametrize("new", ["a b", ".hidden", "a/b", "", "x" * 101, "naïve"])
    def test_rename_takes_the_names_of_init_only(self, sweep, finished, new):
        ran = sweep("rename", new)
        assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert "becomes a folder" in ran.err
        assert sweep("status", "--name", "toy").status == 0

    @pytest.mark.parametrize("argv", [["archive"], ["rename", "new"], ["delete", "--name", "toy", "--yes"]])
    def test_nothing_happens_while_a_worker_lives(self, sweep, space_file, argv):
        url = sweep("init", str(space_file)).out.strip()
        record = opened(url).ask("host-1-abc")
        ran = sweep(*argv)
        assert (ran.status, ran.err.count("\n")) == (2, 1)
        assert "(host-1-abc)" in ran.err
        opened(url).apply(0, Heartbeat(worker="host-1-abc", attempt=record.attempt))
        assert sweep("status").status == 0


@pytest.mark.parametrize("every", ["nan", "inf", "0.1"])
def test_seconds_that_are_no_time_are_refused(sweep, finished, every):
    ran = sweep("status", "--watch", "--every", every)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "--every" in ran.err


def test_piped_watch_writes_changes(sweep, space_file):
    url = sweep("init", str(space_file)).out.strip()
    command = [sys.executable, "-m", "sweeps", "status", "--watch", "--every", "0.2", "--storage", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        killer = threading.Timer(60, watching.kill)
        killer.start()
        try:
            first = [watching.stdout.readline() for _ in range(4)]
            opened(url).ask("w", leased=False)
            second = [watching.stdout.readline() for _ in range(5)]
        finally:
            watching.send_signal(signal.SIGINT)
            killer.cancel()
    assert first[1].startswith("sweep   toy")
    assert first[2] == "trials  0 of 5\n"
    assert first[3] == "\n"
    assert second[2] == "trials  1 of 5: 1 running\n"
    assert "trial 0" in second[3]


def test_watch_ends_where_another_sweep_has_the_name(sweep, space_file):
    url = sweep("init", str(space_file)).out.strip()
    command = [sys.executable, "-m", "sweeps", "status", "--watch", "--every", "0.2", "--storage", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        try:
            assert watching.stdout.readline()
            space_file.write_text(space_file.read_text().replace("run_cap: 5", "run_cap: 6"))
            sweep("delete", "--storage", url, "--yes")
            sweep("init", str(space_file))
            _, err = watching.communicate(timeout=60)
        finally:
            watching.kill()
    assert watching.returncode == 1
    assert re.search(r"\Asweep: error: .*toy is (gone|another sweep now): .*\n\Z", err)


class TestBudgetThatNothingCountsTowards:
    @pytest.fixture
    def url(self, sweep, space_file) -> str:
        text = space_file.read_text().replace(
            "run_cap: 5", "run_cap: 5\nbudget: {usd: 9, effective_steps: 1e9}"
        )
        space_file.write_text(text)
        ran = sweep("init", str(space_file))
        assert [line.split(" counts ")[0] for line in ran.err.splitlines()[:-1]] == [
            "sweep: warning: budget.effective_steps",
            "sweep: warning: budget.usd",
        ]
        return ran.out.strip()

    def test_missing_budget_metric_is_reported(self, sweep, url, caplog):
        assert sweep("worker", "--max-trials", "2").status == 0
        warned = [record.getMessage() for record in caplog.records if "budget." in record.getMessage()]
        assert len(warned) == 1  # the program reports its effective steps
        assert warned[0].startswith("trial 0 reports no usd: budget.usd ")
        findings = json.loads(sweep("doctor", "--format", "json").out)["findings"]
        assert ["budget.usd" in f["what"] for f in findings if f["kind"] == "uncounted"] == [True]
        assert sweep("extend", "--budget", "usd=none").status == 0
        findings = json.loads(sweep("doctor", "--format", "json").out)["findings"]
        assert [f for f in findings if f["kind"] == "uncounted"] == []


class TestCopies:
    """docs/how-to/move-a-sweep.md: a sweep goes on wherever all of its files are copied to."""

    @pytest.mark.parametrize("kept", ["everything", "no hidden files"])
    def test_a_folder_that_is_copied_into_a_bucket_goes_on_there(
        self, sweep, gcs, monkeypatch, finished, kept, tmp_path
    ):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
        there = f"gs://bucket/copies/{uuid.uuid4().hex}/toy"
        source, bucket = tmp_path / finished, open_store(there)
        for path in source.rglob("*"):
            name = path.relative_to(source).as_posix()
            if path.is_file() and (kept == "everything" or not name.startswith(".")):
                bucket.create(name, path.read_bytes())
        assert sweep("extend", "--run-cap", "7", "--storage", there).status == 0
        assert sweep("worker", "--storage", there).status == 0
        assert "7 of 7: 7 completed" in sweep("status", "--storage", there).out
        found = sweep("doctor", "--storage", there, "--format", "json")
        assert "strange" not in found.out
