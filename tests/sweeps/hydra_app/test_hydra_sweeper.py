"""A Hydra application as a sweep: killed halfway, resumed, and run by several workers at once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from sweeps.experiment import Experiment
from sweeps.storage.local import LocalStore

SWEEP = [
    "-m",
    "hydra/sweeper=stagesweep",
    "hydra.sweeper.method=grid",  # no surrogate: what is proved here does not need one
    "hydra.sweeper.n_trials=null",
    "hydra.sweeper.lease={heartbeat_s: 0.3, expire_s: 3}",
    "x=range(1,3)",
    "model.kind=choice(a,b)",
    "model.size=7",
]


def wait_for(happened: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_each_trial_ends_once_after_a_kill_and_two_resumes(
    application: Path, environment: dict[str, str]
) -> None:
    def start(*argv: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *argv],
            cwd=application,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def begun() -> list[str]:
        return (application / "started").read_text().split()

    (application / "hold").touch()
    first = start("train.py", *SWEEP)
    wait_for(lambda: (application / "started").exists() or first.poll() is not None, "no trial began")
    assert first.poll() is None, first.communicate()[0]
    first.send_signal(signal.SIGKILL)
    first.communicate()

    # The same command once more, and a worker that knows nothing of Hydra: each has a trial before one ends.
    both = [start("train.py", *SWEEP), start("-m", "sweeps", "worker", "--storage", "sweep-store/train")]
    wait_for(lambda: len(begun()) == 3, "two processes do not work at once")
    (application / "hold").unlink()
    outputs = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs

    trials = Experiment.open(LocalStore(str(application / "sweep-store" / "train"))).trials()
    assert [trial.trial for trial in trials] == list(range(4))
    assert {trial.status for trial in trials} == {"completed"}
    assert [sum(change.reason == "completed" for change in trial.history) for trial in trials] == [1] * 4
    configurations = {(t.parameters["x"], t.parameters["model.kind"]) for t in trials}
    assert configurations == {(x, kind) for x in (1, 2) for kind in "ab"}
    for trial in trials:
        expected = (int(trial.parameters["x"]) - 2) ** 2 + 0.5 * (trial.parameters["model.kind"] == "b")
        assert trial.metrics == {"objective": expected}
    # Both took part, and only the trial of the killed one was begun twice.
    assert sorted(trial.attempt for trial in trials) == [1, 1, 1, 2]
    assert sorted(begun()) == sorted(str(t.trial) for t in trials for _ in range(t.attempt))
    assert len({trial.history[-1].worker for trial in trials}) == 2, outputs
    best = yaml.safe_load(next(application.glob("multirun/*/*/optimization_results.yaml")).read_text())
    assert best["best_evaluated_params"] == {"x": 2, "model.kind": "a"}
    assert best["best_evaluated_result"] == {"objective": 0.0}

    # What every worker runs is in the record: this application, by whichever Python, with what was fixed.
    record = json.loads((application / "sweep-store" / "train" / "sweep.json").read_text())
    command = record["space"]["program"]["command"]
    assert command[:2] == ["${python}", "train.py"]
    assert command[-2:] == ["model.size=7", "${overrides}"]

    # Another search under the same name is refused, with what differs.
    other = start("train.py", *SWEEP, "x=range(1,4)")
    output = other.communicate()[0]
    assert other.returncode == 2, output
    assert ": parameters.x" in output
    assert "hydra.sweeper.name" in output


def test_an_output_folder_that_cannot_be_written_is_one_line(
    application: Path, environment: dict[str, str]
) -> None:
    (application / "file").touch()
    ran = subprocess.run(
        [sys.executable, "train.py", *SWEEP, "hydra.sweep.dir=file/here"],
        cwd=application,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 2, ran.stderr
    assert "Traceback" not in ran.stderr
    assert "sweep: error: hydra.sweep.dir: file/here/multirun.yaml cannot be written" in ran.stderr


def test_a_sweep_that_has_paused_itself_ends_the_command_with_1(
    application: Path, environment: dict[str, str]
) -> None:
    script = application / "train.py"
    script.write_text(script.read_text().replace("return", 'assert cfg.model.kind == "a"\n    return'))
    ran = subprocess.run(
        [sys.executable, "train.py", *SWEEP, "hydra.sweeper.brake={first: 1, later: 1}"],
        cwd=application,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 1, ran.stderr
    assert ran.stderr.count("has paused itself: ") == 1
    assert "then run `sweep resume`" in ran.stderr
    # What it has found so far is written all the same.
    best = yaml.safe_load(next(application.glob("multirun/*/*/optimization_results.yaml")).read_text())
    assert best["best_evaluated_params"] == {"x": 1, "model.kind": "a"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_surrogate_searches_a_configuration_with_its_own_sweep(
    application: Path, environment: dict[str, str]
) -> None:
    (application / "conf" / "train.yaml").write_text(
        """\
defaults: [_self_, {override hydra/sweeper: stagesweep}]
x: 0.0
model: {kind: a, size: 1}
hydra:
  mode: MULTIRUN
  sweeper:
    name: tuned
    n_trials: 6
    sobol: 3
    metric: loss
    params:
      x: interval(-3, 3)
      model.size: {type: range, bounds: [1, 64], log_scale: true}
      model.kind: {values: [a, b]}
"""
    )
    ran = subprocess.run(
        [sys.executable, "train.py"], cwd=application, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    trials = Experiment.open(LocalStore(str(application / "sweep-store" / "tuned"))).trials()
    assert [trial.status for trial in trials] == ["completed"] * 6
    assert trials[0].generator == "baseline"
    assert trials[0].parameters == {"x": 0.0, "model.size": 1, "model.kind": "a"}
    assert {trial.generator for trial in trials[1:]} == {"sobol", "botorch"}
    assert all(-3 <= float(trial.parameters["x"]) <= 3 for trial in trials)
    assert {type(trial.parameters["model.size"]) for trial in trials} == {int}
    assert all("loss" in trial.metrics for trial in trials)

    more = subprocess.run(
        [sys.executable, "train.py", "hydra.sweeper.n_trials=7"],
        cwd=application,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert more.returncode == 0, more.stderr
    assert "extended: run_cap 6 → 7" in more.stderr
    assert len(Experiment.open(LocalStore(str(application / "sweep-store" / "tuned"))).trials()) == 7
