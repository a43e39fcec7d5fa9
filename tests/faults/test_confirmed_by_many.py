"""Real workers share a confirmation, one is killed in the middle, and two plan at once: no repeat runs twice."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from sweeps.experiment import Experiment
from sweeps.operations.confirmation import document
from sweeps.search.confirm.plan import stored_plan
from sweeps.search.confirm.rounds import of_store
from sweeps.space.definition import Choice, Fixed, Lease, Objective, Program, Search, Space
from sweeps.storage.local import LocalStore

FUNCTIONS = str(Path(__file__).parents[1] / "sweeps" / "functions")

pytestmark = pytest.mark.timeout(300)


def command(argv: list[str], folder: str, seconds: float) -> None:
    """Do what `sweep ARGV` does, in a process forked from the server; by observed values, as Ax is slow."""
    from sweeps.cli import main
    from sweeps.search.confirm import finalists

    finalists._predictions = lambda space, records: ({}, "not here")
    os.environ.update({"CALL_SECONDS": str(seconds), "SWEEP_STORAGE": folder})
    os.setsid()
    sys.path.insert(0, FUNCTIONS)
    sys.argv = ["sweep", *argv]
    main()


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    space = Space(
        name="many",
        objectives=(Objective(metric="loss"),),
        parameters=(Choice(name="x", values=(0.1, 0.2, 0.3, 0.4)), Fixed(name="seed", value=0)),
        program=Program(kind="function", function="objectives_for_tests:noisy"),
        search=Search(method="grid"),
        lease=Lease(heartbeat_s=0.3, expire_s=3.0, max_attempts=5),
    )
    monkeypatch.syspath_prepend(FUNCTIONS)
    experiment = Experiment.create(LocalStore(tmp_path / "store" / "many"), space)
    from objectives_for_tests import noisy

    from sweeps.trials.lifecycle import Complete

    while (record := experiment.ask("before", leased=False)) is not None:
        metrics = noisy(dict(record.parameters))
        experiment.apply(record.trial, Complete(worker=record.worker, attempt=1, metrics=metrics))
    return experiment.store.url


@pytest.fixture
def start(forkserver, url):
    """Return a function that starts `sweep ARGV`; what is left at the end is killed."""
    started = []

    def start(*argv: str, seconds: float = 0.2):
        process = forkserver.Process(target=command, args=([*argv], url, seconds))
        process.start()
        started.append(process)
        return process

    yield start
    for process in started:
        if process.is_alive():
            process.kill()
        process.join()


def repeats(url: str) -> list:
    return [r for r in Experiment.open(LocalStore(url)).trials() if r.generator == "confirm"]


def wait_for(condition, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def standing_of(url: str):
    experiment = Experiment.open(LocalStore(url))
    found = of_store(experiment.store, experiment.space, experiment.trials())
    assert found is not None
    return found[1]


def assert_finished(url: str, finalists: int, seeds: int) -> None:
    plan, now = stored_plan(LocalStore(url))[0], standing_of(url)
    space = Experiment.open(LocalStore(url)).space
    assert (len(plan.finalists), len(plan.seeds), now.finished) == (finalists, seeds, True)
    parameters = Counter(tuple(record.parameters.items()) for record in repeats(url))
    assert set(parameters.values()) == {1}, "no repeat was made twice"
    assert {record.status for record in repeats(url)} == {"completed"}
    assert document(space, plan, now)["winner"]["seeds"] == seeds


def frozen_with_a_trial(pid: int, url: str) -> bool:
    """Stop the process; if it has no trial just then, let it go on."""
    os.kill(pid, signal.SIGSTOP)
    has_one = any(r.status == "running" and str(pid) in (r.worker or "") for r in repeats(url))
    if not has_one:
        os.kill(pid, signal.SIGCONT)
    return has_one


def test_shared_by_three_though_one_is_killed(start, url):
    first = start(
        "confirm", "--top", "3", "--seeds", "4", seconds=2.0
    )  # not done before the others have begun
    wait_for(lambda: any(record.status == "running" for record in repeats(url)))
    second, worker = start("confirm"), start("worker")
    wait_for(lambda: len({r.worker for r in repeats(url) if r.status == "running"}) > 1)
    wait_for(lambda: frozen_with_a_trial(first.pid, url))
    os.kill(first.pid, signal.SIGKILL)
    (left,) = (r.trial for r in repeats(url) if r.status == "running" and str(first.pid) in (r.worker or ""))
    for process in (second, worker):
        process.join(120)
        assert process.exitcode == 0
    assert_finished(url, 3, 4)
    (taken,) = (record for record in repeats(url) if record.trial == left)
    assert taken.attempt > 1, "the trial of the killed one was taken over"


def test_a_worker_stays_while_rounds_are_to_come(start, url):
    """Two workers, one of whom is always idle at the end of a round: it waits for the next one."""
    start("confirm", "--top", "3", "--seeds", "4", "--plan").join(60)
    workers = [start("worker", seconds=1.0), start("worker", seconds=1.0)]  # several heartbeats a trial
    while True:
        alive = [worker.is_alive() for worker in workers]
        if standing_of(url).finished:
            break
        assert alive == [True, True]
        time.sleep(0.02)
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    assert_finished(url, 3, 4)


def test_of_two_who_plan_at_once_one_plan_holds_for_both(start, url):
    both = [start("confirm", "--top", "2", "--seeds", "2", seconds=0.0) for _ in range(2)]
    for process in both:
        process.join(120)
        assert process.exitcode == 0
    assert_finished(url, 2, 2)


def test_stopped_it_hands_back_and_the_next_goes_on(start, url):
    first = start("confirm", "--top", "2", "--seeds", "2", seconds=30.0)
    wait_for(lambda: any(record.status == "running" for record in repeats(url)))
    os.kill(first.pid, signal.SIGTERM)
    first.join(60)
    assert first.exitcode == 75
    assert [record.status for record in repeats(url)] == ["pending"]
    assert stored_plan(LocalStore(url)) is not None
    second = start("confirm", seconds=0.0)
    second.join(60)
    assert second.exitcode == 0
    assert_finished(url, 2, 2)
