"""Real processes that are told to go before their first step: out at once, with 75, and nothing half-written.

A machine may be gone thirty seconds after it was told so; on a busy one imports alone took half of that.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainer import api

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="/proc tells whether a handler stands"),
]

PROMPTLY_S = 3.0  # a second, and what a busy machine makes of it
LONG = ("stage2.max_steps=50000", "eval.batches=40", "force=true")

# A library in the way: it says that it is being imported, and then does not come back.
BLOCKED = """
import hashlib, importlib.abc, runpy, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == WHERE:
            print("here", flush=True)
            hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # C code, which no Python handler interrupts
        return None

sys.meta_path.insert(0, Blocked())
runpy.run_module("trainer", run_name="__main__", alter_sys=True)
"""

# A signal at the first moment at which one is handled.
AT_ONCE = """
import os, runpy, signal

install = signal.signal

def install_and_send(number, handler):
    install(number, handler)
    os.kill(os.getpid(), number)

signal.signal = install_and_send
runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)
"""

# The thread that watches for signals takes its time to end the process.
SLOW_WATCH = """
import os, threading, time

write = os.write

def write_slowly(descriptor, text):
    write(descriptor, text)
    time.sleep(0.0 if threading.current_thread() is threading.main_thread() else 1.0)

os.write = write_slowly
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(small: tuple[str, ...], tmp_path: Path) -> Iterator[Start]:
    """`start(*program, more=(…))`: Python over a program with a small run in `tmp_path / "run"`."""
    running: list[subprocess.Popen[str]] = []

    def start(*program: str, more: tuple[str, ...] = LONG) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *program, *small, *more, "run_dir=run"],
            cwd=tmp_path,
            env=dict(os.environ, PYTHONPATH=str(Path(api.__file__).parents[1])),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def wait_for_handler(process: subprocess.Popen[str]) -> None:
    """Until the process catches SIGTERM; the interpreter itself does not, in its first moments."""
    deadline = time.monotonic() + 60
    while True:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
        )
        if int(status["SigCgt"], 16) >> (signal.SIGTERM - 1) & 1:
            return
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)


def signalled(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
    """Return the status and the last line of a process that ends within `PROMPTLY_S` of the signal."""
    process.send_signal(number)
    sent = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - sent < PROMPTLY_S
    return process.returncode, err.splitlines()[-1]


def assert_nothing_half_written(folder: Path) -> None:
    for path in folder.rglob("*"):
        assert not path.name.endswith((".tmp", ".earlier")), path
        if path.suffix == ".json":
            json.loads(path.read_text())
    assert not (folder / api.RESULT_FILE).exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_the_handler_stands_before_the_imports(number: signal.Signals, start: Start, tmp_path: Path) -> None:
    process = start("-m", "trainer")
    wait_for_handler(process)
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "pydantic" not in maps  # the configuration's, and far from torch
    assert "libtorch" not in maps
    assert signalled(process, number) == (75, f"trainer: stopped by {number.name} before its first step")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("program", ["trainer", "trainer.teacher_cache"])
def test_the_first_signal_that_is_handled_ends_it(program: str, start: Start, tmp_path: Path) -> None:
    process = start("-c", f"PROGRAM = {program!r}\n{AT_ONCE}", more=())
    _, err = process.communicate(timeout=60)
    name = program.rpartition(".")[2]
    assert (process.returncode, err) == (75, f"{name}: stopped by SIGTERM before its first step\n")
    assert list(tmp_path.iterdir()) == []


def test_the_line_is_the_last_one(start: Start) -> None:
    """A traceback of the main thread, which had the signal second, stood below it."""
    back_soon = BLOCKED.replace("10**9", "3 * 10**5")
    process = start("-c", f"WHERE = 'pydantic'\n{SLOW_WATCH}\n{back_soon}")
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (75, "trainer: stopped by SIGTERM before its first step\n")


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.1, 1.0, 4.0])
def test_wherever_the_imports_are_it_leaves_promptly(seconds: float, start: Start, tmp_path: Path) -> None:
    process = start("-m", "trainer")
    wait_for_handler(process)
    time.sleep(seconds)
    status, line = signalled(process)
    assert (status, line.startswith("trainer: stopped by SIGTERM")) == (75, True)
    assert_nothing_half_written(tmp_path / "run")


@pytest.mark.parametrize(
    "where",
    [
        "torch",
        pytest.param("trainer.pipeline", marks=pytest.mark.slow),
        # Where the run's folder is open already, and the text is made into tokens.
        pytest.param("transformers.models.auto.tokenization_auto", marks=pytest.mark.slow),
    ],
)
def test_a_call_that_does_not_come_back_does_not_hold_it(where: str, start: Start, tmp_path: Path) -> None:
    process = start("-c", f"WHERE = {where!r}\n{BLOCKED}", more=(*LONG, "data.vocab_size=304"))
    assert process.stdout is not None
    assert any(line == "here\n" for line in process.stdout)
    time.sleep(0.5)  # between the line and the call a handler would still run
    assert signalled(process) == (75, "trainer: stopped by SIGTERM before its first step")
    assert_nothing_half_written(tmp_path / "run")


@pytest.mark.slow
def test_a_teacher_that_is_being_trained_does_not_hold_it(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGESWEEP_CACHE", str(tmp_path / "cache"))
    process = start("-m", "trainer", more=(*LONG, "model.teacher.max_steps=50000"))
    assert process.stdout is not None
    assert any(line == "preparing teacher: 0 %\n" for line in process.stdout)
    status, line = signalled(process)
    assert (status, line.startswith("trainer: stopped by SIGTERM")) == (75, True)
    assert_nothing_half_written(tmp_path / "run")
    teachers = list((tmp_path / "cache" / "teachers").glob("[!.]*"))
    assert teachers == []


@pytest.mark.slow
def test_a_cache_that_has_not_begun_does_not_hold_it(start: Start, tmp_path: Path) -> None:
    process = start("-m", "trainer.teacher_cache", more=())
    wait_for_handler(process)
    assert signalled(process) == (75, "teacher_cache: stopped by SIGTERM before its first step")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 3.0])
def test_processes_that_share_a_run_leave_promptly(seconds: float, start: Start, tmp_path: Path) -> None:
    process = start("-m", "trainer.distributed.launch", "2", more=(*LONG, "device.parallel=ddp"))
    wait_for_handler(process)
    time.sleep(seconds)
    process.send_signal(signal.SIGTERM)
    sent = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - sent < 2 * PROMPTLY_S
    assert process.returncode == 75
    assert err.count("trainer: stopped by SIGTERM") == len(err.splitlines()) <= 1
    assert_nothing_half_written(tmp_path / "run")
