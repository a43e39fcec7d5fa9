"""The worker's script in a real shell: what a field holds stays one word, and statuses mean what they should."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runners_pools import FULL, PLAIN, hostile

from runners.pools.script import worker_script


def run(script: str, folder: Path | None = None, **variables: str) -> subprocess.CompletedProcess[bytes]:
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **variables}
    return subprocess.run(
        ["bash", "-c", script], env=environment, cwd=folder, capture_output=True, check=False, timeout=60
    )


@given(words=st.lists(hostile, min_size=1, max_size=4), value=hostile)
def test_hostile_words_stay_one_argument_each(words, value):
    command = ("bash", "-c", 'printf "%s\\0" "$X" "$@"', "-", *words)
    with tempfile.TemporaryDirectory() as folder:
        ran = run(worker_script(replace(PLAIN, command=command, environment={"X": value})), Path(folder))
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.decode().split("\0")[:-1] == [value, *words]
        assert not list(Path(folder).iterdir())


@pytest.mark.parametrize(
    ("setup", "status"),
    [
        pytest.param(("export X=1",), 0, id="fine"),
        pytest.param(("false", "export X=1"), 1, id="a line fails"),
        pytest.param(("exit 2",), 1, id="2 of a setup is no refused input"),
        pytest.param(("echo 'open",), 1, id="an open quote ends the setup and no more"),
        pytest.param(("kill -TERM $$",), 75, id="preempted"),
    ],
)
def test_the_worker_runs_only_after_a_setup_that_went_well(setup, status):
    ran = run(worker_script(replace(PLAIN, setup=setup, command=("bash", "-c", "echo worker"))))
    assert ran.returncode == status, ran.stderr
    assert ran.stdout == (b"worker\n" if status == 0 else b"")


def test_signals_reach_the_worker_through_the_script():
    command = (
        sys.executable,
        "-c",
        "import os, signal; os.kill(int(os.environ['SHELL_PID']), signal.SIGTERM)",
    )
    script = worker_script(replace(PLAIN, setup=("export SHELL_PID=$$",), command=command))
    assert run(script).returncode == -signal.SIGTERM


def test_a_secret_is_named_and_has_to_be_there():
    pool = replace(PLAIN, secrets=("TOKEN",), command=("bash", "-c", 'echo "$TOKEN"'))
    assert run(worker_script(pool), TOKEN="s3cret").stdout == b"s3cret\n"
    missing = run(worker_script(pool))
    assert missing.returncode not in (0, 2, 42, 75)
    assert b"TOKEN: is a secret of this pool" in missing.stderr


def test_threads_and_environment_are_exported():
    lines = worker_script(FULL).splitlines()
    assert "export OMP_NUM_THREADS=8" in lines
    assert lines[-1] == "exec -- python3 -P -m sweeps worker --storage gs://bucket/sweeps/toy --max-trials 4"
