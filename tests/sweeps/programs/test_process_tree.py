"""What a program leaves running ends with it, and what no process can be started with fails its trial alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sweeps.programs import process
from sweeps.programs.warm_start import WarmStarts

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a parent for orphans"),
    pytest.mark.timeout(120),
]

DAEMON = """
import os, subprocess, sys, time
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
daemon = subprocess.Popen(sleeper, start_new_session=True)
open("daemon", "w").write(str(daemon.pid))
"""
KILLS_ITS_GUARD = """
import signal
guard = os.getppid()
os.setsid()
open("itself", "w").write(str(os.getpid()))
os.kill(guard, signal.SIGKILL)
time.sleep(600)
"""
HANGS = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("ready", "w").close()
time.sleep(600)
"""
PRELOAD = """
def preload(arguments): return ""
def data_files(): return []
def must_start_cold(arguments): return False
"""


@pytest.fixture(params=["cold", "warm"])
def run(request: pytest.FixtureRequest, tmp_path: Path):
    """Run some code as a program, started by its command or forked."""
    (tmp_path / "small_preload.py").write_text(PRELOAD)
    with WarmStarts("small_program", preload="small_preload") as starts:

        def start(code: str, *arguments: str, should_stop=lambda: False) -> int:
            (tmp_path / "small_program.py").write_text(code)
            return process.run(
                [sys.executable, "-m", "small_program", *arguments],
                log_file=tmp_path / "log.txt",
                env={"SWEEP_RUN_DIR": str(tmp_path)},
                should_stop=should_stop,
                grace_s=0.5,
                warm=starts if request.param == "warm" else None,
            )

        yield start


def is_gone(file: Path) -> bool:
    """Return whether the process whose id is in the file ends within a few seconds."""
    pid = int(file.read_text())
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    return False


def test_daemon_ends_with_its_program(run, tmp_path):
    assert run(DAEMON + "raise SystemExit(3)") == 3
    assert is_gone(tmp_path / "daemon")


def test_daemon_ends_when_the_trial_is_stopped(run, tmp_path):
    assert run(DAEMON + HANGS, should_stop=(tmp_path / "ready").exists) == -signal.SIGKILL
    assert is_gone(tmp_path / "daemon")


def test_program_that_kills_its_guard_dies(run, tmp_path):
    assert run(DAEMON + KILLS_ITS_GUARD) == -signal.SIGKILL
    assert is_gone(tmp_path / "itself")
    assert is_gone(tmp_path / "daemon")


def test_daemon_ends_with_a_killed_worker(tmp_path):
    (tmp_path / "small_program.py").write_text(DAEMON + HANGS)
    worker = """
import sys
from pathlib import Path
from sweeps.programs import process
argv = [sys.executable, "-m", "small_program"]
process.run(argv, log_file=Path("log.txt"), env={}, should_stop=lambda: False)
"""
    with subprocess.Popen([sys.executable, "-c", worker], cwd=tmp_path) as started:
        while not (tmp_path / "ready").exists():
            time.sleep(0.02)
        started.kill()
    assert is_gone(tmp_path / "daemon")


@pytest.mark.parametrize(
    "arguments", [("a\0b",), ("x" * 1_000_000,), ("x" * 1000,) * 9000, ("\ud800",)],
    ids=["nul", "long argument", "nine megabytes", "half pair"],
)  # fmt: skip
def test_request_that_cannot_be_sent_is_no_death(run, arguments, caplog):
    caplog.set_level("INFO")
    for _ in range(3):
        with pytest.raises(process.Unstartable):
            run("", *arguments)
    assert run("raise SystemExit(4)") == 4
    assert "have died" not in caplog.text
