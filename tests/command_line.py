"""The fixture `sweep`: call the `main` of the command in this process; get its exit status, stdout and stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    monkeypatch.setattr(logging, "basicConfig", lambda **kwargs: None)  # it would keep this test's stderr

    from sweeps.cli import main

    def run(*argv: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["sweep", *argv])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        streams = capsys.readouterr()
        return Ran(int(caught.value.code or 0), streams.out, streams.err)

    return run
