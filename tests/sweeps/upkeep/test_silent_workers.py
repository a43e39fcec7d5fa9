"""Workers whose heartbeats are old are not dead yet: after an outage or a sleep, those of all live ones are."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from sweeps.errors import InputError
from sweeps.experiment import Experiment
from sweeps.operations import lifetime
from sweeps.search.allocation import ASK_KEY
from sweeps.trials.lease import ObjectLease
from sweeps.trials.lifecycle import Complete, Heartbeat
from sweeps.upkeep import repair
from sweeps.upkeep.diagnostics import plan
from sweeps.upkeep.inventory import survey
from sweeps.upkeep.removal import living

HOUR = 3600.0
OPERATIONS: dict[str, Callable[[Experiment], object]] = {
    "archive": lambda experiment: lifetime.archive(experiment, "ada"),
    "rename": lifetime.check_rename,
    "delete": lifetime.contents,
}


class Waits:
    """Stands in for `time` where heartbeats are awaited: `meanwhile` happens during each wait."""

    def __init__(self, clock) -> None:
        self.seconds: list[float] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self._clock = clock

    def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self._clock.advance(seconds)
        self.meanwhile()


@pytest.fixture
def waits(clock, monkeypatch) -> Waits:
    waits = Waits(clock)
    monkeypatch.setattr(
        "sweeps.trials.lease.time", SimpleNamespace(sleep=waits.sleep, monotonic=time.monotonic)
    )
    return waits


@pytest.fixture
def worker(experiment, clock, waits) -> Experiment:
    """Return the sweep of a worker that has a trial; its last heartbeat is an hour old."""
    assert experiment.ask("w").trial == 0
    experiment.allocator.lease.settle()
    clock.advance(HOUR)
    return experiment


def beats(worker: Experiment) -> Callable[[], object]:
    return lambda: worker.apply(0, Heartbeat(worker="w", attempt=1))


@pytest.mark.parametrize("name", OPERATIONS)
def test_worker_that_is_back_after_an_outage_is_at_work(worker, waits, name):
    waits.meanwhile = beats(worker)
    with pytest.raises(InputError, match=r"1 worker still at work \(w\)"):
        OPERATIONS[name](Experiment.open(worker.store))
    assert waits.seconds == [25.0]
    assert waits.seconds[0] > worker.space.lease.heartbeat_s


def by_another_clock(clock, action: Callable[[], object]) -> Callable[[], None]:
    """Do what a worker does whose clock is half an hour behind: a folder's may be that of who writes."""

    def act() -> None:
        clock.advance(-HOUR / 2)
        action()
        clock.advance(HOUR / 2)

    return act


def test_heartbeat_by_a_wrong_clock_is_a_sign_of_life(worker, waits, clock):
    waits.meanwhile = by_another_clock(clock, beats(worker))
    with pytest.raises(InputError, match=r"\(w\)"):
        lifetime.check_rename(Experiment.open(worker.store))


def test_worker_that_chooses_a_trial_is_at_work(experiment, waits, clock):
    times = experiment.space.lease
    lease = ObjectLease(experiment.store, ASK_KEY, heartbeat_s=HOUR, expire_s=times.expire_s)
    with lease.held("w") as held:
        assert held
        clock.advance(HOUR)
        waits.meanwhile = lambda: lease._write("w", lease._version)
        with pytest.raises(InputError, match=r"\(w\)"):
            lifetime.check_rename(Experiment.open(experiment.store))


def test_dead_worker_is_awaited_once(worker, waits):
    person = Experiment.open(worker.store)
    assert lifetime.contents(person).trials == {"running": 1}
    assert waits.seconds == [25.0]
    lifetime.delete(person, "ada")
    assert waits.seconds == [25.0]
    assert worker.store.list("") == []


def test_nobody_waits_where_a_heartbeat_decides(worker, waits):
    assert living(Experiment.open(worker.store)) == ()  # asked without a wait
    beats(worker)()
    with pytest.raises(InputError, match="still at work"):
        lifetime.check_rename(Experiment.open(worker.store))
    worker.apply(0, Complete(worker="w", attempt=1, metrics={"loss": 1.0}))
    lifetime.check_rename(Experiment.open(worker.store))
    assert waits.seconds == []


def repaired(experiment: Experiment) -> list[tuple[str, str]]:
    steps = plan(experiment, survey(experiment.store))
    return [(each.step.kind, each.state) for each in repair.carry_out_all(experiment, steps)]


def test_repair_takes_no_trial_from_a_worker_that_is_back(worker, waits):
    waits.meanwhile = beats(worker)
    assert repaired(Experiment.open(worker.store)) == [("expired", "overtaken")]
    assert waits.seconds == [25.0]
    assert worker.trial(0).status == "running"


def test_repair_by_a_wrong_clock_takes_no_trial_from_a_living_worker(worker, waits, clock):
    waits.meanwhile = by_another_clock(clock, beats(worker))
    steps = plan(Experiment.open(worker.store), survey(worker.store))
    (outcome,) = repair.carry_out_all(Experiment.open(worker.store), steps)
    assert (outcome.step.kind, outcome.state) == ("expired", "overtaken")
    assert "its worker has sent another heartbeat" in outcome.reason
    assert worker.trial(0).status == "running"


def test_repair_by_a_wrong_clock_leaves_the_lease_of_a_living_worker(experiment, waits, clock):
    lease = ObjectLease(experiment.store, ASK_KEY, heartbeat_s=HOUR, expire_s=experiment.space.lease.expire_s)
    with lease.held("w") as held:
        assert held
        clock.advance(HOUR)
        waits.meanwhile = by_another_clock(clock, lambda: lease._write("w", lease._version))
        assert repaired(Experiment.open(experiment.store)) == [("lock", "overtaken")]


def test_repair_hands_a_dead_workers_trial_back(worker, waits):
    assert repaired(Experiment.open(worker.store)) == [("expired", "done")]
    assert worker.trial(0).status == "pending"
    assert repaired(Experiment.open(worker.store)) == []
    assert waits.seconds == [25.0]
