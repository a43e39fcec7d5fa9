"""`sweep` as a function: the same `main` that the command runs, with its exit status and both streams."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sweeps.cli import main

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


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    monkeypatch.setattr(logging, "basicConfig", lambda **kwargs: None)  # it would keep this test's stderr

    def run(*argv: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["sweep", *argv])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        streams = capsys.readouterr()
        return Ran(int(caught.value.code or 0), streams.out, streams.err)

    return run


@pytest.fixture
def space_file(tmp_path: Path) -> Path:
    file = tmp_path / "space.yaml"
    file.write_text(SPACE)
    return file


@pytest.fixture
def finished(sweep, space_file) -> str:
    """The URL of a sweep whose five trials are done."""
    url = sweep("init", str(space_file)).out.strip()
    assert sweep("worker").status == 0
    return url
