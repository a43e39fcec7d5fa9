"""Renaming and deleting a sweep, in a folder and in a bucket, also where that was cut short."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from fake_gcs import Fault

from sweeps.errors import InputError, StoreUnavailable, SweepNotFound
from sweeps.experiment import Experiment
from sweeps.operations.lifetime import delete
from sweeps.storage.base import Store
from sweeps.storage.keys import SWEEP_KEY
from sweeps.storage.run_files.exchange import Deadline, UploadConfig
from sweeps.storage.urls import join, open_store, parent
from sweeps.transfer import copying
from sweeps.trials import amendments, control
from sweeps.trials.lifecycle import Complete, Fail, Release, Retry
from sweeps.upkeep import renaming
from sweeps.upkeep.diagnostics import plan
from sweeps.upkeep.doctor import examine
from sweeps.upkeep.inventory import survey
from sweeps.upkeep.removal import living, stock
from sweeps.upkeep.renaming import rename
from sweeps.upkeep.repair import carry_out

KEY = f"stages/{'ab' * 32}"


@pytest.fixture(params=["folder", "bucket", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch) -> str:
    """The URL of a folder of sweeps."""
    if request.param == "folder":
        return str(tmp_path / "store")
    if request.param == "s3":
        monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("s3").door("a"))
        return f"s3://bucket/lifetimes/{uuid.uuid4().hex}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", request.getfixturevalue("gcs").url)
    return f"gs://bucket/lifetimes/{uuid.uuid4().hex}"


def open_at(url: str, name: str) -> Experiment:
    return Experiment.open(open_store(join(url, name)))


@pytest.fixture
def sweep(url: str, space, tmp_path) -> Experiment:
    """A completed trial, a pending one, a snapshot and an amendment."""
    found = Experiment.create(open_store(join(url, "toy")), space)
    for _ in range(2):
        record = found.ask("w")
    found.apply(0, complete(found.trial(0)))
    found.apply(1, release(record))
    ended = tmp_path / "ended"
    ended.mkdir()
    (ended / "weights.bin").write_text("w" * 3000)
    publish(found.store, ended)
    found.extend({"run_cap": 30}, by="ada")
    found.allocator.lease.settle()
    return found


def complete(record):
    return Complete(worker="w", attempt=record.attempt, metrics={"loss": 0.5})


def release(record):
    return Release(worker="w", attempt=record.attempt)


def publish(store: Store, folder: Path) -> None:
    deadline = Deadline(UploadConfig(patience_s=1.0, first_wait_s=0.02, longest_wait_s=0.1))
    assert copying.publish(store, KEY, folder, "000000-1", link=False, deadline=deadline) is not None


def fetched(store: Store, into: Path) -> str:
    found = copying.published(store, KEY)
    assert found is not None
    into.mkdir()
    copying.fetch(store, KEY, found, into, link=False, deadline=Deadline(UploadConfig()))
    return (into / "weights.bin").read_text()


def assert_moved(url: str, tmp_path: Path, state: control.State = "paused") -> None:
    there = open_at(url, "new")
    assert there.space.name == "new"
    assert there.space.run_cap == 30
    assert [record.status for record in there.trials()] == ["completed", "pending"]
    assert control.read(there.store) == state
    assert fetched(there.store, tmp_path / uuid.uuid4().hex) == "w" * 3000
    with pytest.raises(SweepNotFound):
        open_at(url, "toy")
    assert [entry.key for entry in open_store(join(url, "toy")).list("")] == []
    found = survey(there.store, checksums=True)
    assert (
        (found.foreign, found.checkpoints[0].state) == ((), "unnamed")
        if found.checkpoints
        else found.foreign == ()
    )
    control.write(there.store, "running", "ada")
    assert there.ask("w2").trial == 1


def test_a_renamed_sweep_is_all_there_under_its_new_name_alone(url, sweep, tmp_path) -> None:
    control.write(sweep.store, "paused", "ada")
    assert rename(sweep, "new", "ada").store.url == join(url, "new")
    assert_moved(url, tmp_path)


def test_a_copy_takes_the_name_of_its_folder(url, space) -> None:
    copy = Experiment.create(open_store(join(url, "other")), space)
    assert copy.space.name != "other"
    renamed = rename(copy, "other", "ada")
    assert (renamed.store.url, renamed.space.name) == (copy.store.url, "other")


def test_unusable_name_is_refused_and_nothing_is_changed(url, sweep, space) -> None:
    open_store(join(url, "taken")).create("somebody.json", b"{}")
    for name in ("taken", "../up", "", ".hidden"):
        with pytest.raises(InputError):
            rename(sweep, name, "ada")
    assert control.read(open_at(url, "toy").store) == "running"
    assert [entry.key for entry in open_store(join(url, "taken")).list("")] == ["somebody.json"]


@pytest.mark.parametrize(
    ("survives", "state"),
    [(each, "paused") for each in (2, 3, 5, 7, 9, 11)] + [(2, "running"), (7, "running")],
)
def test_a_rename_in_a_bucket_that_was_cut_short_goes_on(
    gcs, monkeypatch, space, tmp_path, survives, state
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    url = f"gs://bucket/lifetimes/{uuid.uuid4().hex}"
    found = Experiment.create(open_store(join(url, "toy")), space)
    for _ in range(2):
        record = found.ask("w")
    found.apply(0, complete(found.trial(0)))
    found.apply(1, release(record))
    (tmp_path / "ended").mkdir()
    (tmp_path / "ended" / "weights.bin").write_text("w" * 3000)
    publish(found.store, tmp_path / "ended")
    found.extend({"run_cap": 30}, by="ada")
    found.allocator.lease.settle()
    if state == "paused":
        control.write(found.store, "paused", "ada")
    steps = 0

    def cut(real):
        def step(*args, **kwargs):
            nonlocal steps
            steps += 1
            if steps == survives:
                raise KeyboardInterrupt
            return real(*args, **kwargs)

        return step

    with monkeypatch.context() as patched:
        patched.setattr(renaming.manifest, "encode", cut(renaming.manifest.encode))
        for name in ("create", "delete"):
            patched.setattr(type(found.store), name, cut(getattr(type(found.store), name)))
        with pytest.raises(KeyboardInterrupt):
            rename(found, "new", "ada")
    again = open_at(url, "toy")
    with pytest.raises(InputError, match="renamed to new"):
        rename(again, "third", "ada")
    if survives == 7:
        control.write(again.store, "running", "bob")  # who knows nothing of the rename
    switches: list[control.State] = []

    def copy(self, key: str, target: str) -> None:
        switches.append(control.read(self))
        real(self, key, target)

    real = type(again.store).copy
    monkeypatch.setattr(type(again.store), "copy", copy)
    rename(again, "new", "ada")
    assert set(switches) <= {"stopped"}
    assert_moved(url, tmp_path, state)


@pytest.fixture
def done(gcs, monkeypatch, space) -> Experiment:
    """A sweep in a bucket with a trial that has failed."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    found = Experiment.create(open_store(f"gs://bucket/lifetimes/{uuid.uuid4().hex}/toy"), space)
    record = found.ask("w")
    found.apply(0, Fail(worker="w", attempt=record.attempt, error="bad", failure="crashed", max_attempts=1))
    found.allocator.lease.settle()
    return found


