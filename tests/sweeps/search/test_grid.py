"""Grid search: every configuration once and in order, whatever happens to the trials."""

from __future__ import annotations

from dataclasses import replace

import pytest
from memory_store import MemoryStore

from sweeps.experiment import Experiment
from sweeps.search.grid import Grid
from sweeps.space.definition import Choice, Fixed, Range, Search, Space
from sweeps.trials import lifecycle

GRID = Search(method="grid")


@pytest.fixture
def grid_space(space: Space) -> Space:
    parameters = (
        Choice(name="seed", values=(0, 1)),
        Choice(name="warm", values=(True, False), when=((True, ("steps",)),)),
        Range(name="steps", min=2, max=4, kind="int"),
        Fixed(name="mode", value="fast"),
    )
    return replace(space, parameters=parameters, search=GRID, run_cap=None)


EXPECTED = [
    {"seed": seed, **rest, "mode": "fast"}
    for seed in (0, 1)
    for rest in (*({"warm": True, "steps": n} for n in (2, 3, 4)), {"warm": False})
]


def drained(experiment: Experiment, worker: str = "w") -> list[dict[str, object]]:
    made = []
    while (trial := experiment.ask(worker)) is not None:
        made.append(dict(trial.parameters))
        assert trial.generator == "grid"
        experiment.apply(trial.trial, lifecycle.Complete(worker=worker, attempt=1, metrics={"loss": 1.0}))
    return made


def test_grid_has_each_configuration_once_then_ends(grid_space: Space) -> None:
    experiment = Experiment.create(MemoryStore(), grid_space)
    assert drained(experiment) == EXPECTED
    assert experiment.is_full(experiment.trials())
    assert experiment.ask("late") is None


def test_two_workers_share_it(grid_space: Space) -> None:
    store = MemoryStore()
    first = Experiment.create(store, grid_space)
    second = Experiment.open(store)
    asked = [(first, "a"), (second, "b")] * 4
    trials = [experiment.ask(worker) for experiment, worker in asked]
    assert [dict(trial.parameters) for trial in trials if trial] == EXPECTED
    assert first.ask("a") is None
    assert not first.is_full([])


def test_a_failed_trial_is_not_made_again(grid_space: Space) -> None:
    experiment = Experiment.create(MemoryStore(), grid_space)
    first = experiment.ask("w")
    assert first is not None
    experiment.apply(first.trial, lifecycle.Abandon(by="a person"))
    assert drained(experiment) == EXPECTED[1:]


def test_the_cap_ends_it_earlier(grid_space: Space) -> None:
    experiment = Experiment.create(MemoryStore(), replace(grid_space, run_cap=3))
    assert drained(experiment) == EXPECTED[:3]


def test_what_cannot_be_listed_is_no_grid(space: Space) -> None:
    with pytest.raises(ValueError, match="cannot be listed"):
        Grid(space)
