"""A worker in the wrong folder, and a program that always fails, on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sweeps.experiment import Experiment
from sweeps.storage.local import LocalStore
from sweeps.trials import control
from sweeps.trials.lifecycle import Fail

TRAIN = """\
import json, os, sys
json.dump({"loss": float(sys.argv[1].partition("=")[2])}, open(os.environ["SWEEP_RUN_DIR"] + "/result.json", "w"))
"""
FUNCTION = 'program: {function: "objectives_for_tests:paraboloid"}'


pytestmark = pytest.mark.timeout(300)  # some start many processes


def as_grid(text: str) -> str:
    """The space as a grid, which needs no Ax: processes start in a moment."""
    text = text.replace("{min: 0.0, max: 1.0}", "{values: [0.1, 0.2]}")
    return text.replace("{method: random, sobol: 4}", "{method: grid}")


def start_worker(url: Path, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sweeps", "worker", "--storage", str(url)],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


@pytest.mark.parametrize(
    ("program", "file", "content"),
    [
        pytest.param('{command: ["${python}", train.py, "${overrides}"]}', "train.py", TRAIN, id="script"),
        pytest.param(
            '{command: ["${python}", -m, train, "${overrides}"]}',
            *("train.py", TRAIN),
            id="module",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            '{command: [sh, -c, \'exec ./train.sh "$@"\', sh, "${overrides}"]}',
            "train.sh",
            f'#!/bin/sh\nexec {sys.executable} - "$@" <<END\n{TRAIN}END\n',
            id="shell",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            '{function: "train:f"}', "train.py", "def f(p): return {'loss': p['x']}\n", id="function"
        ),
    ],
)
def test_worker_in_the_wrong_folder_costs_no_trial(
    sweep, space_file, tmp_path, monkeypatch, program, file, content
):
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.mkdir()
    wrong.mkdir()
    (right / file).write_text(content)
    (right / file).chmod(0o755)
    space_file.write_text(as_grid(space_file.read_text()).replace(FUNCTION, f"program: {program}"))
    monkeypatch.chdir(right)
    assert sweep("init", str(space_file), "--storage", str(tmp_path / "store")).status == 0
    url = tmp_path / "store" / "toy"
    for _ in range(2):
        ran = start_worker(url, wrong)
        assert ran.returncode == 2, ran.stderr
        (line,) = [line for line in ran.stderr.splitlines() if "error" in line]
        assert "train" in line
        assert "Traceback" not in ran.stderr
    assert all(record.status == "pending" for record in Experiment.open(LocalStore(url)).trials())
    ran = start_worker(url, right)
    assert ran.returncode == 0, ran.stderr
    records = Experiment.open(LocalStore(url)).trials()
    assert [record.status for record in records] == ["completed"] * 5
    assert control.read(LocalStore(url)) == "running"


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has what the trial asks for")
def test_a_machine_without_the_device_costs_no_trial(sweep, space_file, tmp_path):
    space = {
        "name": "toy",
        "objectives": [{"metric": "final_loss", "goal": "minimize"}],
        "program": {"trainer": {"overrides": ["model=tiny", "data=stdlib", "device=cuda"]}},
        "parameters": {"seed": {"values": [1, 2]}},
        "search": {"method": "grid"},
        "run_cap": 2,
    }
    space_file.write_text(json.dumps(space))
    assert sweep("init", str(space_file), "--storage", str(tmp_path / "store")).status == 0
    url = tmp_path / "store" / "toy"
    ran = start_worker(url, tmp_path)
    assert ran.returncode == 2, ran.stderr
    (line,) = [line for line in ran.stderr.splitlines() if "error" in line]
    assert "CUDA" in line
    (record,) = Experiment.open(LocalStore(url)).trials()
    assert (record.status, [attempt.reason for attempt in record.history]) == ("pending", ["released"])


@pytest.fixture
def braked(sweep, space_file) -> str:
    """The URL of a sweep that has paused itself."""
    url = sweep("init", str(space_file)).out.strip()
    experiment = Experiment.open(LocalStore(url))
    for _ in range(3):
        record = experiment.ask("w")
        event = Fail(worker="w", attempt=1, error=f"KeyError: 'lr{record.trial}'", failure="crashed")
        experiment.apply(record.trial, event)
    return url


def test_a_worker_says_in_one_line_why_the_sweep_is_paused(sweep, braked):
    ran = sweep("worker", "--exit-when-idle")
    assert ran.status == 0
    line = ran.err.splitlines()[0]
    assert line.startswith(f"sweep: {braked} ")
    assert all(part in line for part in ("3 trials", "KeyError: 'lr2'", "`sweep resume`"))


def test_status_and_doctor_say_why_and_resume_goes_on(sweep, braked):
    sweep("worker", "--exit-when-idle")
    why = "3 trials in a row failed with: KeyError: 'lr2'"
    shown = sweep("status").out
    assert f"state   paused by the brake: {why}; " in shown
    document = json.loads(sweep("status", "--format", "json").out)
    assert (document["state"], document["why"]) == ("paused", why)
    findings = json.loads(sweep("doctor", "--format", "json").out)["findings"]
    (finding,) = [finding for finding in findings if finding["kind"] == "braked"]
    assert why in finding["what"]
    assert "sweep resume" in finding["remedy"]
    assert sweep("resume").out.split()[-1] == "running"
    assert sweep("worker").status == 0
    document = json.loads(sweep("status", "--format", "json").out)
    assert (document["trials"]["completed"], document["state"], document["why"]) == (2, "running", None)


def test_ask_says_why_too(sweep, braked):
    ran = sweep("ask")
    assert (ran.status, ran.err.count("\n")) == (1, 1)
    assert "KeyError: 'lr2'" in ran.err


def test_a_refusal_can_be_reported(sweep, space_file):
    url = sweep("init", str(space_file)).out.strip()
    sweep("ask")
    Path("r.json").write_text('{"status": "refused", "error": "n is odd"}')
    assert sweep("tell", "0", "--result", "r.json").out.split()[-1] == "failed"
    record = Experiment.open(LocalStore(url)).trial(0)
    assert (record.failure, record.error) == ("bad_config", "config refused: n is odd")


@pytest.mark.slow
def test_eight_workers_on_a_broken_function_brake_soon(sweep, space_file):
    text = as_grid(space_file.read_text()).replace("run_cap: 5\n", "")
    space_file.write_text(text.replace("paraboloid", "lacks_a_key"))
    url = sweep("init", str(space_file)).out.strip()
    functions = str(Path(__file__).parents[1] / "functions")
    path = os.pathsep.join([functions, os.environ.get("PYTHONPATH", "")])
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "sweeps", "worker", "--storage", url, "--exit-when-idle"],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        )
        for _ in range(8)
    ]
    said = [worker.communicate(timeout=100)[1] for worker in workers]
    assert {worker.returncode for worker in workers} <= {0, 1}  # 1: all that it ran has failed
    assert all("KeyError: 'lr'" in each for each in said), said
    records = Experiment.open(LocalStore(url)).trials()
    assert 3 <= len(records) <= 3 + 7
    assert {(record.status, record.attempt) for record in records} == {("failed", 1)}
    assert control.switch(LocalStore(url)).braked
