"""Sweeps that the tests of commands share."""

from __future__ import annotations

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


@pytest.fixture
def finished(sweep, space_file, built_once) -> str:
    """Return the URL of a sweep whose five trials are done."""

    def build() -> str:
        url = sweep("init", str(space_file)).out.strip()
        assert sweep("worker").status == 0
        return url

    return built_once("finished", build)
