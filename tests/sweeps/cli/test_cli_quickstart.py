"""`sweep quickstart` of a sweep that hands out no trials; tests/docs runs one from the start."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from sweeps.cli import quickstart
from sweeps.experiment import Experiment
from sweeps.programs.trainer import TrainerProgram
from sweeps.space.space_file import load
from sweeps.storage.local import LocalStore
from sweeps.trials import control


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_signals: None) -> Experiment:
    monkeypatch.chdir(tmp_path)
    with resources.as_file(resources.files("search_spaces") / quickstart.SPACE) as file:
        space = load(file)
    return Experiment.create(LocalStore(f"./sweep-store/{space.name}"), space)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return the exit statuses of the workers that were started: they leave at once."""
    from runners.workers import processes

    started: list[list[int]] = []
    monkeypatch.setattr(processes, "start", lambda pool: started.append([]) or [])
    monkeypatch.setattr(TrainerProgram, "prepare", lambda self, threads, report: None)
    return started


@pytest.mark.parametrize("state", ["paused", "stopped"])
def test_it_says_how_to_open_a_sweep_that_hands_out_no_trials(sweep, experiment, workers, state):
    control.write(experiment.store, state, "ada")
    ran = sweep("quickstart", "--storage", "./sweep-store")
    url = experiment.store.url
    assert (ran.status, ran.err) == (
        2,
        f"sweep: error: {url} is {state}; open it by `sweep resume --storage {url}`, then run this again\n",
    )
    assert workers == []


def test_a_sweep_that_is_stopped_meanwhile_is_to_be_opened_too(sweep, experiment, workers, monkeypatch):
    monkeypatch.setattr(quickstart, "_watch", lambda *_: control.write(experiment.store, "stopped", "ada"))
    ran = sweep("quickstart", "--storage", "./sweep-store")
    assert (ran.status, "is stopped; open it by `sweep resume " in ran.err) == (2, True)
    assert workers == [[]]


def test_a_sweep_that_has_paused_itself_says_why(sweep, experiment, workers):
    control.brake(experiment.store, control.switch(experiment.store), "3 trials failed alike")
    ran = sweep("quickstart", "--storage", "./sweep-store")
    assert (ran.status, "has paused itself: 3 trials failed alike; " in ran.err) == (1, True)
    assert workers == []
