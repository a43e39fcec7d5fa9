"""A folder whose files have the names of packages: what the platform starts there never imports them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

import sweeps
from runners.pools.pool import worker_command
from sweeps.errors import CannotStart
from sweeps.experiment import Experiment
from sweeps.programs import process
from sweeps.programs.kinds import program_of
from sweeps.programs.result import Completed
from sweeps.programs.signals import Stop
from sweeps.space.definition import Choice, Objective, Program, Search
from sweeps.storage.local import LocalStore
from sweeps.trials.record import Trial
from trainer import api

ROOT = Path(sweeps.__file__).parents[1]
NAMES = ("sweeps", "trainer", "runners", "analysis", "click", "secrets", "yaml")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a file for each name that ends whatever imports it."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name} of the folder')\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def test_worker_of_a_pool_runs_functions_of_the_folder(folder: Path, space) -> None:
    """The function imports modules of its folder when it is loaded and when it is called, a `trainer` too."""
    (folder / "trainer.py").write_text("def double(x): return 2 * x\n")
    (folder / "helper.py").write_text("OFFSET = 1\n")
    (folder / "objective_here.py").write_text(
        "import helper\ndef f(p):\n    from trainer import double\n    return {'loss': double(p['x']) + helper.OFFSET}\n"
    )
    small = replace(
        space,
        parameters=(Choice(name="x", values=(1, 2)),),
        program=Program(kind="function", function="objective_here:f"),
        search=Search(method="grid"),
        run_cap=2,
    )
    experiment = Experiment.create(LocalStore(folder / "store"), small)
    command = worker_command(experiment.store.url, python=sys.executable)
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert sorted(record.metrics["loss"] for record in experiment.trials()) == [3, 5]


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_trainer_of_a_trial_is_ours(folder: Path, processes: int) -> None:
    command = api.command(["no_such_key=1"], folder / "run", processes=processes)
    log = folder / "log.txt"
    assert process.run(command, log_file=log, env={}, should_stop=lambda: False) == api.EXIT_CONFIG
    assert log.read_text().startswith("trainer: error: ")


def test_command_by_its_module_is_ours(folder: Path) -> None:
    """`python -m` puts the folder first, from which the command takes it away before it imports anything."""
    (folder / "sweeps.py").unlink()
    ran = subprocess.run(
        [sys.executable, "-m", "sweeps", "--version"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_program_of_a_command_has_the_folder(folder: Path, space) -> None:
    (folder / "task.py").write_text(
        "import json, os, helper\n"
        "json.dump({'loss': helper.VALUE}, open(os.environ['SWEEP_RUN_DIR'] + '/result.json', 'w'))\n"
    )
    (folder / "helper.py").write_text("VALUE = 7\n")
    for command in (("${python}", "task.py"), ("${python}", "-m", "task")):
        outcome = run(replace(space, program=Program(kind="command", command=command)), folder)
        assert isinstance(outcome, Completed), outcome
        assert outcome.metrics["loss"] == 7


def run(space, folder: Path):
    run_folder = folder / "run"
    run_folder.mkdir(exist_ok=True)
    record = Trial(
        trial=0, status="running", parameters={}, generator="sobol", attempt=1, worker="w", heartbeat=1.0
    )
    return program_of(space).run(record, run_folder, stop=Stop(), wants_stop=lambda: False)


def test_folder_is_not_first_once_the_function_has_returned(folder: Path, space, monkeypatch) -> None:
    (folder / "late.py").write_text("VALUE = 7\n")
    (folder / "function_here.py").write_text(
        "import sys\ndef f(p):\n    import late\n    return {'loss': late.VALUE, 'first': float(sys.path[0] == '')}\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    outcome = run(replace(space, program=Program(kind="function", function="function_here:f")), folder)
    assert outcome.metrics == {"loss": 7, "first": 1}
    assert PathFinder.find_spec("secrets", sys.path).origin != str(folder / "secrets.py")


def test_function_in_a_module_called_as_a_package_says_so(folder: Path, space) -> None:
    with pytest.raises(CannotStart, match="`sweeps`"):
        program_of(replace(space, program=Program(kind="function", function="sweeps:f"))).require_startable()


def test_trainer_of_a_script_in_the_folder_is_refused(folder: Path, space, monkeypatch) -> None:
    """A script imports from its own folder first, which is the user's right."""
    monkeypatch.delitem(sys.modules, "trainer")
    monkeypatch.syspath_prepend(str(folder))
    trained = replace(space, program=Program(kind="trainer"), objectives=(Objective(metric="final_loss"),))
    with pytest.raises(CannotStart, match=f"{folder}/trainer.py"):
        program_of(trained).check([{}])


def test_package_that_is_broken_is_one_line(folder: Path, monkeypatch) -> None:
    broken = folder / "broken"
    broken.mkdir()
    (broken / "click.py").write_text("from os import no_such_name\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(broken), str(ROOT)]))
    ran = subprocess.run([*worker_command("store")], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    (line,) = ran.stderr.splitlines()
    assert line.startswith("sweep: error: cannot import ")
    assert "no_such_name" in line
