"""The store's clock is set while workers run: live workers keep their trials, dead ones are detected."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest
from memory_store import MemoryStore

from sweeps.experiment import Experiment
from sweeps.space.definition import Budget
from sweeps.storage.local import LocalStore
from sweeps.trials import budget, lifecycle
from sweeps.trials.lease import ObjectLease, Silence
from sweeps.trials.lifecycle import Claim, Heartbeat
from sweeps.trials.record import Trial
from sweeps.upkeep import diagnostics
from sweeps.upkeep.inventory import survey

HOUR = 3600.0
EXPIRE_S = 30.0


class Worlds:
    """The store's clock, and this machine's monotonic clock."""

    def __init__(self) -> None:
        self.store, self.machine = 1_000_000.0, 500.0

    def steady(self) -> float:
        return self.machine

    def advance(self, seconds: float) -> None:
        self.store += seconds
        self.machine += seconds


@pytest.fixture
def worlds() -> Worlds:
    return Worlds()


def running(now: float) -> Trial:
    fresh = Trial(trial=0, status="pending", parameters={}, generator="sobol")
    return lifecycle.apply(fresh, Claim(worker="w1"), now)


def beat(record: Trial, now: float) -> Trial:
    return lifecycle.apply(record, Heartbeat(worker="w1", attempt=1), now)


def test_clock_set_back_takes_no_trial_from_live_worker(worlds):
    silence = Silence(EXPIRE_S, worlds.steady)
    record = running(worlds.store)
    assert not silence.is_stale(record, worlds.store)
    worlds.store -= HOUR
    for _ in range(10):  # its worker beats on
        worlds.advance(EXPIRE_S / 3)
        assert not silence.is_stale(record, worlds.store)
        record = beat(record, worlds.store)
        assert not silence.is_stale(record, worlds.store)


def test_dead_worker_is_found_after_clock_was_set_back(worlds):
    silence = Silence(EXPIRE_S, worlds.steady)
    record = running(worlds.store)
    worlds.store -= HOUR
    assert not silence.is_stale(record, worlds.store)
    worlds.advance(EXPIRE_S + 1)
    assert silence.is_stale(record, worlds.store)


def test_late_worker_watches_before_taking_over(worlds):
    record = running(worlds.store + HOUR)
    silence = Silence(EXPIRE_S, worlds.steady)
    assert not silence.is_stale(record, worlds.store)
    worlds.advance(EXPIRE_S - 1)
    assert not silence.is_stale(record, worlds.store)
    worlds.advance(2)
    assert silence.is_stale(record, worlds.store)


def test_a_silent_worker_is_found_at_once_where_no_clock_was_set(worlds):
    record = running(worlds.store)
    worlds.advance(EXPIRE_S + 1)
    assert Silence(EXPIRE_S, worlds.steady).is_stale(record, worlds.store)


def test_workers_leave_live_trial_after_clock_was_set_back(space, clock, experiment):
    clock.advance(HOUR)
    mine = experiment.ask("w1")
    other = Experiment(experiment.store, space)
    assert other.ask("w2").trial != mine.trial
    clock.advance(-HOUR)
    assert other.ask("w2").trial != mine.trial
    newcomer = Experiment(experiment.store, space)
    assert newcomer.ask("w3").trial != mine.trial
    kept = experiment.apply(mine.trial, Heartbeat(worker="w1", attempt=1))
    assert (kept.worker, kept.attempt, kept.heartbeat) == ("w1", 1, clock())


def test_doctor_reports_heartbeat_in_future(space, clock, experiment):
    clock.advance(HOUR)
    experiment.ask("w1")
    clock.advance(-HOUR)
    (message,) = [
        finding.what
        for finding in diagnostics.examine(experiment, survey(experiment.store))
        if finding.kind == "expired"
    ]
    assert "3600 s in the future" in message
    assert "-" not in message


def test_hours_are_not_negative_after_clock_was_set_back(worlds, space):
    record = replace(running(worlds.store), created=worlds.store)
    spent = budget.spent(space, [record], worlds.store - HOUR)
    assert (spent.device_hours, spent.wall_hours) == (0.0, 0.0)
    limited = replace(space, budget=Budget(wall_hours=1.0))
    assert budget.reached_limit(limited, [record], worlds.store - HOUR) == ""


def test_file_versions_rise_after_clock_was_set_back(tmp_path):
    store = LocalStore(tmp_path)
    store.create("trials/000000.json", b"one")
    ahead = time.time_ns() + int(HOUR) * 10**9  # written before the clock was set back
    os.utime(tmp_path / "trials" / "000000.json", ns=(ahead, ahead))
    versions = [store.read("trials/000000.json")[1]]
    for data in (b"two", b"three", b"four"):
        versions.append(store.replace("trials/000000.json", data, versions[-1]))
    assert [int(version) for version in versions] == sorted({int(version) for version in versions})
    assert [entry.version for entry in store.list("trials/")] == versions[-1:]


def test_an_ask_lock_from_before_the_clock_was_set_back_is_taken(clock):
    store = MemoryStore(clock=clock)
    clock.advance(HOUR)
    store.create("ask.lock", f'{{"holder": "w0", "renewed": {clock()}}}'.encode())
    clock.advance(-HOUR)
    with ObjectLease(store, "ask.lock", heartbeat_s=1, expire_s=5).held("w1") as mine:
        assert mine  # a hint that saves work: two who generate at once do no harm


def test_clock_set_forward_takes_no_trial_from_live_worker(worlds):
    """As when the only machine slept for an hour: all its workers sleep, too."""
    silence = Silence(EXPIRE_S, worlds.steady)
    record = running(worlds.store)
    silence.observe(worlds.store)
    worlds.store += HOUR
    for _ in range(10):  # its worker beats on
        silence.observe(worlds.store)
        assert not silence.is_stale(record, worlds.store)
        worlds.advance(EXPIRE_S / 3)
        record = beat(record, worlds.store)


def test_dead_worker_is_found_after_clock_was_set_forward(worlds):
    silence = Silence(EXPIRE_S, worlds.steady)
    record = running(worlds.store)
    silence.observe(worlds.store)
    worlds.store += HOUR
    silence.observe(worlds.store)
    assert not silence.is_stale(record, worlds.store)
    worlds.advance(EXPIRE_S + 1)
    silence.observe(worlds.store)
    assert silence.is_stale(record, worlds.store)
