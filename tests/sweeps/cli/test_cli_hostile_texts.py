"""A program's texts hold secrets, formulas and escape sequences: none leaves the command line as it is."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sweeps.experiment import Experiment
from sweeps.operations.pools import folder, place_of
from sweeps.programs.base import LOG_FILE
from sweeps.storage.local import LocalStore
from sweeps.trials import record as trial
from sweeps.trials.lifecycle import Complete, Fail

SECRET = "s3cr3t-of-postgres"
KEY_LINES = ("b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ", "QyNTUxOQAAACDabcdefghijklmnopqrstuvwxyz0123")
LOG = "\n".join(
    (
        "reads the key", "-----BEGIN OPENSSH PRIVATE KEY-----", *KEY_LINES, "-----END OPENSSH PRIVATE KEY-----",
        f"connects {SECRET}", "ends",
    )
)  # fmt: skip
ESCAPES = "\x1b]0;owned\x07 [red]\x9b31m"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

TEXTS_SPACE = """\
name: texts
objectives: [{metric: loss, goal: minimize}]
program: {function: "objectives_for_tests:paraboloid"}
parameters:
  flag: {values: ["-O2", "=x", "@y", "'=z", "+plus", "-1.5e", "plain"]}
search: {method: grid}
"""


@pytest.fixture
def hostile(sweep, space_file, built_once, monkeypatch) -> str:
    """Return the URL of a sweep with a completed trial, a failed one, and one of a version that let secrets in."""

    def build() -> str:
        url = sweep("init", str(space_file)).out.strip()
        experiment = Experiment.open(LocalStore(url))
        for index in range(2):
            experiment.ask(f"worker-{index}")
        metrics = {"loss": 1.0, "=cost": 2.0}
        experiment.apply(0, Complete(worker="worker-0", attempt=1, metrics=metrics))
        experiment.apply(
            1, Fail(worker="worker-1", attempt=1, error=f"=1+1 {ESCAPES}\n{ESCAPES}", failure="diverged")
        )
        old = experiment.ask("worker-2")
        record = replace(
            old, status="failed", worker=None, heartbeat=None, ended=1.0, error=f"no {SECRET}", failure="crashed",
            metrics={f"m-{SECRET}": 1.0, f"at{ESCAPES}": 3.0},
        )  # fmt: skip
        Path(url, trial.key(2)).write_bytes(trial.encode(record, "old"))
        pool = folder(place_of(experiment), "local")
        for log in (Path(url, trial.run_prefix(2, 1), LOG_FILE), pool / "worker-1.log"):
            log.parent.mkdir(parents=True)
            log.write_text(f"{LOG}\n")
        return url

    url = built_once("hostile", build)
    monkeypatch.setenv("PGPASSWORD", SECRET)
    return url


@pytest.mark.parametrize(
    "command",
    [
        ("trials",), ("trials", "--format", "csv"), ("trials", "--format", "json"), ("status",), ("best",),
        ("best", "--format", "csv"), ("best", "--format", "json"), ("status", "--format", "csv"),
        ("show", "2"), ("show", "2", "--format", "json"), ("pool", "logs", "local"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_no_escape_sequence_and_no_secret_is_printed(sweep, hostile, command):
    ran = sweep(*command, "--storage", hostile)
    assert ran.status == 0
    assert not CONTROL.search(ran.out + ran.err)
    assert not any(secret in ran.out + ran.err for secret in (SECRET, *KEY_LINES))
    assert not {"show", "logs"} & {*command} or "ends" in ran.out  # the log is there


def test_an_error_with_markup_is_shown_to_the_letter(sweep, hostile):
    assert "=1+1  ]0;owned  [red] 31m" in sweep("trials", "--storage", hostile).out


def test_the_csv_of_trials_holds_no_formula(sweep, hostile):
    cells = [
        cell
        for row in csv.reader(io.StringIO(sweep("trials", "--format", "csv", "--storage", hostile).out))
        for cell in row
    ]
    assert {"'=cost", r"at\x1b]0;owned\x07 [red]\x9b31m"} <= set(cells)
    assert [cell for cell in cells if cell.startswith("'=1+1")]
    assert not [cell for cell in cells if re.match(r"[=+@-](?![\d.])", cell)]


@pytest.mark.parametrize("name", ["t.csv", "t.json", "t.parquet", "--optuna"])
def test_no_export_holds_the_secret_of_an_old_record(sweep, hostile, tmp_path, name):
    path = tmp_path / name.lstrip("-")
    argv = (name, str(path)) if name.startswith("--") else (str(path),)
    assert sweep("export", *argv, "--storage", hostile).status == 0
    data = path.read_bytes()
    assert SECRET.encode() not in data
    assert b"***" in data


def test_report_has_no_secret_and_no_foreign_markup(sweep, hostile, tmp_path):
    experiment = Experiment.open(LocalStore(hostile))
    experiment.ask("worker-3")
    attack = "<script>alert(1)</script>"
    metrics = {"loss": 2.0, attack: 1.0}
    experiment.apply(3, Complete(worker="worker-3", attempt=1, metrics=metrics))
    out = tmp_path / "r.html"
    assert sweep("report", "--no-surrogate", "--out", str(out), "--storage", hostile).status == 0
    page = out.read_text()
    assert SECRET not in page
    assert attack not in page


def test_texts_like_formulas_survive_an_export_and_an_import(sweep, tmp_path, monkeypatch):
    file = tmp_path / "texts.yaml"
    file.write_text(TEXTS_SPACE)
    url = sweep("init", str(file)).out.strip()
    experiment = Experiment.open(LocalStore(url))
    flags = []
    for index in range(7):
        flags.append(experiment.ask("w").parameters["flag"])
        metrics = {"loss": float(index), "-delta": -1.5}
        experiment.apply(index, Complete(worker="w", attempt=1, metrics=metrics))
    table = tmp_path / "t.csv"
    sweep("export", str(table), "--storage", url)
    assert "'-O2" in table.read_text()
    file.write_text(TEXTS_SPACE.replace("name: texts", "name: again"))
    again = sweep("init", str(file)).out.strip()
    ran = sweep("import", str(table), "--storage", again)
    assert ran.status == 0, ran.err
    trials = Experiment.open(LocalStore(again)).trials()
    assert [record.parameters["flag"] for record in trials] == flags
    assert [record.metrics["-delta"] for record in trials] == [-1.5] * 7
    ran = sweep("pareto", "--table", str(table), "--x=-delta", "--y", "loss", "--format", "csv")
    assert len(ran.out.splitlines()) == 8, ran.err


@pytest.mark.parametrize(
    "argv", [("import", "{0}"), ("tell", "0", "--result", "{0}"), ("export", "{0}"), ("{0}",)]
)
def test_an_error_message_shows_no_escape_sequence_and_no_secret(sweep, hostile, argv):
    ran = sweep(*(word.format(f"{SECRET}\x1b[31m.json") for word in argv))
    assert ran.status in (0, 1, 2)
    assert not CONTROL.search(ran.err)
    assert SECRET not in ran.err


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        (("--env", f"PGPASSWORD={SECRET}"), "--secret PGPASSWORD"),
        (("--env", "MYSQL_PWD=x"), "--secret MYSQL_PWD"),
        (("--env", "MIRROR=https://me:hunter2@host"), "--secret MIRROR"),
        (("--setup", f"export X={SECRET}"), "--setup, line 1"),
        (("--setup", "export HF_TOKEN=abc"), "--setup, line 1"),
    ],
)
def test_a_secret_among_the_variables_of_a_pool_is_refused(sweep, hostile, option, hint):
    ran = sweep("launch", "local", "--dry-run", *option, "--storage", hostile)
    assert ran.status == 2
    assert hint in ran.err
    assert not any(secret in ran.out + ran.err for secret in (SECRET, "hunter2", "=x", "=abc"))


def test_innocent_variables_of_a_pool_are_taken(sweep, hostile):
    given = ("TOKENIZERS_PARALLELISM=false", "GOOGLE_APPLICATION_CREDENTIALS=/etc/g.json", "EOS_TOKEN=</s>")
    options = [word for text in given for word in ("--env", text)]
    ran = sweep(
        "launch", "slurm", "--dry-run", *options, "--setup", "export PW=$PGPASSWORD", "--storage", hostile
    )
    assert ran.status == 0, ran.err


def test_traceback_holds_no_secret(tmp_path):
    code = (
        "import sys, sweeps.cli as cli\n"
        "def fail(**kwargs): raise RuntimeError('no https://me:hunter2@host')\n"
        "cli.cli.main = fail\n"
        "cli.main()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr.endswith("RuntimeError: no https://***@host\n")
    assert "hunter2" not in ran.stderr.splitlines()[-1]
