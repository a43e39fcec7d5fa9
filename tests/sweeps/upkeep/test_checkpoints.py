"""Doctor and repair of snapshots: each mismatch is named with its remedy, and mended once, without guessing."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from published import done, key_of, publish, publish_all, put, staged, store_files, with_points

from sweeps.errors import StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.storage.local import LocalStore
from sweeps.transfer import stored_stages
from sweeps.trials.lifecycle import Complete
from sweeps.upkeep import diagnostics, doctor
from sweeps.upkeep.diagnostics import plan
from sweeps.upkeep.inventory import survey
from sweeps.upkeep.repair import carry_out

KEY, OTHER = key_of(0.1), key_of(0.5)
LATER_S = 7200.0


@pytest.fixture
def sweep(store, space) -> Experiment:
    """Two complete snapshots, of trials 0 and 1, and a trial that started from the first."""
    experiment = Experiment.create(store, staged(space))
    now = store.now()
    for record in (done(0, 0.1, 1.0, now=now), done(1, 0.5, 2.0, now=now), done(2, 0.1, 3.0, of=0, now=now)):
        put(store, record)
    publish_all(experiment)
    return experiment


@pytest.fixture
def later(sweep, monkeypatch):
    """Lets the store's clock be hours ahead, so that no file is young any more."""
    now = type(sweep.store).now
    monkeypatch.setattr(type(sweep.store), "now", lambda self: now(self) + LATER_S)


def found(experiment: Experiment, **options) -> list[tuple[str, str]]:
    findings = diagnostics.examine(experiment, survey(experiment.store, **options))
    assert all(finding.where.find(str(experiment.store.url)) == 0 for finding in findings)
    return [(finding.kind, finding.level) for finding in findings]


def repair(experiment: Experiment, **options) -> list[tuple[str, str]]:
    """Repair everything, check that a second repair finds nothing; kind and state of every step."""
    steps = plan(experiment, survey(experiment.store, **options))
    outcomes = [carry_out(step) for step in steps]
    assert plan(experiment, survey(experiment.store, **options)) == []
    assert found(experiment, **options) == []
    return [(outcome.step.kind, outcome.state) for outcome in outcomes]


def by_records(experiment: Experiment) -> set[str]:
    return {run.key for record in experiment.trials() for run in record.stages if run.snapshot}


def complete(experiment: Experiment) -> set[str]:
    return {s.key for s in stored_stages.stored_stages(experiment.store) if not s.problem()}


def file_of(experiment: Experiment, key: str = KEY, by: str = "000000-1"):
    return experiment.store.folder(f"stages/{key}") / by / "weights" / "model.bin"


def set_manifest(experiment: Experiment, data: bytes, key: str = KEY) -> None:
    name = f"stages/{key}/manifest.json"
    experiment.store.replace(name, data, experiment.store.read(name)[1])


def test_snapshots_in_order_are_no_finding(sweep, later):
    assert found(sweep, checksums=True) == []
    assert plan(sweep, survey(sweep.store, checksums=True)) == []


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda sweep: file_of(sweep).unlink(), "weights/model.bin is missing"),
        (
            lambda sweep: os.truncate(file_of(sweep), 9),
            "weights/model.bin has 9 bytes, its manifest says 3000",
        ),
        (lambda sweep: set_manifest(sweep, b"{"), "its manifest cannot be read"),
    ],
    ids=["missing", "cut-off", "manifest"],
)
def test_damaged_snapshot_goes_from_records_and_store(sweep, damage, why):
    damage(sweep)
    (finding,) = diagnostics.examine(sweep, survey(sweep.store))
    assert (finding.kind, finding.level) == ("damaged", "problem")
    assert why in finding.what
    assert "`sweep repair`" in finding.remedy
    assert repair(sweep) == [("damaged", "done")]
    assert by_records(sweep) == complete(sweep) == {OTHER}
    assert [s.key for s in stored_stages.stored_stages(sweep.store)] == [OTHER]


