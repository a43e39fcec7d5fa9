"""Workers on this machine: what is rendered is what is started, and `down` leaves nobody behind."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from runners.command import Pool, worker_argv
from runners.errors import PoolError
from runners.local import Process, down, render, up


def test_a_worker_is_this_interpreter_with_the_sweeps_url():
    assert worker_argv(Pool(storage="./a b/sweep", workers=1, max_trials=3)) == (
        sys.executable,
        "-m",
        "sweeps",
        "worker",
        "--storage",
        "./a b/sweep",
        "--max-trials",
        "3",
    )


def test_every_worker_has_its_own_log_and_its_share_of_threads(tmp_path):
    processes = render(Pool(storage="s", workers=3, threads=2), tmp_path)
    assert [p.log_file.name for p in processes] == ["worker-1.log", "worker-2.log", "worker-3.log"]
    assert {p.env["OMP_NUM_THREADS"] for p in processes} == {"2"}
    assert {p.argv for p in processes} == {worker_argv(Pool(storage="s", workers=1))}


@pytest.mark.parametrize("changes", [{"workers": 0}, {"threads": -1}, {"max_trials": 0}], ids=str)
def test_a_pool_that_makes_no_sense_is_refused_where_it_is_made(changes):
    with pytest.raises(PoolError) as caught:
        Pool(**({"storage": "s", "workers": 1} | changes))
    assert caught.value.field in changes


def python(code: str, log: Path) -> Process:
    return Process(argv=(sys.executable, "-c", code), env={"TOLD": "yes"}, log_file=log)


def test_output_and_environment_reach_the_log(tmp_path):
    started = up([python("import os; print(os.environ['TOLD'])", tmp_path / "logs" / "w.log")])
    assert started[0].wait(30) == 0
    assert (tmp_path / "logs" / "w.log").read_text() == "yes\n"
    assert down(started) == [0]


def test_down_asks_first_and_kills_whoever_does_not_listen(tmp_path):
    polite = "import signal,sys,time; signal.signal(15, lambda *a: sys.exit(75)); print(1, flush=True); time.sleep(600)"
    deaf = "import signal,time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    started = up([python(polite, tmp_path / "a"), python(deaf, tmp_path / "b")])
    deadline = time.monotonic() + 30
    while not ((tmp_path / "a").read_text() and (tmp_path / "b").read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert down(started, grace_s=0.5) == [75, -signal.SIGKILL]
