"""Fixtures for tests of sweeps: a small space over a function, an experiment in memory, and a clock to move by hand."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from memory_store import MemoryStore

from sweeps.experiment import Experiment
from sweeps.space.definition import Fixed, Lease, Objective, Program, Range, Search, Space


class Clock:
    """A clock that moves only by `advance`."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def space() -> Space:
    return Space(
        name="toy",
        objectives=(Objective(metric="loss"),),
        parameters=(
            Range(name="x", min=0.0, max=1.0, kind="float"),
            Range(name="n", min=1, max=100, kind="int", log=True),
            Fixed(name="mode", value="fast"),
        ),
        program=Program(kind="function", function="objectives_for_tests:paraboloid"),
        search=Search(method="random", sobol=4, seed=3),
        run_cap=8,
        lease=Lease(heartbeat_s=10, expire_s=30, max_attempts=3),
    )


@pytest.fixture
def experiment(space: Space, clock: Clock) -> Experiment:
    return Experiment.create(MemoryStore(clock=clock), space)


@pytest.fixture(autouse=True)
def _functions(tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test in a folder of its own, with tests/sweeps/functions on the import path.

    The trainer's cache is not this user's: `sweep doctor` would look through all of it, in every test.
    """
    monkeypatch.setenv("STAGESWEEP_CACHE", str(cache_folder))
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "functions"))
    monkeypatch.chdir(tmp_path)
    for name in ("SWEEP_STORAGE", "SWEEP_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def command_space(space: Space) -> Space:
    """Return the toy space with a command as its program; set the command with `dataclasses.replace`."""
    return replace(space, program=Program(kind="command", command=("true", "${overrides}")))


@pytest.fixture(scope="session")
def _built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Return a folder of sweeps that were built in this session, and their URLs, which are relative."""
    return tmp_path_factory.mktemp("built"), {}


@pytest.fixture
def built_once(
    tmp_path: Path, _built: tuple[Path, dict[str, str]]
) -> Callable[[str, Callable[[], str]], str]:
    """Return `built_once(name, build)`: the URL of the sweep that `build` makes in ./sweep-store, as a copy of its own.

    Only the first test of the session calls `build`. For sweeps without a running trial: heartbeats would be old.
    """
    folder, urls = _built

    def built_once(name: str, build: Callable[[], str]) -> str:
        if name in urls:
            shutil.copytree(folder / name, tmp_path / "sweep-store")
        else:
            urls[name] = build()
            shutil.copytree(tmp_path / "sweep-store", folder / name)
        return urls[name]

    return built_once
