"""Errors of an engine's command, in one line."""

from __future__ import annotations

import re

import pytest

from runners.errors import EngineFailed, EngineMissing
from runners.pools.program import run_command

TRACEBACK = """Traceback (most recent call last):
  File "cli.py", line 3, in main
    raise ConnectionError(
ConnectionError: Could not find any running instance.
Say where it is."""


@pytest.mark.parametrize(
    ("script", "message"),
    [
        pytest.param("echo no >&2; exit 3", "no", id="what it says"),
        pytest.param("echo out; exit 3", "out", id="to whichever stream"),
        pytest.param("exit 3", "exit status 3", id="nothing"),
        pytest.param("printf 'a\\n b\\n'; exit 1", "a b", id="lines"),
        pytest.param(
            f"echo '{TRACEBACK}' >&2; exit 1",
            "ConnectionError: Could not find any running instance. Say where it is.",
            id="a traceback's error alone",
        ),
    ],
)
def test_a_complaint_is_one_line(script: str, message: str) -> None:
    with pytest.raises(EngineFailed, match=f"^ray: bash: {re.escape(message)}$"):
        run_command("ray", ["bash", "-c", script], remedy="-")


def test_a_command_that_is_not_here_or_hangs_is_told_so() -> None:
    with pytest.raises(EngineMissing, match=r"nowhere.*; get it"):
        run_command("ray", ["nowhere"], remedy="get it")
    with pytest.raises(EngineFailed, match=r"sleep .* 0\.1 s"):
        run_command("ray", ["sleep", "9"], remedy="-", timeout_s=0.1)
    assert run_command("ray", ["echo", "yes"], remedy="-") == "yes\n"
