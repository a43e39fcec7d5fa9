"""Real worker processes that are stopped in the middle of a write, holding a lock: others skip that record."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from silent_watcher import Silent

from sweeps.errors import Busy
from sweeps.experiment import Experiment
from sweeps.programs.signals import Stop
from sweeps.space.definition import Lease, Objective, Program, Range, Search, Space
from sweeps.storage.local import LocalStore
from sweeps.trials import record as trial
from sweeps.trials.lifecycle import Complete
from sweeps.trials.record import Trial
from sweeps.worker import loop, trial_run
from sweeps.worker.trial_run import report

TRIALS = 4
FUNCTIONS = str(Path(__file__).parents[1] / "sweeps" / "functions")

pytestmark = pytest.mark.timeout(200)


class Freezing(LocalStore):
    """Store that stops its process while it writes `content` to `key`, before that is visible."""

    def __init__(self, root: str, key: str, content: bytes) -> None:
        super().__init__(root, lock_timeout_s=0.5)
        self._freeze_at, self._content = key, content

    def _write(self, path: Path, data: bytes, above: int, *, new: bool) -> str:
        if self._content and path.match(f"*/{self._freeze_at}") and self._content in data:
            self._content = b""
            os.kill(os.getpid(), signal.SIGSTOP)
        return super()._write(path, data, above, new=new)


def worker_process(folder: str, key: str, content: bytes) -> None:
    """Do what `sweep worker` does, in a process forked from the server."""
    import sys

    sys.path.insert(0, FUNCTIONS)
    stop = Stop()
    stop.listen()
    loop.work(Experiment.open(Freezing(folder, key, content)), stop=stop, watcher=Silent())


@pytest.fixture
def start(forkserver, sweep: Experiment):
    """Return a function that starts a worker process; those left at the end, also stopped ones, are killed."""
    started = []

    def start(key: str = "", content: bytes = b""):
        process = forkserver.Process(target=worker_process, args=(sweep.store.url, key, content))
        process.start()
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.join()


@pytest.fixture
def sweep(tmp_path: Path) -> Experiment:
    space = Space(
        name="frozen",
        objectives=(Objective(metric="loss"),),
        parameters=(
            Range(name="x", min=0.0, max=1.0, kind="float"),
            Range(name="n", min=1, max=100, kind="int"),
        ),
        program=Program(kind="function", function="objectives_for_tests:paraboloid"),
        search=Search(method="random", seed=1),
        run_cap=TRIALS,
        lease=Lease(heartbeat_s=0.3, expire_s=1.5, max_attempts=50),
    )
    return Experiment.create(LocalStore(tmp_path / "store"), space)


def until(what: Callable[[], bool], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def statuses(sweep: Experiment) -> list[str]:
    return [record.status for record in sweep.trials()]


@pytest.mark.parametrize(
    "wakes", [pytest.param(True, id="woken"), pytest.param(False, id="killed", marks=pytest.mark.slow)]
)
def test_others_wait_for_a_stuck_report(start, sweep, wakes):
    frozen = start(trial.key(0), b'"completed"')
    until(lambda: is_stopped(frozen.pid))
    other = start()
    until(lambda: statuses(sweep) == ["running"] + ["completed"] * (TRIALS - 1))
    time.sleep(3.0)  # the lease of the first has run out, and its record could not be had
    assert other.is_alive()
    os.kill(frozen.pid, signal.SIGCONT if wakes else signal.SIGKILL)
    other.join()
    frozen.join()
    assert (other.exitcode, frozen.exitcode) == (0, 0 if wakes else -signal.SIGKILL)
    assert statuses(sweep) == ["completed"] * TRIALS
    # Woken, its write goes through under the lock that it never gave up; killed, the lock goes with it.
    assert sweep.trial(0).attempt == (1 if wakes else 2)


def test_waiting_for_a_half_made_candidate_survives(start, sweep):
    frozen = start(trial.key(0), b'"running"')
    until(lambda: is_stopped(frozen.pid))
    other = start()
    time.sleep(5.0)  # the ask lock was taken over, and the record tried more than once
    assert other.is_alive()
    assert statuses(sweep) == []
    os.kill(frozen.pid, signal.SIGCONT)
    other.join()
    frozen.join()
    assert (other.exitcode, frozen.exitcode) == (0, 0)
    assert statuses(sweep) == ["completed"] * TRIALS


def test_a_lock_that_is_held_for_long_is_named_with_what_to_do(tmp_path, start, sweep):
    frozen = start(trial.key(0), b'"running"')
    until(lambda: is_stopped(frozen.pid))
    with pytest.raises(Busy, match=r"000000\.json\.lock: held .*end it") as caught:
        LocalStore(tmp_path / "store", lock_timeout_s=0.1).create(trial.key(0), b"{}")
    assert caught.value.key == trial.key(0)


def test_a_report_is_tried_again_until_its_record_can_be_had(sweep, monkeypatch):
    """The result may be worth hours: five refusals in a row do not lose it."""
    record = Trial(
        trial=0,
        status="running",
        parameters={"x": 0.5, "n": 1},
        generator="sobol",
        attempt=1,
        worker="me",
        heartbeat=sweep.store.now(),
    )
    sweep.store.create(trial.key(0), trial.encode(record, "t"))
    real, refusals = sweep.store.replace, iter(range(5))

    def busy(key: str, data: bytes, expected: str) -> str:
        if next(refusals, None) is not None:
            raise Busy(key, "held by another process")
        return real(key, data, expected)

    monkeypatch.setattr(sweep.store, "replace", busy)
    monkeypatch.setattr(trial_run, "retry_delays", lambda: iter([0.0] * 9))
    done = Complete(worker="me", attempt=record.attempt, metrics={"loss": 0.5})
    assert report(sweep, record, done, Stop()).status == "completed"
    assert sweep.trial(0).metrics == {"loss": 0.5}
