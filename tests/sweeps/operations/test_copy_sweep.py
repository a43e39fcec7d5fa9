"""Copies of a sweep between folders, the fake bucket of Google Cloud Storage and the S3 server, in every direction."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from fake_gcs import Fault

from sweeps.errors import EnvironmentFault, InputError, SweepError
from sweeps.experiment import Experiment
from sweeps.operations import copying
from sweeps.operations.copying import copy
from sweeps.operations.creation import create_sweep
from sweeps.space.definition import Space
from sweeps.storage.base import Store
from sweeps.storage.run_files.client import Bucket
from sweeps.storage.run_files.exchange import Deadline, UploadConfig
from sweeps.storage.run_files.fetch import fetch_files
from sweeps.storage.run_files.manifest import MANIFEST
from sweeps.storage.run_files.upload import FolderUpload
from sweeps.storage.urls import open_store
from sweeps.transfer import copying as stages
from sweeps.transfer.stored_stages import stored_stages
from sweeps.trials import control
from sweeps.trials.lifecycle import Complete, Release
from sweeps.upkeep.inventory import survey

KINDS = ("folder", "gs", "s3", "az")
STAGE = f"stages/{'ab' * 32}"
RUN = "runs/000000/attempt-1"
FILES = {
    "log.txt": b"the last words\n",
    "result.json": b'{"loss": 0.5}',
    "checkpoints/10/model.bin": bytes(range(256)) * 36_000,  # more than a part
    "manifest.json": b"a program's own",
}


@pytest.fixture
def place(request, tmp_path, monkeypatch):
    """Return a function that returns a new URL of a storage of this kind."""

    def new(kind: str) -> str:
        name = uuid.uuid4().hex
        if kind == "folder":
            return str(tmp_path / name)
        if kind == "gs":
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", request.getfixturevalue("gcs").url)
            return f"gs://bucket/copies/{name}"
        if kind == "az":
            monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", request.getfixturevalue("azure"))
            return f"az://bucket/copies/{name}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("s3").door("copy"))
        return f"s3://bucket/copies/{name}"

    return new


def made(url: str, space, tmp_path: Path) -> Experiment:
    """A sweep with a completed trial, a pending one, files of a run, a snapshot, a log, an amendment and a pause."""
    sweep = Experiment.create(open_store(url), space)
    for _ in range(2):
        record = sweep.ask("w")
    sweep.apply(0, Complete(worker="w", attempt=1, metrics={"loss": 0.5}))
    sweep.apply(1, Release(worker="w", attempt=record.attempt))
    folder = tmp_path / uuid.uuid4().hex
    root = folder if isinstance(sweep.store, Bucket) else sweep.store.folder(RUN)
    for name, content in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    if isinstance(sweep.store, Bucket):
        FolderUpload(sweep.store, folder, RUN, Deadline(UploadConfig())).round(final=True)
    ended = tmp_path / uuid.uuid4().hex
    ended.mkdir()
    (ended / "weights.bin").write_bytes(b"w" * 3000)
    stages.publish(sweep.store, STAGE, ended, "000000-1", link=False, deadline=Deadline(UploadConfig()))
    sweep.store.create("logs/worker.log", b"a worker's output")
    sweep.extend({"run_cap": 30}, by="ada")
    control.write(sweep.store, "paused", "ada")
    sweep.allocator.lease.settle()
    return sweep


def copied(source: str, target: str, *, live: bool = False) -> copying.Copied:
    return copy(source, target, live=live, on_notice=lambda line: None)


def assert_same(sweep: Experiment, url: str, tmp_path: Path) -> None:
    there = Experiment.open(open_store(url))
    assert there.trials() == sweep.trials()
    assert there.space == sweep.space
    assert control.read(there.store) == "paused"
    assert there.store.read("logs/worker.log")[0] == b"a worker's output"
    into = tmp_path / uuid.uuid4().hex
    into.mkdir()
    assert set(fetch_files(there.store, RUN, into, below="")) == set(FILES)
    assert {name: (into / name).read_bytes() for name in FILES} == FILES
    snapshot = stages.published(there.store, STAGE)
    assert snapshot is not None
    stages.fetch(there.store, STAGE, snapshot, into / "s", link=False, deadline=Deadline(UploadConfig()))
    assert (into / "s" / "weights.bin").read_bytes() == b"w" * 3000
    found = survey(there.store, checksums=True)
    assert (found.foreign, found.halves, found.checkpoints) == ((), (), ())
    assert [each.problem() for each in stored_stages(there.store)] == [""]
    assert found.ask_lock is None
    assert "copying.json" not in {entry.key for entry in there.store.list("")}


# Each storage as a source and as a target, and two within one kind: what differs between them is in the client alone.
@pytest.mark.parametrize(
    ("old", "new"),
    [
        *pairwise([*KINDS, "folder"]),
        ("folder", "folder"),
        pytest.param("gs", "gs", marks=pytest.mark.slow),
    ],
)
def test_copy_has_all_and_asks_the_same(old, new, place, space, tmp_path) -> None:
    sweep, target = made(place(old), space, tmp_path), place(new)
    done = copied(sweep.store.url, target)
    assert (done.left_out, done.released, done.present) == ([], [], 0)
    assert done.size > sum(map(len, FILES.values())) + 3000
    assert_same(sweep, target, tmp_path)
    again = copied(sweep.store.url, target)
    assert (again.objects, again.size) == (0, 0)
    candidates = []
    for url in (sweep.store.url, target):
        control.write(open_store(url), "running", "ada")
        here = Experiment.open(open_store(url))
        asked = [here.ask("w", leased=False) for _ in range(3)]  # the pending one, then two new ones
        candidates.append([(record.trial, dict(record.parameters)) for record in asked])
        here.allocator.lease.settle()
    assert [trial for trial, _ in candidates[0]] == [1, 2, 3]
    assert candidates[0] == candidates[1]
    with pytest.raises(InputError, match="one of the two has changed"):
        copied(sweep.store.url, target)


@pytest.mark.parametrize(("old", "new"), [("folder", "gs"), ("gs", "folder"), ("s3", "gs"), ("folder", "s3")])
def test_interrupted_copy_sends_the_rest_only(old, new, place, space, tmp_path, monkeypatch) -> None:
    sweep, target = made(place(old), space, tmp_path), place(new)
    write = copying._Copy._write

    def interrupted(self: object, *given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(copying._Copy, "_write", interrupted)  # after the files, before the records
    with pytest.raises(KeyboardInterrupt):
        copied(sweep.store.url, target)
    with pytest.raises(SweepError):
        Experiment.open(open_store(target))
    monkeypatch.setattr(copying._Copy, "_write", write)
    done = copied(sweep.store.url, target)
    assert done.present == len(FILES) + 1 + (old == "folder")  # the snapshot; a folder's logs are files, too
    assert done.size < 10_000
    assert_same(sweep, target, tmp_path)


def test_file_without_a_manifest_is_not_sent_again(place, space, tmp_path, gcs) -> None:
    sweep, target = made(place("folder"), space, tmp_path), place("gs")
    number = gcs.faults.add(Fault(action="status", status=403, name=f"*{RUN}/manifest.json", times=None))
    with pytest.raises(SweepError):
        copied(sweep.store.url, target)
    gcs.faults.remove(number)
    assert copied(sweep.store.url, target).present >= len(FILES)
    assert_same(sweep, target, tmp_path)


def test_killed_copy_goes_on(place, space, tmp_path) -> None:
    sweep, target = made(place("folder"), space, tmp_path), place("folder")
    big = Path(sweep.store.url, RUN, "checkpoints/20")
    big.mkdir()
    for number in range(300):
        (big / f"{number:03d}.bin").write_bytes(os.urandom(100_000))
    command = [sys.executable, "-m", "sweeps", "copy", sweep.store.url, target]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        while not (Path(target) / RUN / "checkpoints/20/050.bin").exists():
            assert process.poll() is None
            time.sleep(0.002)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not (Path(target) / "sweep.json").exists()
    done = copied(sweep.store.url, target)
    assert done.present > 50
    for path in big.iterdir():
        assert (Path(target) / RUN / "checkpoints/20" / path.name).read_bytes() == path.read_bytes()
    assert not list(Path(target).rglob(".*.draft"))


def test_what_the_source_lost_since_is_removed(place, space, tmp_path, monkeypatch) -> None:
    sweep, target = made(place("folder"), space, tmp_path), place("gs")
    verify = copying._Copy._verify
    monkeypatch.setattr(
        copying._Copy, "_verify", lambda *given, **named: (_ for _ in ()).throw(OSError("cut"))
    )
    with pytest.raises(OSError, match="cut"):
        copied(sweep.store.url, target)
    monkeypatch.setattr(copying._Copy, "_verify", verify)
    gone = Path(sweep.store.url, RUN, "result.json")
    gone.unlink()
    copied(sweep.store.url, target)
    keys = {entry.key for entry in open_store(target).list("")}
    assert f"{RUN}/log.txt" in keys
    assert f"{RUN}/result.json" not in keys


def test_damaged_copy_is_found(place, space, tmp_path, monkeypatch) -> None:
    sweep, target = made(place("folder"), space, tmp_path), place("folder")
    verify = copying._Copy._verify

    def damage(self: copying._Copy, **named: bool) -> None:
        (Path(target) / RUN / "log.txt").write_bytes(b"the last wordz\n")
        verify(self, **named)

    monkeypatch.setattr(copying._Copy, "_verify", damage)
    with pytest.raises(EnvironmentFault, match=r"log\.txt: it is not as it was copied"):
        copied(sweep.store.url, target)
    assert not (Path(target) / "sweep.json").exists()
    monkeypatch.undo()


@pytest.mark.parametrize("kind", KINDS)
def test_taken_target_is_refused_and_stays(kind, place, space, tmp_path) -> None:
    source, target = made(place("folder"), space, tmp_path).store.url, place(kind)
    store = open_store(target)
    store.create("notes.txt", b"mine")
    with pytest.raises(InputError, match="no copy of a sweep"):
        copied(source, target)
    assert [entry.key for entry in store.list("")] == ["notes.txt"]


def test_other_sweep_and_other_copy_are_refused(place, space, tmp_path) -> None:
    from dataclasses import replace

    source = made(place("folder"), space, tmp_path).store.url
    other = Experiment.create(open_store(place("folder")), replace(space, name="other")).store
    with pytest.raises(InputError, match="another sweep is here"):
        copied(source, other.url)
    begun = open_store(place("folder"))
    begun.create("copying.json", json.dumps({"schema": 1, "from": "/elsewhere", "sweep": "0"}).encode())
    with pytest.raises(InputError, match="a copy of /elsewhere was begun here"):
        copied(source, begun.url)


def test_source_without_a_sweep_is_refused(place, space, tmp_path) -> None:
    source = made(place("folder"), space, tmp_path).store.url
    with pytest.raises(InputError, match=f"no sweep here to copy; give one of its sweeps, such as {source}"):
        copied(str(Path(source).parent), place("folder"))
    for target in (source, f"{source}/inside", str(Path(source).parent)):
        with pytest.raises(InputError, match="must lie outside"):
            copied(source, target)
    with pytest.raises(InputError, match="a whole bucket"):
        copied(source, "gs://bucket")


def test_leases_are_refused_unless_told(place, space, tmp_path) -> None:
    sweep, target = made(place("folder"), space, tmp_path), place("folder")
    control.write(sweep.store, "running", "ada")
    running = sweep.ask("busy")
    with pytest.raises(InputError, match=r"1 worker still at work \(busy\)"):
        copied(sweep.store.url, target)
    assert not Path(target).exists()
    done = copied(sweep.store.url, target, live=True)
    assert done.released == [running.trial]
    there = Experiment.open(open_store(target)).trial(running.trial)
    assert (there.status, there.history[-1].reason) == ("pending", "released")
    assert sweep.trial(running.trial).status == "running"


def test_lease_below_that_of_buckets_is_told(place, space, tmp_path) -> None:
    """The copy of a sweep made in a folder keeps 90 s, where `sweep init` in a bucket makes it 150 s."""
    sweep, lines = made(place("folder"), space, tmp_path), []
    for kind in ("folder", "gs"):
        copy(sweep.store.url, target := place(kind), live=False, on_notice=lines.append)
    assert lines == [
        f"lease.expire_s stays 30 in {target}, below the 150 of sweeps made in a bucket: a worker that is "
        "cut off for longer loses its trial"
    ]


def test_copy_is_the_sweep_of_the_same_space(place, space, tmp_path) -> None:
    """In a bucket creation raises the lease: a copy has that of where the sweep was made."""
    lines: list[str] = []

    def create(storage: str, wanted: Space = space) -> Experiment:
        return create_sweep(wanted, storage, skip_if_exists=True, on_notice=lines.append)

    for here, there, expire_s in (("folder", "gs", 30), ("gs", "folder", 150)):
        source, target = place(here), place(there)
        sweep = create(source)
        assert sweep.written.lease.expire_s == expire_s
        copied(sweep.store.url, f"{target}/{space.name}")
        lines.clear()
        assert create(target).written == sweep.written
        assert lines == []
    with pytest.raises(InputError, match=r"lease\.expire_s: 150\.0 there, 200 here"):
        create(target, replace(space, lease=replace(space.lease, expire_s=200)))


def test_change_during_the_copy_is_refused(place, space, tmp_path, monkeypatch) -> None:
    sweep, target = made(place("folder"), space, tmp_path), place("folder")
    verify = copying._Copy._verify

    def meanwhile(self: copying._Copy, **named: bool) -> None:
        verify(self, **named)
        sweep.extend({"run_cap": 31}, by="ada")
        control.write(sweep.store, "running", "ada")

    monkeypatch.setattr(copying._Copy, "_verify", meanwhile)
    with pytest.raises(InputError, match=r"control\.json: it changed during the copy"):
        copied(sweep.store.url, target)
    assert not (Path(target) / "sweep.json").exists()


def test_service_without_conditions_is_refused(place, space, tmp_path, s3) -> None:
    source, target = made(place("folder"), space, tmp_path).store.url, place("s3")
    s3.ignores = ("if-none-match",)
    with pytest.raises(InputError, match="no conditional writes"):
        copied(source, target)
    s3.ignores = ()
    assert open_store(target).list("") == []


def test_links_out_of_a_run_stay_in_folders_only(place, space, tmp_path) -> None:
    sweep = made(place("folder"), space, tmp_path)
    run = Path(sweep.store.url, RUN)
    (run / ".hydra").mkdir()
    (run / ".hydra/config.yaml").write_text("a: 1")
    (run / "latest").symlink_to("checkpoints/10")
    folder, bucket = place("folder"), place("gs")
    assert copied(sweep.store.url, folder).left_out == []
    assert (Path(folder) / RUN / ".hydra/config.yaml").read_text() == "a: 1"
    assert (Path(folder) / RUN / "latest").readlink() == Path("checkpoints/10")
    (left,) = copied(sweep.store.url, bucket).left_out
    assert f"{RUN}/latest" in left
    back = place("folder")
    copied(bucket, back)
    assert (Path(back) / RUN / ".hydra/config.yaml").read_text() == "a: 1"


@pytest.mark.parametrize("kind", ["folder", "gs"])
def test_pools_are_not_copied(kind, place, space, tmp_path) -> None:
    """`sweep down` of the copy would end the workers of the original, and they hold the environment."""
    sweep, target = made(place("folder"), space, tmp_path), place(kind)
    pools = {
        "desk": ("pool.json", "workers.wanted", "worker-1.log", "launch.log"),
        "slurm-pool": (
            *("launched.json", "worker.sh", "submission_file.sh", "77_submitted.pkl", "leave-77"),
            *("77_0_log.out", "77_0_log.err"),
        ),
        "skypilot-pool": ("launched.json", "task.yaml"),
    }
    for name, files in pools.items():
        folder = sweep.store.folder(f"logs/{name}")
        for file in files:
            (folder / file).write_bytes(b"x")
    assert copied(sweep.store.url, target).left_out == []
    assert [entry.key for entry in open_store(target).list("logs/")] == [
        *("logs/desk/launch.log", "logs/desk/worker-1.log"),
        *("logs/slurm-pool/77_0_log.err", "logs/slurm-pool/77_0_log.out", "logs/worker.log"),
    ]


def test_damaged_run_in_a_bucket_is_told(place, space, tmp_path) -> None:
    sweep, target = made(place("gs"), space, tmp_path), place("folder")
    store = sweep.store
    key = f"{RUN}/checkpoints/10/model.bin"
    store.delete(key, next(entry.version for entry in store.list(key)))
    (line,) = copied(store.url, target).left_out
    assert RUN in line
    assert Experiment.open(open_store(target)).trials() == sweep.trials()


def test_damaged_run_is_left_out_of_a_bucket(place, space, tmp_path, monkeypatch) -> None:
    """Its manifest was written after each file, as after some seconds of a large one."""
    monkeypatch.setattr(copying, "_COMMIT_S", 0.0)
    store, target = made(place("gs"), space, tmp_path).store, place("gs")
    key = f"{RUN}/result.json"  # the last
    store.delete(key, next(entry.version for entry in store.list(key)))
    (line,) = copied(store.url, target).left_out
    assert RUN in line
    assert f"{RUN}/{MANIFEST}" not in {entry.key for entry in open_store(target).list(f"{RUN}/")}


def test_copies_are_the_same_bytes(place, space, tmp_path) -> None:
    sweep, first, second, third = (
        made(place("folder"), space, tmp_path),
        place("s3"),
        place("gs"),
        place("folder"),
    )
    copied(sweep.store.url, first)
    copied(first, second)
    copied(second, third)

    def digests(store: Store) -> dict[str, str]:
        root = Path(store.url)
        return {
            path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in root.rglob("*")
            if path.is_file() and not any(part.startswith(".") for part in path.relative_to(root).parts)
            if path.name != "manifest.json"
            or "stages" not in path.parts  # it gained the checksums of the buckets
        }

    assert digests(open_store(third)) == digests(sweep.store)
