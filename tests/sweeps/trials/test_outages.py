"""The store is out of reach for all workers: once it answers again, no live worker loses its trial to another.

Their heartbeats are as old as the outage then, until they get through. Else whoever asks first would take
over every running trial, each with the work since its last checkpoint, and counted as lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from memory_store import MemoryStore

from sweeps.errors import Busy, StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.space.definition import Lease
from sweeps.trials import lifecycle
from sweeps.trials.lease import Silence
from sweeps.trials.lifecycle import Claim, Heartbeat
from sweeps.trials.record import Trial
from sweeps.worker.heartbeat import HeartbeatThread

HOUR = 3600.0
EXPIRE_S = 30.0


class Outages(MemoryStore):
    """A store that refuses everything while it is `away`."""

    away = False

    def read(self, key):
        self._must_answer()
        return super().read(key)

    def list(self, prefix):
        self._must_answer()
        return super().list(prefix)

    def _must_answer(self) -> None:
        if self.away:
            raise StoreUnavailable("503")


@pytest.fixture
def store(clock) -> Outages:
    return Outages(clock=clock)


@pytest.fixture
def live(space, store) -> Trial:
    """Return a trial that another worker runs, whose next heartbeat comes soon."""
    experiment = Experiment.create(store, replace(space, lease=Lease(heartbeat_s=0.05, expire_s=EXPIRE_S)))
    return experiment.ask("live")


@contextmanager
def outage(store: Outages, clock) -> Iterator[None]:
    store.away = True
    yield
    clock.advance(HOUR)
    store.away = False


def claimed_trial() -> tuple[list[float], Silence, Trial]:
    """Return a machine's monotonic clock, at 0, its monitor, and a trial that was claimed then."""
    machine = [0.0]
    fresh = Trial(trial=0, status="pending", parameters={}, generator="sobol")
    record = lifecycle.apply(fresh, Claim(worker="w1"), 0.0)
    return machine, Silence(EXPIRE_S, lambda: machine[0]), record


def test_who_asked_meanwhile_takes_over_no_live_trial(store, live, clock):
    other = Experiment.open(store)
    with outage(store, clock), pytest.raises(StoreUnavailable):
        other.ask("other")
    assert other.ask("other").trial != live.trial


def test_who_reported_meanwhile_takes_over_no_live_trial(store, live, clock):
    other = Experiment.open(store)
    mine = other.ask("other")
    done = lifecycle.Complete(worker="other", attempt=1, metrics={"loss": 1.0})
    with outage(store, clock), pytest.raises(StoreUnavailable):
        other.apply(mine.trial, done)
    assert other.apply(mine.trial, done).status == "completed"
    assert other.ask("other").trial not in (live.trial, mine.trial)


def test_who_only_sent_heartbeats_meanwhile_takes_over_no_live_trial(store, live, clock, caplog):
    other = Experiment.open(store)
    mine = other.ask("other")
    with HeartbeatThread(other, mine, lambda record, progress: None) as heartbeat:
        with outage(store, clock):
            deadline = time.monotonic() + 20
            while "a heartbeat failed" not in caplog.text and time.monotonic() < deadline:
                time.sleep(0.01)
        while other.trial(mine.trial).heartbeat != clock():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert not heartbeat.lost
    assert other.ask("other").trial not in (live.trial, mine.trial)


def test_who_started_meanwhile_takes_over_no_live_trial(space, store, clock, monkeypatch):
    live = Experiment.create(store, replace(space, lease=Lease(heartbeat_s=1, expire_s=3))).ask("live")
    read = store.read

    def answered_late(key):
        monkeypatch.setattr(store, "read", read)
        time.sleep(1.1)
        return read(key)

    monkeypatch.setattr(store, "read", answered_late)
    clock.advance(HOUR)
    assert Experiment.open(store).ask("newcomer").trial != live.trial


def test_a_worker_that_stays_away_is_found_after_its_lease():
    machine, silence, record = claimed_trial()
    with pytest.raises(StoreUnavailable), silence.contact():
        raise StoreUnavailable("503")
    machine[0] = HOUR
    found = []
    for _ in range(4):
        with silence.contact():
            pass
        found.append(silence.is_stale(record, machine[0]))
        machine[0] += EXPIRE_S / 2 + 1
    assert found == [False, False, True, True]


def test_requests_that_were_tried_again_for_long_count_as_an_outage():
    machine, silence, record = claimed_trial()
    with silence.contact():
        machine[0] += EXPIRE_S + 1
    assert not silence.is_stale(record, machine[0])
    record = lifecycle.apply(record, Heartbeat(worker="w1", attempt=1), machine[0])
    machine[0] += EXPIRE_S
    assert not silence.is_stale(record, machine[0])


def test_a_store_that_is_always_slow_does_not_keep_a_dead_worker_alive():
    machine, silence, record = claimed_trial()
    found = []
    for _ in range(6):
        with silence.contact():
            machine[0] += EXPIRE_S / 2
        found.append(silence.is_stale(record, machine[0]))
    assert found[-1]


def test_a_locked_record_is_no_outage():
    _, silence, record = claimed_trial()
    with pytest.raises(Busy), silence.contact():
        raise Busy("trials/000001.json", "locked")
    assert silence.is_stale(record, EXPIRE_S + 1)
