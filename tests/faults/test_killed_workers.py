"""Real worker processes on one folder, half of them killed with SIGKILL at random moments.

Every index exists once, no two trials are alike, none is lost, none is run to its end twice.
The workers are forked from a server that has imported Ax once, so that eight of them start in a moment.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from silent_watcher import Silent

from sweeps.experiment import Experiment
from sweeps.space.definition import Lease, Objective, Program, Range, Search, Space
from sweeps.storage.local import LocalStore

TRIALS = 40
FUNCTIONS = str(Path(__file__).parents[1] / "sweeps" / "functions")

pytestmark = pytest.mark.timeout(300)


def worker_process(folder: str, environment: dict[str, str]) -> None:
    """Do what `sweep worker` does, in a process forked from the server."""
    import sys

    from sweeps.programs.signals import Stop
    from sweeps.worker.loop import work

    os.environ.update(environment)
    sys.path.insert(0, FUNCTIONS)
    stop = Stop()
    stop.listen()
    work(Experiment.open(LocalStore(folder)), stop=stop, watcher=Silent())


@pytest.fixture
def sweep(tmp_path: Path) -> Experiment:
    space = Space(
        name="many",
        objectives=(Objective(metric="loss"),),
        parameters=(
            Range(name="x", min=0.0, max=1.0, kind="float"),
            Range(name="n", min=1, max=1000, kind="int", log=True),
        ),
        program=Program(kind="function", function="objectives_for_tests:recorded"),
        search=Search(method="random", seed=1),
        run_cap=TRIALS,
        lease=Lease(heartbeat_s=0.3, expire_s=1.5, max_attempts=50),
    )
    return Experiment.create(LocalStore(tmp_path / "store"), space)


@pytest.fixture
def start(forkserver):
    """Return a function that starts a worker process; those left at the end, also stopped ones, are killed."""
    started = []

    def start(sweep: Experiment, seconds: float):
        calls = Path(sweep.store.location("")) / "calls"
        environment = {"CALLS": str(calls), "CALL_SECONDS": str(seconds), "OMP_NUM_THREADS": "1"}
        process = forkserver.Process(target=worker_process, args=(sweep.store.url, environment))
        process.start()
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.join()


def check_everything(sweep: Experiment) -> Counter:
    """Check the final state; return how often each trial was run to its end."""
    records = Experiment.open(sweep.store).trials()
    assert [record.trial for record in records] == list(range(TRIALS))
    assert {record.status for record in records} == {"completed"}
    assert len({json.dumps(dict(record.parameters), sort_keys=True) for record in records}) == TRIALS
    for record in records:
        assert [a.attempt for a in record.history] == list(range(1, record.attempt + 1))
        assert [a.reason for a in record.history][-1] == "completed"
        assert {a.reason for a in record.history[:-1]} <= {"expired"}
        assert record.metrics["loss"] == pytest.approx(
            (record.parameters["x"] - 0.3) ** 2 + record.parameters["n"] / 100
        )
    root = Path(sweep.store.location(""))
    assert not (root / "ask.lock").exists()
    assert sorted(p.name for p in (root / "trials").iterdir() if not p.name.startswith(".")) == [
        f"{i:06d}.json" for i in range(TRIALS)
    ]
    names = {(repr(r.parameters["x"]), repr(r.parameters["n"])): r.trial for r in records}
    return Counter(names[tuple(line.split())] for line in (root / "calls").read_text().splitlines())


@pytest.mark.parametrize("workers", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_every_trial_is_run_exactly_once(start, sweep, workers):
    processes = [start(sweep, seconds=0.0) for _ in range(workers)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * workers
    assert check_everything(sweep) == Counter(range(TRIALS))
    assert all(record.attempt == 1 for record in sweep.trials())


@pytest.mark.parametrize("workers", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_killing_half_of_the_workers_loses_nothing(start, sweep, workers):
    chance = random.Random(workers)
    processes = [start(sweep, seconds=0.05) for _ in range(workers)]
    killed = 0
    deadline = time.monotonic() + 240
    while any(process.is_alive() for process in processes) and time.monotonic() < deadline:
        time.sleep(chance.uniform(0.2, 0.8))
        alive = [process for process in processes if process.is_alive()]
        if killed < 2 * workers and alive:
            for process in chance.sample(alive, max(1, len(alive) // 2)):
                process.kill()  # one that has just ended by itself is let be
                process.join()
                killed += 1
                processes.append(start(sweep, seconds=0.05))
    for process in processes:
        process.join()
    assert killed >= 2
    runs = check_everything(sweep)
    # A trial may have been run again only if a killed worker had it; the function's line is written just before
    # the report, so a kill between the two is the one way to see a trial twice.
    attempts = {record.trial: record.attempt for record in sweep.trials()}
    assert set(runs) == set(range(TRIALS))
    assert all(runs[index] <= attempts[index] for index in runs)
    assert sum(attempts.values()) - TRIALS <= killed


def test_stalled_worker_changes_no_finished_trial(start, sweep):
    """SIGSTOP for longer than the lease: another worker runs the trial, and the late report is dropped.

    It is stopped while its function runs; `test_frozen_writers` stops workers in the middle of a write.
    """
    stalled = start(sweep, seconds=1.0)
    deadline = time.monotonic() + 60
    while not any(record.status == "running" for record in sweep.trials()) and time.monotonic() < deadline:
        time.sleep(0.02)
    while Path(sweep.store.location("ask.lock")).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)  # the claim is over, the first heartbeat is due in 0.2 s
    os.kill(stalled.pid, signal.SIGSTOP)
    (held,) = [record for record in sweep.trials() if record.status == "running"]
    other = start(sweep, seconds=0.0)
    other.join()
    done = sweep.trial(held.trial)
    assert (done.status, done.attempt) == ("completed", 2)
    os.kill(stalled.pid, signal.SIGCONT)
    stalled.join()
    assert (stalled.exitcode, other.exitcode) == (0, 0)
    assert sweep.trial(held.trial) == done
    check_everything(sweep)


def test_killed_worker_takes_its_processes_along(tmp_path):
    """Otherwise a trainer would go on with a trial that another worker has taken over."""
    store = LocalStore(tmp_path / "store")
    code = "sleep 600 & echo $! $$ > pids.part; mv pids.part pids; wait"
    space = Space(
        name="one",
        objectives=(Objective(metric="loss"),),
        parameters=(Range(name="x", min=0.0, max=1.0, kind="float"),),
        program=Program(kind="command", command=("bash", "-c", code, "${overrides}")),
        search=Search(method="random"),
        run_cap=1,
        baseline={"x": 0.5},  # a candidate without Ax
    )
    Experiment.create(store, space)
    worker = subprocess.Popen(
        [sys.executable, "-m", "sweeps", "worker", "--storage", store.url],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "pids").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    worker.kill()
    worker.wait()
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [pid for pid in pids if alive(pid)] == []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
