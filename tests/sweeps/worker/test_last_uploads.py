"""A finished trial's last files are uploaded while the worker has the next trial, and before it leaves."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from fake_gcs import FakeGcs, Fault

from sweeps.errors import InputError, StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.operations import lifetime
from sweeps.operations.copying import copy
from sweeps.programs.signals import Stop
from sweeps.space.definition import Choice, Search
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.run_files import mirror
from sweeps.storage.run_files.exchange import UploadConfig
from sweeps.storage.run_files.manifest import MANIFEST, encode
from sweeps.storage.urls import open_store
from sweeps.trials.lifecycle import Expire, Release
from sweeps.trials.record import run_prefix
from sweeps.upkeep.removal import living, remove, require_uploaded
from sweeps.worker import loop, trial_run
from sweeps.worker.leftovers import hold
from sweeps.worker.trial_run import Watcher

DELAY_S = 1.0


@pytest.fixture
def experiment(space, gcs: FakeGcs, tmp_path: Path, monkeypatch) -> Experiment:
    monkeypatch.setenv("SWEEP_SCRATCH", str(tmp_path / "disk"))
    store = GcsStore(f"gs://bucket/uploads/{uuid.uuid4().hex}", endpoint=gcs.url)
    parameters = (Choice(name="x", values=(1.0, 2.0)),)
    grid = replace(space, parameters=parameters, search=Search(method="grid"), run_cap=2)
    return Experiment.create(store, grid)


def uploaded(experiment: Experiment, trial: int) -> bool:
    return bool(experiment.store.list(f"runs/{trial:06d}/attempt-1/student"))


def work(experiment: Experiment, function, stop: Stop | None = None) -> loop.Tally:
    return loop.work(experiment, stop=stop or Stop(), watcher=Mock(spec=Watcher), function=function)


def test_the_next_trial_does_not_wait_for_them(experiment, gcs: FakeGcs) -> None:
    fault = gcs.faults.add(Fault(action="status", operation="insert", name="*/runs/*/student", times=None))
    before: list[bool] = []

    def objective(trial) -> float:
        Path(trial.folder, "student").write_bytes(b"weights")
        before.append(uploaded(experiment, 0))
        if trial.index == 1:
            gcs.faults.remove(fault)
        return 1.0

    assert work(experiment, objective).ended == {"completed": 2}
    assert before == [False, False]
    assert (uploaded(experiment, 0), uploaded(experiment, 1)) == (True, True)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_runs_that_are_in_the_bucket_leave_nothing_on_the_disk(experiment, tmp_path) -> None:
    """Checkpoints of trial after trial would fill it within days."""

    def objective(trial) -> float:
        Path(trial.folder, "student").write_bytes(b"weights")
        Path(trial.folder, ".student.draft").write_bytes(b"half of them")
        return 1.0

    assert work(experiment, objective).ended == {"completed": 2}
    assert (uploaded(experiment, 0), uploaded(experiment, 1)) == (True, True)
    assert files(tmp_path / "disk") == []
    assert list(experiment.store.folder("runs").iterdir()) == []


@pytest.mark.parametrize("is_in_use", [False, True], ids=["killed", "still there"])
def test_folders_of_killed_workers_go_once_their_trials_are_taken_over(
    experiment, tmp_path, is_in_use: bool
) -> None:
    """On a machine that is preempted often, their checkpoints would fill the disk."""
    for trial in range(2):
        record = experiment.ask("killed")
        folder = experiment.store.folder(f"runs/{trial:06d}/attempt-1")
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints/weights").write_bytes(b"x")
    lock = hold(experiment.store.folder("runs/000000/attempt-1")) if is_in_use else None
    experiment.apply(0, Release(worker=record.worker, attempt=1))
    assert loop.work(
        experiment,
        stop=Stop(),
        watcher=Mock(spec=Watcher),
        function=lambda trial: 1.0,
        limits=loop.Limits(leave_when_idle=True, max_trials=1),
    ).ended == {"completed": 1}
    kept = [path.parent.parent.parent.name for path in tmp_path.rglob("weights")]
    assert sorted(kept) == ["000000", "000001"][0 if is_in_use else 1 :]
    assert sorted(path.name for path in experiment.store.folder("runs").iterdir()) == sorted(kept)
    if lock is not None:
        lock.release()


@pytest.mark.parametrize("named", ["SWEEP_SCRATCH", "TMPDIR"])
def test_no_trial_waits_for_its_lease_where_its_folder_cannot_be_made(
    experiment, tmp_path, monkeypatch, named: str
) -> None:
    """After `max_attempts` such leases it would have failed."""
    (tmp_path / "file").touch()
    if named == "SWEEP_SCRATCH":
        monkeypatch.setenv(named, str(tmp_path / "file"))
    else:
        monkeypatch.delenv("SWEEP_SCRATCH")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))  # TMPDIR is read once a process
    with pytest.raises(StoreUnavailable, match=rf"{tmp_path}/file.*; let SWEEP_SCRATCH name a folder"):
        work(experiment, lambda trial: 1.0)
    (record,) = experiment.trials()
    assert (record.status, record.attempt) == ("pending", 1)
    assert [each.reason for each in record.history] == ["released"]


def test_what_could_not_be_uploaded_stays_on_the_disk(
    experiment, gcs: FakeGcs, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("sweeps.worker.trial_run.UPLOAD_S", 0.5)
    gcs.faults.add(
        Fault(action="status", operation="insert", name="*/runs/000000/*/student", status=403, times=None)
    )

    def objective(trial) -> float:
        Path(trial.folder, "student").write_bytes(b"weights")
        return 1.0

    assert work(experiment, objective).ended == {"completed": 2}
    assert "student" in files(tmp_path / "disk")
    assert [path.parent.parent.name for path in tmp_path.rglob("student")] == ["000000"]


def test_another_attempt_at_the_same_trial_waits_for_them(experiment, gcs: FakeGcs) -> None:
    """It resumes from the checkpoint of the attempt before."""
    gcs.faults.add(Fault(action="delay", name="*/checkpoints/7/*", delay_s=DELAY_S, times=None))
    resumed: list[bool] = []

    def objective(trial) -> float:
        checkpoint = Path(trial.folder, "checkpoints", "7", "weights")
        resumed.append(checkpoint.exists())
        if len(resumed) == 1:
            checkpoint.parent.mkdir(parents=True)
            checkpoint.write_bytes(b"weights")
            raise ConnectionResetError(104, "Connection reset by peer")
        return 1.0

    assert work(experiment, objective).ended == {"crashed": 1, "completed": 2}
    assert resumed[:2] == [False, True]


def test_a_stop_limits_how_long_they_take(experiment, gcs: FakeGcs, monkeypatch, caplog) -> None:
    monkeypatch.setattr("sweeps.worker.trial_run.UPLOAD_GRACE_S", 0.2)
    gcs.faults.add(Fault(action="hang", name="*/runs/*/student", times=None))
    stop = Stop()

    def objective(trial) -> float:
        Path(trial.folder, "student").write_bytes(b"weights")
        if trial.index == 1:
            stop.request("SIGTERM")
        return 1.0

    began = time.monotonic()
    work(experiment, objective, stop)
    assert time.monotonic() - began < 15
    assert "1 files " in caplog.text
    assert experiment.trial(0).status == "completed"


@pytest.fixture
def slow(experiment, gcs: FakeGcs, monkeypatch):
    """Start a worker whose first trial is completed while its student is on its way; return what ends that."""
    monkeypatch.setattr(mirror, "UploadConfig", partial(UploadConfig, scan_s=0.1))
    fault = gcs.faults.add(Fault(action="status", operation="insert", name="*/runs/*/student", times=None))

    def objective(trial) -> float:
        Path(trial.folder, "first").write_bytes(b"x")
        until = time.monotonic() + 30
        while not experiment.store.list("runs/000000/attempt-1/manifest.json"):
            assert time.monotonic() < until
            time.sleep(0.05)
        Path(trial.folder, "student").write_bytes(b"weights")
        return 1.0

    def run() -> None:
        loop.work(
            experiment.for_thread(),
            stop=Stop(),
            watcher=Mock(spec=Watcher),
            function=objective,
            limits=loop.Limits(max_trials=1),
        )

    worker = threading.Thread(target=run)
    worker.start()
    deadline = time.monotonic() + 30
    while [record.status for record in experiment.trials()] != ["completed"] or living(experiment):
        assert time.monotonic() < deadline
        time.sleep(0.05)

    def end() -> None:
        gcs.faults.remove(fault)
        worker.join(60)

    yield end
    end()


def test_rename_and_copy_wait_for_them(experiment, slow, gcs: FakeGcs, monkeypatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    url = f"gs://bucket/uploads/{uuid.uuid4().hex}"
    still = r"worker \S+ still uploads the last files of trial 0; it can be .* when they are there"
    with pytest.raises(InputError, match=still):
        copy(experiment.store.url, url, live=False, on_notice=print)
    with pytest.raises(InputError, match=still):
        lifetime.rename(experiment, uuid.uuid4().hex, "ada")
    slow()
    copy(experiment.store.url, url, live=False, on_notice=print)
    renamed = lifetime.rename(experiment, uuid.uuid4().hex, "ada")
    for place in (Experiment.open(open_store(url)), renamed):
        assert uploaded(place, 0)


def test_they_stay_on_the_disk_if_the_sweep_has_gone(experiment, slow, tmp_path, caplog) -> None:
    """The bucket may have no place any more where somebody would look for them."""
    store = experiment.store
    remove(store)
    slow()
    assert [path.read_bytes() for path in tmp_path.rglob("student")] == [b"weights"]
    (line,) = [record.getMessage() for record in caplog.records if "last files" in record.getMessage()]
    assert "the last files of trial 0 stay in " in line
    assert "somebody has renamed or deleted the sweep" in line


def test_they_are_moved_out_of_the_temporary_folder_that_ends_with_the_worker(
    experiment, slow, tmp_path, monkeypatch, caplog
) -> None:
    monkeypatch.delenv("SWEEP_SCRATCH")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    remove(experiment.store)
    slow()
    (kept,) = tmp_path.glob("sweep-run-*/000000-attempt-1")
    assert (kept / "student").read_bytes() == b"weights"
    assert f"the last files of trial 0 stay in {kept}: " in caplog.text


def test_a_killed_worker_uploads_nothing_any_more(experiment) -> None:
    """Its manifest says so for good, and somebody else ends its trial."""
    record = experiment.ask("killed")
    key = f"{run_prefix(record.trial, record.attempt)}/{MANIFEST}"
    experiment.store.create(key, encode({}, uploading=True))
    experiment.apply(record.trial, Expire(after_s=-1.0, max_attempts=1))
    assert experiment.trial(record.trial).status == "failed"
    require_uploaded(experiment, "renamed")


def test_a_checkpoint_that_takes_longer_than_a_preemption_leaves_is_said_once(
    experiment, monkeypatch, caplog
):
    monkeypatch.setattr(trial_run, "UPLOAD_GRACE_S", 0.0)
    monkeypatch.setattr(trial_run, "_WORTH_TIMING", 1000)

    def objective(trial) -> float:
        folder = Path(trial.folder, "checkpoints", "00000320")
        folder.mkdir(parents=True)
        for name in ("model.safetensors", "state.json"):
            (folder / name).write_bytes(bytes(1024))
        return 1.0

    assert work(experiment, objective).ended == {"completed": 2}
    (line,) = [record.getMessage() for record in caplog.records if "to upload" in record.getMessage()]
    assert line.startswith("checkpoints/00000320 took ")
    assert "to upload (2.0 KiB, " in line
    assert "and a preemption leaves 0 s" in line


@pytest.mark.parametrize(
    ("name", "size", "seconds"),
    [
        pytest.param("checkpoints/00000320", 2**24, 12.0, id="in time"),
        pytest.param("checkpoints/00000320", 2**24 - 1, 1000.0, id="small"),
        pytest.param("log.txt", 2**30, 1000.0, id="a log"),
    ],
)
def test_others_are_not(name, size, seconds, caplog):
    trial_run.LastUploads().timed(name, size, seconds)
    assert not caplog.records