def beside(real, act):
    """Return the function with something that somebody does right before its first call."""
    acts = [act]

    def call(*args, **kwargs):
        if acts:
            acts.pop()()
        return real(*args, **kwargs)

    return call


def test_rename_copies_what_a_person_writes_amid_the_copy(done, monkeypatch) -> None:
    url = parent(done.store.url)

    def write() -> None:
        person = open_at(url, "toy")
        person.apply(0, Retry(by="bob"))
        person.extend({"run_cap": 30}, by="bob")

    done.store.create("zz/last", b"x")
    real, acts = type(done.store).copy, [write]

    def copy(self, key: str, target: str) -> None:
        if key == "zz/last" and acts:
            acts.pop()()  # the record and its folder were copied by then, or are right now
        real(self, key, target)

    monkeypatch.setattr(type(done.store), "copy", copy)
    monkeypatch.setattr(renaming, "AT_ONCE", 1)
    there = rename(done, "new", "ada")
    assert [record.status for record in there.trials()] == ["pending"]
    assert (there.space.run_cap, there.space.name) == (30, "new")
    assert open_store(join(url, "toy")).list("") == []


def test_rename_removes_nothing_that_it_has_not_copied(done, monkeypatch) -> None:
    url = parent(done.store.url)
    create = type(done.store).create

    def create_late(self, key: str, data: bytes) -> str:
        if key == SWEEP_KEY:
            open_at(url, "toy").apply(0, Retry(by="bob"))
        return create(self, key, data)

    monkeypatch.setattr(type(done.store), "create", create_late)
    with pytest.raises(InputError, match=r"000000\.json: it was written after it had been copied"):
        rename(done, "new", "ada")
    with pytest.raises(InputError, match="written after"):
        rename(open_at(url, "toy"), "new", "ada")
    old = open_at(url, "toy")
    assert [record.status for record in old.trials()] == ["pending"]
    assert [record.status for record in open_at(url, "new").trials()] == ["failed"]
    delete(old, "ada")
    assert open_store(join(url, "toy")).list("") == []


def test_rename_waits_for_a_worker_that_saw_no_stop(done, monkeypatch) -> None:
    url = parent(done.store.url)
    worker = open_at(url, "toy")

    def come() -> None:
        worker.ask("late")
        worker.allocator.lease.settle()

    monkeypatch.setattr(control, "write", beside(control.write, come))
    with pytest.raises(InputError, match="still at work \\(late\\); it can be renamed when they have left"):
        rename(done, "new", "ada")
    assert control.read(done.store) == "stopped"
    worker.apply(1, Complete(worker="late", attempt=1, metrics={"loss": 0.5}))
    there = rename(open_at(url, "toy"), "new", "ada")
    assert [record.status for record in there.trials()] == ["failed", "completed"]
    assert control.read(there.store) == "running"