def test_other_bytes_of_the_same_size_are_found_with_checksums(sweep):
    file_of(sweep).write_bytes(b"v" * 3000)
    assert found(sweep) == []
    assert found(sweep, checksums=True) == [("damaged", "problem")]
    diagnosis = doctor.examine(lambda: sweep, expected=True, checksums=True)
    assert "damaged" in {finding.kind for finding in diagnosis.findings}
    assert repair(sweep, checksums=True) == [("damaged", "done")]
    assert by_records(sweep) == complete(sweep) == {OTHER}


def test_vanished_snapshot_goes_from_every_record(sweep):
    put(sweep.store, done(3, 0.1, 4.0, now=sweep.store.now()))
    put(
        sweep.store,
        replace(done(4, 0.1, status="running", now=sweep.store.now()), status="pending", worker=None),
    )
    (stage,) = stored_stages.stored_stages(sweep.store, only=KEY)
    stored_stages.remove(sweep.store, stage)
    (finding,) = diagnostics.examine(sweep, survey(sweep.store))
    assert (finding.kind, finding.level) == ("vanished", "problem")
    assert finding.what.endswith("by trials 0, 3, 4")
    assert repair(sweep) == [("vanished", "done")]
    assert by_records(sweep) == complete(sweep) == {OTHER}
    assert sweep.trial(2).stages == done(2, 0.1, 3.0, of=0).stages


def test_the_record_of_a_running_publisher_is_left_to_its_worker(sweep):
    """Its next heartbeat would write again what a repair changed; once the trial has ended, it is mended."""
    now = sweep.store.now()
    put(sweep.store, done(3, 0.9, status="running", now=now))
    assert found(sweep) == [("vanished", "problem")]
    (finding,) = diagnostics.examine(sweep, survey(sweep.store))
    assert "trial 3 `sweep repair`" in finding.remedy
    assert plan(sweep, survey(sweep.store)) == []
    sweep.apply(3, Complete(worker="w", attempt=1, metrics={"loss": 1.0}))
    assert repair(sweep) == [("vanished", "done")]
    assert by_records(sweep) == {KEY, OTHER}


def test_a_snapshot_that_no_record_has_is_a_note_once_it_is_old(sweep, monkeypatch):
    put(sweep.store, done(0, 0.1, 1.0, snapshot=False))
    assert found(sweep) == []  # its publisher may be about to say so
    now = type(sweep.store).now
    monkeypatch.setattr(type(sweep.store), "now", lambda self: now(self) + LATER_S)
    assert found(sweep) == [("unnamed", "note")]
    assert "2.9 KiB" in plan(sweep, survey(sweep.store))[0].what
    assert repair(sweep) == [("unnamed", "done")]
    assert [s.key for s in stored_stages.stored_stages(sweep.store)] == [OTHER]


@pytest.mark.parametrize(
    "claim", ["its publisher runs", "its publisher will run again", "a running trial started from it"]
)
def test_a_snapshot_that_a_running_trial_has_to_do_with_is_left(sweep, later, claim):
    put(sweep.store, done(0, 0.1, 1.0, snapshot=False))
    if claim.startswith("its publisher"):
        publish(sweep.store, key_of(0.9), "000003-1")
        running = replace(done(3, 0.9, status="running", now=sweep.store.now()), stages=())
        pending = replace(running, status="pending", worker=None, heartbeat=None)
        put(sweep.store, running if claim == "its publisher runs" else pending)
        expected = [("unnamed", "note")]  # that of trial 0 alone
    else:
        put(sweep.store, done(3, 0.1, of=0, status="running", now=sweep.store.now()))
        expected = []
    assert found(sweep) == expected


