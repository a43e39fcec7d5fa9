"""The simulated fleet: real workers over a simulated bucket, with machines that are lost."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.scale.bucket import GCS, S3, Bucket, Refused
from benchmarks.scale.engine import Machine, Simulation
from benchmarks.scale.fleet import Report, Scenario, simulate

HARD = Scenario(
    workers=20,
    trials=40,
    trial_s=(60.0, 1200.0),
    notice_h=0.5,
    kill_h=1.0,
    outage_at_s=300.0,
    outage_s=400.0,
)
"""Half an hour in which most machines are lost once, and a quarter loses the bucket for longer than a lease."""


@pytest.fixture(scope="module")
def report() -> Report:
    return simulate(HARD)


def test_every_trial_is_done_once(report: Report) -> None:
    assert report.problems == []
    assert report.completed == report.trials == HARD.trials
    assert report.events["notice"] > 3
    assert report.events["kill"] > 3
    assert report.events["taken from the living"]  # their workers could not reach the bucket


def test_lost_machines_are_followed(report: Report) -> None:
    # A lease of 90 s, and a heartbeat up to 30 s before the end, or longer where the bucket was lost before.
    assert np.median(report.takeovers["kill"]) > 60
    assert 0 <= min(report.takeovers["notice"]) < 600


def test_time_and_requests_add_up(report: Report) -> None:
    spent = report.running_s + report.asking_s + report.reporting_s + report.leaving_s
    assert 0.9 * report.alive_s < spent <= report.alive_s + 1
    beats = report.running_s / 30
    assert report.requests["write"] > 0.9 * beats
    assert report.requests["read"] > report.requests["write"]
    assert report.usd == pytest.approx(
        5e-6 * (report.requests["write"] + report.requests["list"]) + 4e-7 * report.requests["read"]
    )


@pytest.mark.slow
def test_seed_decides_the_simulation(report: Report) -> None:
    again = simulate(HARD)
    assert (again.requests, again.hours, again.takeovers) == (report.requests, report.hours, report.takeovers)


def test_store_without_fence_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every write win: the account must show what the versions prevent."""
    real = Bucket.put

    def put(self: Bucket, key: str, data: bytes | None, expected: str | None) -> str | None:
        found = self.read(key)
        return real(self, key, data, found[1] if found else None)

    monkeypatch.setattr(Bucket, "put", put)
    found = simulate(Scenario(workers=8, trials=16, service="s3", trial_s=(60.0, 600.0), start_s=0.0))
    assert found.problems


def bucket(service: object = GCS) -> tuple[Simulation, Bucket]:
    simulation = Simulation()
    return simulation, Bucket(simulation, service, np.random.default_rng(0))  # type: ignore[arg-type]


def test_bucket_refuses_more_than_its_rate() -> None:
    _, new = bucket()
    assert new.admit("write", 1500) == 1000
    assert new.admit("read", 7000) == 5000
    assert new.admit("list") == 0  # which is a read
    assert new.refused == {"write": 500, "read": 2000, "list": 1}


def test_capacity_follows_sustained_load() -> None:
    simulation, new = bucket()
    _, fixed = bucket(S3)
    for _ in range(1300):
        simulation.env.run(simulation.env.now + 1)
        new.admit("write", 2000)
    assert new.rates["write"].limit == pytest.approx(2000, rel=0.01)
    assert fixed.rates["write"].limit == 3500


def test_one_change_a_second_per_name() -> None:
    simulation, new = bucket()
    version = new.put("a", b"1", None)
    with pytest.raises(Refused):
        new.put("a", b"2", version)
    assert new.put("a", b"2", "another") is None
    simulation.env.run(1.0)
    assert new.put("a", b"2", version)


def test_killed_machine_does_nothing_more() -> None:
    simulation, machine, steps = Simulation(), Machine("m"), []

    def work() -> None:
        try:
            steps.append("begun")
            simulation.sleep(10)
            steps.append("never")
        finally:
            simulation.sleep(1)
            steps.append("never, either")

    simulation.spawn(machine, work)
    simulation.run(5)
    simulation.kill(machine)
    simulation.run(20)
    assert steps == ["begun"]
    assert machine.threads == []