def test_of_two_renames_at_once_one_is_refused(gcs, monkeypatch, space) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    url = f"gs://bucket/lifetimes/{uuid.uuid4().hex}"
    found = Experiment.create(open_store(join(url, "toy")), space)
    read = control.read

    def read_late(store: Store) -> control.State:
        """Let another person's rename begin, which is cut short after its note."""
        monkeypatch.setattr(renaming.control, "read", read)
        with monkeypatch.context() as patched:
            patched.setattr(renaming.control, "write", lambda *args: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                rename(open_at(url, "toy"), "other", "bob")
        return read(store)

    monkeypatch.setattr(renaming.control, "read", read_late)
    with pytest.raises(InputError, match="renamed to other"):
        rename(found, "new", "ada")
    with pytest.raises(SweepNotFound):
        open_at(url, "new")
    assert rename(found, "other", "ada").store.url == join(url, "other")


def test_a_deleted_sweep_leaves_nothing_and_its_neighbour_stays(url, sweep, space) -> None:
    Experiment.create(open_store(join(url, "toy2")), space)
    there = stock(sweep)
    assert dict(there.trials) == {"completed": 1, "pending": 1}
    assert there.size > 3000
    assert there.files >= 5
    sweep.allocator.lease.settle()
    delete(sweep, "ada")
    assert open_store(join(url, "toy")).list("") == []
    with pytest.raises(SweepNotFound):
        open_at(url, "toy")
    assert open_at(url, "toy2").space.run_cap == 8
    again = Experiment.create(open_store(join(url, "toy")), space)
    assert (again.trials(), again.space.run_cap) == ([], 8)


def test_interrupted_deletion_leaves_a_stopped_sweep(gcs, monkeypatch, space) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    url = f"gs://bucket/lifetimes/{uuid.uuid4().hex}"
    found = Experiment.create(open_store(join(url, "toy")), space)
    found.ask("w", leased=False)
    found.allocator.lease.settle()
    remove, calls = type(found.store).delete, []

    def once(self, key, expected):
        if calls:
            raise KeyboardInterrupt
        calls.append(key)
        return remove(self, key, expected)

    with monkeypatch.context() as patched:
        patched.setattr(type(found.store), "delete", once)
        with pytest.raises(KeyboardInterrupt):
            delete(found, "ada")
    again = open_at(url, "toy")
    assert control.read(again.store) == "stopped"
    delete(again, "ada")
    assert again.store.list("") == []


def test_workers_live_as_long_as_their_lease(url, space) -> None:
    found = Experiment.create(open_store(join(url, "toy")), space)
    assert living(found) == ()
    found.ask("ask-1", leased=False)  # a person's own: nobody waits for it
    found.allocator.lease.settle()
    assert living(found) == ()
    found.ask("busy")
    assert living(found) == ("busy",)


def test_doctor_and_repair_know_the_amendments(url, sweep) -> None:
    store = sweep.store
    store.create(amendments.key(2), b"{")
    store.create(amendments.key(4), amendments.encoded({"usd": 3}, "bob", 1.0))
    store.create("amendments/notes.txt", b"mine")
    findings = {f.kind: f for f in examine(lambda: Experiment.open(store), expected=True).findings}
    assert "limits" in findings["torn"].what
    assert findings["gap"].where.endswith("amendments/0003.json")
    assert findings["foreign"].where.endswith("amendments/notes.txt")
    steps = [step for step in plan(sweep, survey(store)) if step.kind == "torn"]
    assert [carry_out(step).state for step in steps] == ["done"]
    kept = [entry.key for entry in store.list("quarantine/")]
    assert [store.read(key)[0] for key in kept] == [b"{"]
    opened = Experiment.open(store)
    assert (opened.amendments.damaged, opened.space.run_cap, opened.space.budget.usd) == ((), 30, 3)
    assert json.loads(store.read(amendments.key(2))[0])["changes"] == {}
    assert opened.extend({"run_cap": 31}, by="ada").number == 5


def test_a_bucket_that_fails_during_a_rename_keeps_the_old_sweep(gcs, monkeypatch, space) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    url = f"gs://bucket/lifetimes/{uuid.uuid4().hex}"
    found = Experiment.create(open_store(join(url, "toy")), space)
    found.ask("w", leased=False)
    found.allocator.lease.settle()
    gcs.faults.add(Fault(action="status", status=403, operation="rewrite", times=None))
    with pytest.raises(StoreUnavailable, match="cannot be copied"):
        rename(found, "new", "ada")
    assert len(open_at(url, "toy").trials()) == 1
    with pytest.raises(SweepNotFound):
        open_at(url, "new")
    gcs.reset()


def test_full_disk_leaves_name_and_folder(tmp_path, monkeypatch, space) -> None:
    found = Experiment.create(open_store(str(tmp_path / "toy")), space)

    def full(store, key: str, data: bytes) -> str:
        raise StoreUnavailable(f"{key}: cannot write: no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(type(found.store), "create", full)
        with pytest.raises(StoreUnavailable, match="no space left"):
            rename(found, "new", "ada")
    assert not (tmp_path / "new").exists()
    assert open_at(str(tmp_path), "toy").space.name == "toy"
    assert rename(found, "new", "ada").space.name == "new"