def test_old_files_of_a_killed_publisher_are_removed(sweep, monkeypatch):
    """Alone, and next to a complete snapshot of the same key, which stays as it is."""
    store_files(sweep.store, key_of(0.9), "000003-1")
    store_files(sweep.store, KEY, "000003-1")
    assert found(sweep) == []
    now = type(sweep.store).now
    monkeypatch.setattr(type(sweep.store), "now", lambda self: now(self) + LATER_S)
    assert found(sweep) == [("unpublished", "note")] * 2
    running = replace(done(3, 0.9, status="running", now=sweep.store.now()), stages=())
    put(sweep.store, running)
    assert found(sweep) == []  # it publishes just now
    put(sweep.store, replace(running, status="abandoned", worker=None))
    assert repair(sweep) == [("unpublished", "done")] * 2
    assert by_records(sweep) == complete(sweep) == {KEY, OTHER}
    assert {
        part for s in stored_stages.stored_stages(sweep.store) for part in s.parts if "000003" in part
    } == set()


def test_a_manifest_of_a_later_version_is_left_to_it(sweep, later):
    set_manifest(sweep, json.dumps({"schema": 2, "files": {}}).encode())
    assert found(sweep) == [("newer", "note")]
    assert plan(sweep, survey(sweep.store)) == []


def test_what_nobody_writes_below_stages_is_foreign(sweep, later):
    sweep.store.create("stages/notes.txt", b"hello")
    assert found(sweep) == [("foreign", "note")]
    assert plan(sweep, survey(sweep.store)) == []


def test_a_repair_that_is_cut_short_is_finished_by_the_next(sweep, later, monkeypatch):
    file_of(sweep).unlink()

    def refuse(*given):
        raise StoreUnavailable("the network is down")

    with monkeypatch.context() as patch:
        patch.setattr(stored_stages, "remove", refuse)
        (step,) = plan(sweep, survey(sweep.store))
        assert carry_out(step).state == "failed"
    assert by_records(sweep) == {OTHER}
    assert found(sweep) == [("damaged", "note")]  # no record counts on it any more
    assert repair(sweep) == [("damaged", "done")]


def test_snapshot_published_before_the_repair_stays(sweep):
    set_manifest(sweep, b"{")
    (step,) = plan(sweep, survey(sweep.store))
    (old,) = stored_stages.stored_stages(sweep.store, only=KEY)
    stored_stages.remove(sweep.store, old)
    publish(sweep.store, KEY, "000002-2")
    assert carry_out(step).state == "overtaken"
    assert complete(sweep) == {KEY, OTHER}


def test_the_doctor_changes_nothing(tmp_path, sweep_in):
    experiment = sweep_in(LocalStore(tmp_path / "sweep"))
    before = sorted(tmp_path.rglob("*"))
    survey(experiment.store, checksums=True)
    assert [
        path for path in sorted(tmp_path.rglob("*")) if path not in before and ".clock" not in path.name
    ] == []


def test_points_of_trunks_are_compared_likewise(sweep, later):
    """One is in order, one damaged, one gone, one no record has, and one a waiting trial began from."""
    now = sweep.store.now()
    put(sweep.store, with_points(done(3, 0.9, 4.0, snapshot=False, now=now), 10, 20, 30))
    intact, cut = (point.key for point in sweep.trial(3).points[:2])
    began = replace(sweep.trial(3).points[0], key=key_of(7.0), snapshot=False, reused_from=3)
    put(sweep.store, replace(done(4, 0.9, status="running", now=now), points=(began,), stages=()))
    for key in (intact, cut, key_of(7.0), key_of(8.0)):
        publish(sweep.store, key, "000003-1")
    os.truncate(file_of(sweep, cut, "000003-1"), 9)
    assert sorted(found(sweep)) == [("damaged", "problem"), ("unnamed", "note"), ("vanished", "problem")]
    assert {state for _, state in repair(sweep)} == {"done"}
    assert [point.snapshot for point in sweep.trial(3).points] == [True, False, False]
    assert complete(sweep) == {KEY, OTHER, intact, key_of(7.0)}
