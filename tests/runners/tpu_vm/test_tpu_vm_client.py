"""The real google-cloud-tpu client against the fake service: what is sent is accepted, what is answered is understood.

The fake's rules are assumptions; see `fake_tpu`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_tpu import FakeTpu
from fake_tpu.cloud import Cloud
from google.api_core import exceptions, retry

from runners.errors import EngineFailed, EngineMissing, PoolError
from runners.pools import pool_file
from runners.pools.pool import Pool, worker_command
from runners.tpu_vm import client, watch
from runners.tpu_vm.client import TpuVms
from runners.tpu_vm.decide import Create, Memory, Wanted
from runners.tpu_vm.options import options_of
from runners.tpu_vm.runner import RUNNER
from runners.tpu_vm.vm_script import PYTHON

ZONES = ("us-east5-b", "asia-northeast1-b")
SOON = retry.Retry(
    predicate=retry.if_exception_type(exceptions.ServiceUnavailable),
    initial=0.001,
    maximum=0.001,
    timeout=0.2,
)


@pytest.fixture(scope="module")
def server() -> Iterator[FakeTpu]:
    with FakeTpu() as fake:
        yield fake


@pytest.fixture
def tpu(server: FakeTpu) -> FakeTpu:
    server.cloud = Cloud()
    server.faults.clear()
    server.calls.clear()
    server.hurries = False
    return server


def pool(tmp_path: Path, workers: int = 1, **options: Any) -> Pool:
    url = "gs://bucket/a sweep"
    return Pool(
        name="a sweep",
        storage=url,
        folder=tmp_path,
        workers=workers,
        command=worker_command(url, python=PYTHON),
        accelerator="v6e-4",
        spot=True,
        options={"project": "p", "zones": list(ZONES), "package": "gs://bucket/s.whl", **options},
    )


class Watched:
    """Pool, the fake behind it, and the lines of `notify`."""

    def __init__(self, tpu: FakeTpu, pool: Pool) -> None:
        self.tpu, self.pool, self.lines, self.memory = tpu, pool, list[str](), Memory()
        self.vms = TpuVms(pool, options_of(pool), client=tpu.client(), retries=SOON)
        self.states: dict[str, str] = {}

    def step(self, times: int = 1) -> None:
        want = Wanted(workers=self.pool.workers, zones=ZONES)
        for _ in range(times):
            _, self.memory = watch.step(self.vms, want, self.memory, self.lines.append, self.states)
            self.tpu.cloud.tick()

    def ready(self) -> list[tuple[str, str]]:
        """Return zone and name of the VMs at work."""
        return sorted((n.zone, n.id) for n in self.tpu.cloud.nodes.values() if n.state == "READY")


def test_preempted_vm_is_deleted_and_recreated(tpu, tmp_path):
    here = Watched(tpu, pool(tmp_path, workers=2))
    here.step(4)
    label = here.pool.label
    assert here.ready() == [(ZONES[0], f"{label}-001"), (ZONES[0], f"{label}-002")]
    node = tpu.cloud.nodes[ZONES[0], f"{label}-001"].spec
    assert node.runtime_version == "v2-alpha-tpuv6e"
    assert dict(node.labels) == {"stagesweep-pool": label, "stagesweep-worker": "001"}
    assert tpu.cloud.requests[ZONES[0], f"{label}-001"].spot

    tpu.cloud.preempt(ZONES[0], f"{label}-001")
    here.step(8)
    assert here.ready() == [(ZONES[0], f"{label}-001"), (ZONES[0], f"{label}-002")]
    assert tpu.cloud.made == 3
    assert [entry for entry in tpu.cloud.journal if entry[0] == "delete"] == [
        ("delete", ZONES[0], f"{label}-001")
    ]
    assert any("SUSPENDED" in line for line in here.lines)
    labels = dict(tpu.cloud.nodes[ZONES[0], f"{label}-001"].spec.labels)
    assert labels == {"stagesweep-pool": label, "stagesweep-worker": "001", "stagesweep-begun": "yes"}
    begun = {(each.kind, each.worker) for each in here.vms.observe().resources if each.has_begun}
    assert begun == {("queued", 1), ("node", 1)}


@pytest.mark.parametrize("queued", [True, False])
def test_a_stockout_leads_to_the_next_zone(tpu, tmp_path, queued):
    tpu.cloud.capacity[ZONES[0]] = 0
    here = Watched(tpu, pool(tmp_path, queued=queued))
    here.step(14)
    assert [zone for zone, _ in here.ready()] == [ZONES[1]]
    assert len(set(here.lines)) == len(here.lines)
    assert {zone for zone, _ in [*tpu.cloud.requests, *tpu.cloud.nodes]} == {ZONES[1]}


def test_no_capacity_is_retried_and_reported_once(tpu, tmp_path):
    tpu.cloud.wrong = dict.fromkeys(ZONES, 8)
    here = Watched(tpu, pool(tmp_path))
    here.step(7)
    assert tpu.calls.count("CreateQueuedResource") == 7
    assert here.lines == [
        f"worker 1: a VM in {zone} is not created (stockout): {zone} refuses" for zone in ZONES
    ]


def test_a_quota_that_is_used_up_leads_there_at_once(tpu, tmp_path):
    tpu.cloud.wrong[ZONES[0]] = 8
    here = Watched(tpu, pool(tmp_path))
    here.step(5)
    assert [zone for zone, _ in here.ready()] == [ZONES[1]]


@pytest.mark.parametrize("queued", [True, False])
def test_lost_answers_and_lost_operations_make_no_second_vm(tpu, tmp_path, queued):
    method = "CreateQueuedResource" if queued else "CreateNode"
    tpu.faults[method] = ["down", "lost"]
    here = Watched(tpu, pool(tmp_path, queued=queued))
    here.step(2)
    tpu.cloud.operations.clear()
    tpu.faults["ListNodes"] = ["down"] * 2
    here.step(6)
    assert len(here.ready()) == tpu.cloud.made == 1
    assert tpu.calls.count(method) == 2

    here.vms = TpuVms(here.pool, options_of(here.pool), client=tpu.client(), retries=SOON)  # a new supervisor
    here.memory = Memory()
    here.step(2)
    assert tpu.cloud.made == 1


def test_silent_zone_stops_creations_only(tpu, tmp_path):
    tpu.faults["ListQueuedResources"] = ["down"] * 10_000
    here = Watched(tpu, pool(tmp_path))
    here.step(2)
    assert here.lines == [
        f"{zone} does not answer; nothing is created until it does" for zone in sorted(ZONES)
    ]
    assert here.vms.observe().unreachable == set(ZONES)
    assert here.vms.create(Create(worker=1, zone=ZONES[0]))[0] == "accepted"
    with pytest.raises(EngineFailed, match=r"tpu-vm: us-east5-b: .*not now"):
        here.vms.observe(strict=True)


def test_only_own_vms_are_observed(tpu, tmp_path):
    here = Watched(tpu, pool(tmp_path))
    label = here.pool.label
    tpu.cloud.create_node(ZONES[0], "somebody-elses", {"labels": {"owner": "somebody"}})
    tpu.cloud.create_node(ZONES[0], f"{label}x-001", {})
    tpu.cloud.create_node(ZONES[1], f"{label}-001", {"labels": {"stagesweep-pool": "another"}})
    assert here.vms.observe().resources == ()
    tpu.cloud.create_node(ZONES[0], f"{label}-007", {})
    assert [each.worker for each in here.vms.observe().resources] == [7]


def test_up_ends_without_work_and_deletes_all(tpu, tmp_path, monkeypatch):
    monkeypatch.setattr(client, "connect", tpu.client)
    monkeypatch.setattr("runners.workers.signals.StopSignal.listen", lambda self: None)
    wanted = pool(tmp_path, workers=2)

    def pause(seconds: float, stopped: object) -> None:
        tpu.cloud.tick()
        ready = [node for node in tpu.cloud.nodes.values() if node.state == "READY"]
        for node in ready:
            assert {worker.state for worker in RUNNER.status(wanted)} <= {"running", "waiting", "done"}
            node.ended = "0"

    monkeypatch.setattr(watch, "pause", pause)
    monkeypatch.setattr("google.api_core.retry.retry_unary.time.sleep", lambda seconds: tpu.cloud.tick())
    lines: list[str] = []
    assert RUNNER.up(wanted, lines.append) == 0
    assert (tpu.cloud.nodes, tpu.cloud.requests) == ({}, {})
    assert "2 spot TPU VMs v6e-4" in lines[0]
    assert pool_file.read(tmp_path) is None


def send_when_up(tpu, monkeypatch, name: str) -> list:
    """Let the pool get the signal of this name once two VMs are there; return the list of its `StopSignal`."""
    monkeypatch.setattr(client, "connect", tpu.client)
    monkeypatch.setattr(watch, "CLEAR_EVERY_S", 0.001)
    tpu.hurries = True
    signals = []
    monkeypatch.setattr("runners.workers.signals.StopSignal.listen", lambda self: signals.append(self))

    def pause(seconds: float, stopped: object) -> None:
        if len(list(tpu.cloud.alive())) == 2:
            signals[0].by = name

    monkeypatch.setattr(watch, "pause", pause)
    return signals


def test_a_signal_takes_the_pool_down(tpu, tmp_path, monkeypatch):
    send_when_up(tpu, monkeypatch, "SIGTERM")
    lines: list[str] = []
    assert RUNNER.up(pool(tmp_path, workers=2), lines.append) == 75
    assert (tpu.cloud.nodes, tpu.cloud.requests) == ({}, {})
    assert lines[-1].startswith("SIGTERM: ")


def test_a_terminal_that_is_gone_leaves_no_vm(tpu, tmp_path, monkeypatch):
    signals = send_when_up(tpu, monkeypatch, "SIGHUP")

    def notify(line: str) -> None:
        if signals[0].by:
            raise OSError(errno.EIO, "Input/output error")

    assert RUNNER.up(pool(tmp_path, workers=2), notify) == 75
    assert (tpu.cloud.nodes, tpu.cloud.requests) == ({}, {})


def test_full_disk_ends_neither_watch_nor_deletion(tpu, tmp_path, monkeypatch):
    monkeypatch.setattr(client, "connect", tpu.client)
    monkeypatch.setattr(watch, "CLEAR_EVERY_S", 0.001)
    monkeypatch.setattr("runners.workers.signals.StopSignal.listen", lambda self: None)
    tpu.hurries = True

    def pause(seconds: float, stopped: object) -> None:
        for node in tpu.cloud.nodes.values():
            node.ended = "0"

    def notify(line: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(watch, "pause", pause)
    wanted = pool(tmp_path)
    assert RUNNER.up(wanted, notify) == 0
    Watched(tpu, wanted).step(3)
    assert RUNNER.down(wanted, notify) == 1
    assert (tpu.cloud.nodes, tpu.cloud.requests) == ({}, {})


def test_scale_is_told_to_the_supervisor_here(tpu, tmp_path, monkeypatch):
    monkeypatch.setattr(client, "connect", tpu.client)
    monkeypatch.setattr(watch, "CLEAR_EVERY_S", 0.001)
    monkeypatch.setattr("runners.workers.signals.StopSignal.listen", lambda self: None)
    with pytest.raises(PoolError, match="no pool of this sweep runs on this machine"):
        RUNNER.scale(pool(tmp_path), 3, print)
    tpu.hurries = True
    most = 0

    def pause(seconds: float, stopped: object) -> None:
        nonlocal most
        most = max(most, len(list(tpu.cloud.alive())))
        if most == 1:
            RUNNER.scale(pool(tmp_path), 3, lambda line: None)
        for node in tpu.cloud.nodes.values() if most == 3 else ():
            node.ended = "0"

    monkeypatch.setattr(watch, "pause", pause)
    assert RUNNER.up(pool(tmp_path), lambda line: None) == 0
    assert most == 3


def test_logs_are_read_by_gcloud_from_the_vms_that_are_there(tpu, tmp_path, monkeypatch):
    monkeypatch.setattr(client, "connect", tpu.client)
    here = Watched(tpu, pool(tmp_path, workers=2))
    here.step(4)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineMissing, match="gcloud"):
        list(RUNNER.logs(here.pool, None, 7))
    (tmp_path / "gcloud").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "gcloud").chmod(0o755)
    head, line = RUNNER.logs(here.pool, "2", 7)
    assert head == "==> worker 2, us-east5-b <=="
    assert line == (
        f"compute tpus tpu-vm ssh {here.pool.label}-002 --zone us-east5-b --project p "
        "--command sudo tail -n 7 /opt/stagesweep/worker.log"
    )


def test_down_deletes_in_all_zones_and_waits(tpu, tmp_path, monkeypatch):
    monkeypatch.setattr(client, "connect", tpu.client)
    wanted = pool(tmp_path, workers=1)
    here = Watched(tpu, wanted)
    here.step(3)
    labels = {"stagesweep-pool": wanted.label, "stagesweep-worker": "009"}
    tpu.cloud.create_node(ZONES[1], f"{wanted.label}-009", {"labels": labels})
    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        tpu.cloud.tick()
        if len(sleeps) == 3:  # a creation whose answer was lost
            tpu.cloud.create_node(ZONES[0], f"{wanted.label}-004", {})

    monkeypatch.setattr("google.api_core.retry.retry_unary.time.sleep", sleep)
    assert RUNNER.down(wanted, here.lines.append) == 3
    assert (tpu.cloud.nodes, tpu.cloud.requests) == ({}, {})


def test_down_says_what_it_could_not_delete(tpu, tmp_path):
    here = Watched(tpu, pool(tmp_path))
    here.step(3)
    with pytest.raises(EngineFailed, match=rf"{here.pool.label}-001 in us-east5-b"):
        watch.clear(here.vms, ZONES, here.lines.append, every_s=0.001, gone_s=0.01)
