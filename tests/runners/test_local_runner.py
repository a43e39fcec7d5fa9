"""Workers on this machine: what is rendered is what is started, and `end` leaves no process."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from runners.errors import PoolError
from runners.pools.pool import Pool
from runners.workers.processes import Process, end, processes, start


def a_pool(folder: Path, **fields: object) -> Pool:
    defaults = {"name": "toy", "storage": "s", "folder": folder, "workers": 1, "command": ("true",), **fields}
    return Pool(**defaults)  # type: ignore[arg-type]


def test_every_worker_has_its_own_log_and_its_share_of_threads(tmp_path):
    started = processes(a_pool(tmp_path, workers=3, threads=2))
    assert [p.log_file.name for p in started] == ["worker-1.log", "worker-2.log", "worker-3.log"]
    assert {p.env["OMP_NUM_THREADS"] for p in started} == {"2"}
    assert {p.argv for p in started} == {("true",)}


def test_a_process_stands_for_each_host_of_a_worker(tmp_path):
    started = processes(a_pool(tmp_path, workers=2, nodes=2, devices=("0", "1", "2", "3")))
    assert [p.log_file.stem for p in started] == [f"worker-{w}-host-{r}" for w in (1, 2) for r in (0, 1)]
    assert [p.env["NODE_RANK"] for p in started] == ["0", "1", "0", "1"]
    assert [p.env["CUDA_VISIBLE_DEVICES"] for p in started] == ["0", "1", "2", "3"]
    ports = [p.env["MASTER_PORT"] for p in started]
    assert ports[0] == ports[1] != ports[2] == ports[3]
    assert {p.env["MASTER_ADDR"] for p in started} == {"127.0.0.1"}
    with pytest.raises(PoolError, match="2 workers of 2 hosts would share 3 accelerators"):
        a_pool(tmp_path, workers=2, nodes=2, devices=("0", "1", "2"))
    with pytest.raises(PoolError, match="nodes: 0 is less than 1"):
        a_pool(tmp_path, nodes=0)


def test_a_chip_of_a_tpu_is_all_that_its_worker_sees(tmp_path):
    first, second = processes(a_pool(tmp_path, workers=2, devices=("tpu:0", "tpu:3")))
    assert second.env == {
        "PJRT_DEVICE": "TPU",
        "TPU_VISIBLE_CHIPS": "3",
        "TPU_CHIPS_PER_HOST_BOUNDS": "1,1,1",
        "TPU_HOST_BOUNDS": "1,1,1",
    }
    assert first.env["TPU_VISIBLE_CHIPS"] == "0"


def test_a_setup_comes_before_the_worker_and_reaches_it(tmp_path):
    (process,) = processes(
        a_pool(
            tmp_path,
            setup=("export WHO='the setup'",),
            command=("bash", "-c", 'echo "$WHO, $1"', "-", "it's"),
        )
    )
    (started,) = start([process])
    assert started.wait(30) == 0
    assert process.log_file.read_text() == "the setup, it's\n"


def python(code: str, log: Path) -> Process:
    return Process(argv=(sys.executable, "-c", code), env={"ANSWER": "yes"}, log_file=log)


def test_output_and_environment_reach_the_log(tmp_path):
    started = start([python("import os; print(os.environ['ANSWER'])", tmp_path / "logs" / "w.log")])
    assert started[0].wait(30) == 0
    assert (tmp_path / "logs" / "w.log").read_text() == "yes\n"
    assert end(started) == [0]


def test_end_asks_first_and_kills_whoever_does_not_listen(tmp_path):
    polite = "import signal,sys,time; signal.signal(15, lambda *a: sys.exit(75)); print(1, flush=True); time.sleep(600)"
    deaf = "import signal,time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    started = start([python(polite, tmp_path / "a"), python(deaf, tmp_path / "b")])
    deadline = time.monotonic() + 30
    while not ((tmp_path / "a").read_text() and (tmp_path / "b").read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert end(started, grace_s=0.5) == [75, -signal.SIGKILL]
