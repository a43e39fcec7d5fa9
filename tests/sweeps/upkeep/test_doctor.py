"""Every fault is found, with its level and location; a healthy sweep has no findings."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
from memory_store import MemoryStore
from published import put
from upkeep_cases import make_gap, make_ownerless, overwrite, tear

from sweeps.errors import StoreUnavailable, SweepNotFound
from sweeps.experiment import Experiment
from sweeps.search.allocation import ASK_KEY
from sweeps.search.confirm import plan
from sweeps.storage.local import LocalStore
from sweeps.trials import control, record
from sweeps.upkeep import diagnostics, doctor
from sweeps.upkeep.inventory import survey


def found(experiment: Experiment) -> dict[tuple[str, str], str]:
    """Kind and level of every finding about the sweep, with where it is."""
    findings = diagnostics.examine(experiment, survey(experiment.store))
    assert all(finding.what for finding in findings)
    return {(finding.kind, finding.level): finding.where for finding in findings}


def test_a_healthy_sweep_has_no_findings(tended):
    assert found(tended) == {}
    assert tended.ask("w1") is not None
    assert found(tended) == {}


def test_a_trial_that_begins_meanwhile_is_no_finding(tended, monkeypatch):
    """A worker creates it, and then its run, between two listings."""
    worker, kind = Experiment.open(tended.store), type(tended.store)
    assert worker.ask("w1").trial == 2
    listing, begun = kind.list, []

    def list_(self, prefix: str):
        entries = listing(self, prefix)
        if prefix == record.PREFIX and not begun:
            begun.append(3)
            assert worker.ask("w1").trial == 3
            self.create(f"{record.run_prefix(3, 1)}/trial.json", b"{}")
        return entries

    monkeypatch.setattr(kind, "list", list_)
    assert found(tended) == {}
    assert begun


def silence(experiment: Experiment) -> None:
    running = replace(
        experiment.trial(2), status="running", worker="w1", attempt=1, heartbeat=5.0, started=5.0
    )
    put(experiment.store, running)


def hand_out(experiment: Experiment) -> None:
    ago = experiment.store.now() - 3 * 86400
    asked = replace(
        experiment.trial(2), status="running", worker="me", attempt=1, heartbeat=None, started=ago
    )
    put(experiment.store, asked)


def supersede(experiment: Experiment) -> None:
    put(experiment.store, replace(experiment.trial(0), attempt=2))
    experiment.store.create("runs/000000/attempt-1/log.txt", b"old")
    experiment.store.create("runs/000000/attempt-2/log.txt", b"new")


def renew(experiment: Experiment) -> None:
    data = experiment.store.read(record.key(0))[0].replace(b'"schema": 1', b'"schema": 2')
    overwrite(experiment.store, record.key(0), data)


def swap(experiment: Experiment) -> None:
    overwrite(experiment.store, record.key(0), experiment.store.read(record.key(1))[0])


def leave_lock(experiment: Experiment) -> None:
    experiment.store.create(ASK_KEY, json.dumps({"schema": 1, "holder": "w1", "renewed": 5.0}).encode())


FAULTS: dict[str, tuple[Callable[[Experiment], object], tuple[str, str], str]] = {
    "a torn record": (tear, ("torn", "problem"), "trials/000000.json"),
    "a record under another's name": (swap, ("torn", "problem"), "trials/000000.json"),
    "a sweep that has paused itself": (
        lambda e: control.brake(e.store, control.switch(e.store), "3 trials in a row failed with: x"),
        ("braked", "problem"),
        "control.json",
    ),
    "a torn switch": (lambda e: e.store.create(control.KEY, b"{"), ("torn", "problem"), "control.json"),
    "a torn plan": (lambda e: e.store.create(plan.KEY, b"{"), ("torn", "problem"), "confirm.json"),
    "a record of a later version": (renew, ("newer", "problem"), "trials/000000.json"),
    "a removed record": (make_gap, ("gap", "problem"), "trials/000001.json"),
    "a silent worker": (silence, ("expired", "problem"), "trials/000002.json"),
    "a trial never reported": (hand_out, ("untold", "note"), "trials/000002.json"),
    "the same trial twice": (
        lambda e: put(e.store, replace(e.trial(2), parameters=e.trial(1).parameters)),
        ("duplicate", "problem"),
        "trials/000002.json",
    ),
    "runs without a record": (make_ownerless, ("ownerless", "problem"), "runs/000007"),
    "runs of lost attempts": (supersede, ("superseded", "note"), "runs/000000/attempt-1"),
    "a dead lock": (leave_lock, ("lock", "note"), "ask.lock"),
    "a foreign object": (
        lambda e: e.store.create("trials/notes.txt", b"hello"),
        ("foreign", "note"),
        "trials/notes.txt",
    ),
    "a foreign run": (
        lambda e: e.store.create("runs/mine/log.txt", b"hello"),
        ("foreign", "note"),
        "runs/mine/log.txt",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found_alone_and_where_it_is(tended, name):
    make_fault, what, key = FAULTS[name]
    make_fault(tended)
    assert found(tended) == {what: tended.store.location(key)}


def test_imported_repeats_are_no_duplicates(tended):
    again = replace(tended.trial(1), trial=3, generator="imported")
    put(tended.store, again)
    assert found(tended) == {}


def test_repeats_of_a_confirmation_are_no_finding(tended):
    for index, seed in ((3, 7), (4, 8)):
        parameters = {**tended.trial(1).parameters, "seed": seed, "eval.test": True}
        put(tended.store, replace(tended.trial(1), trial=index, generator="confirm", parameters=parameters))
    assert found(tended) == {}


def test_an_imported_repeat_is_not_outside_of_the_space(tended):
    parameters = {**tended.trial(1).parameters, "seed": 7}
    put(tended.store, replace(tended.trial(1), trial=3, generator="imported", parameters=parameters))
    assert found(tended) == {}


def test_a_draft_counts_as_left_behind_only_when_it_is_old(tmp_path, sweep_in):
    experiment = sweep_in(LocalStore(tmp_path / "sweep"))
    (tmp_path / "sweep" / "trials").mkdir()
    draft = tmp_path / "sweep" / "trials" / ".000000.json.draft"
    draft.write_bytes(b"{")
    assert found(experiment) == {}
    os.utime(draft, (5.0, 5.0))
    assert found(experiment) == {("draft", "note"): str(draft)}


def test_doctor_leaves_nothing_behind(tended):
    before = tended.store.list("trials/")
    diagnosis = doctor.examine(lambda: tended, expected=True)
    assert [finding for finding in diagnosis.findings if finding.kind not in ("device", "cache")] == []
    assert {"python", "torch", "devices", "store", "clock", "trials"} <= diagnosis.facts.keys()
    assert diagnosis.facts["trials"] == "1 pending, 2 completed"
    assert tended.store.list("trials/") == before
    assert tended.store.list(".doctor") == []


def test_problems_come_before_notes(tended):
    tear(tended)
    tended.store.create("trials/notes.txt", b"hello")
    diagnosis = doctor.examine(lambda: tended, expected=True)
    levels = [finding.level for finding in diagnosis.findings]
    assert levels == sorted(levels, reverse=True)
    assert not diagnosis.clean


def test_a_probe_of_an_interrupted_doctor_is_taken_away(tended):
    tended.store.create(".doctor", b"probe")
    doctor.examine(lambda: tended, expected=True)
    assert tended.store.list(".doctor") == []


def test_a_store_that_cannot_be_written_is_a_problem_of_its_own(space):
    class ReadOnly(MemoryStore):
        def create(self, key, data):
            if key == ".doctor":
                raise StoreUnavailable("no permission")
            return super().create(key, data)

    experiment = Experiment.create(ReadOnly(), space)
    diagnosis = doctor.examine(lambda: experiment, expected=True)
    (finding,) = (finding for finding in diagnosis.findings if finding.kind == "store")
    assert "no permission" in finding.what
    assert "trials" in diagnosis.facts  # and the rest was looked at all the same


@pytest.mark.parametrize(("offset_s", "level"), [(0.5, None), (60, "note"), (-60, "note"), (3600, "problem")])
def test_a_clock_that_is_off_is_reported_by_how_much_it_harms(space, offset_s, level):
    import time

    experiment = Experiment.create(MemoryStore(clock=lambda: time.time() + offset_s), space)
    diagnosis = doctor.examine(lambda: experiment, expected=True)
    assert [f.level for f in diagnosis.findings if f.kind == "clock"] == ([] if level is None else [level])
    side = "ahead" if offset_s > 0 else "behind"
    assert diagnosis.facts["clock"] == f"the store's is {abs(offset_s):.1f} s {side}"


@pytest.mark.parametrize(("expected", "level"), [(True, "problem"), (False, "note")])
def test_a_missing_sweep_is_a_problem_only_for_who_named_one(expected, level):
    def missing():
        raise SweepNotFound("./x: no sweep here")

    diagnosis = doctor.examine(missing, expected=expected)
    assert [f.level for f in diagnosis.findings if f.kind == "sweep"] == [level]


def test_a_store_that_is_away_is_a_finding_and_not_the_end(space):
    def away():
        raise StoreUnavailable("gs://b/x: no route to host")

    diagnosis = doctor.examine(away, expected=True)
    assert [f.what for f in diagnosis.findings if f.kind == "store"] == ["gs://b/x: no route to host"]


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        ("nfs", "rw,vers=3,nolock,local_lock=all", ["nolock"]),
        ("nfs4", "rw,vers=4.2,local_lock=flock", ["local_lock=flock"]),
        ("nfs4", "rw,vers=4.2,local_lock=none", []),
        ("lustre", "rw,checksum,localflock,lazystatfs", ["localflock"]),
        ("lustre", "rw,checksum,flock,lazystatfs", []),
        ("ext4", "rw,nolock", []),
    ],
)
def test_mount_whose_locks_are_not_shared_is_named(tmp_path, sweep_in, monkeypatch, kind, options, named):
    mounts = [
        SimpleNamespace(mountpoint=mountpoint, fstype=fstype, opts=opts)
        for mountpoint, fstype, opts in (("/", "ext4", "rw"), (str(tmp_path), kind, options))
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)
    experiment = sweep_in(LocalStore(tmp_path / "sweep"))
    findings = diagnostics.examine(experiment, survey(experiment.store))
    assert [f.what.partition(" with ")[2].partition(":")[0] for f in findings] == named
    assert {(f.kind, f.level) for f in findings} <= {("unshared_locks", "note")}
