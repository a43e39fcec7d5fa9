"""Sweeps that the tests of commands share."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

SPACE = """\
name: toy
objectives: [{metric: loss, goal: minimize}]
program: {function: "objectives_for_tests:paraboloid"}
parameters:
  x: {min: 0.0, max: 1.0}
  n: {min: 1, max: 100}
  mode: {value: fast}
search: {method: random, sobol: 4}
run_cap: 5
"""


@pytest.fixture
def space_file(tmp_path: Path) -> Path:
    file = tmp_path / "space.yaml"
    file.write_text(SPACE)
    return file


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


@pytest.fixture
def finished(sweep, space_file, built_once) -> str:
    """Return the URL of a sweep whose five trials are done."""

    def build() -> str:
        url = sweep("init", str(space_file)).out.strip()
        assert sweep("worker").status == 0
        return url

    return built_once("finished", build)
