"""Stored snapshots over memory, a folder and a bucket: what is there, what is wrong with it, and its removal."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest
from memory_store import MemoryStore
from published import FILES, key_of, publish, store_files

from sweeps.errors import Conflict, StoreUnavailable
from sweeps.storage.base import Store
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.local import LocalStore
from sweeps.storage.objects.store import ObjectStore
from sweeps.storage.retries import RetryPolicy
from sweeps.storage.run_files.client import Bucket
from sweeps.transfer import stored_stages as stages

KEY, OTHER = key_of(0.5), key_of(0.25)
BY = "000000-1"
QUICK = RetryPolicy(total_s=3.0, attempt_s=0.5, first_wait_s=0.02, longest_wait_s=0.1)


@pytest.fixture(params=["memory", "folder", "bucket", "s3"])
def store(request, tmp_path) -> Store:
    if request.param == "memory":
        return MemoryStore()
    if request.param == "folder":
        return LocalStore(tmp_path / "sweep")
    if request.param == "s3":
        door = request.getfixturevalue("s3").door("a")
        return ObjectStore(f"s3://bucket/stages/{uuid.uuid4().hex}", endpoint=door, retries=QUICK)
    gcs = request.getfixturevalue("gcs")
    return GcsStore(f"gs://bucket/stages/{uuid.uuid4().hex}", endpoint=gcs.url, retries=QUICK)


def only(store: Store, key: str = KEY) -> stages.StoredStage:
    (found,) = stages.stored_stages(store, only=key)
    return found


def overwrite(store: Store, name: str, data: bytes) -> None:
    key = f"stages/{KEY}/{BY}/{name}"
    if isinstance(store, ObjectStore):
        import obstore

        obstore.put(store.client.store(), store.name(key), data)
    elif isinstance(store, Bucket):
        store.replace(key, data, store.read(key)[1])
    else:
        (store.folder(f"stages/{KEY}") / BY / name).write_bytes(data)


def delete(store: Store, name: str) -> None:
    key = f"stages/{KEY}/{BY}/{name}"
    if isinstance(store, Bucket):
        store.delete(key, store.read(key)[1])
    else:
        (store.folder(f"stages/{KEY}") / BY / name).unlink()


def test_a_store_without_snapshots_has_none_and_stays_as_it_is(store, tmp_path):
    assert stages.stored_stages(store) == []
    assert stages.stored_stages(store, only=KEY) == []
    assert stages.sizes(store, [KEY]) == {}
    assert not (tmp_path / "sweep").exists()


def test_complete_checkpoint_is_listed(store):
    publish(store, KEY)
    publish(store, OTHER, "000007-2", {"a": b"1"})
    assert {stage.key for stage in stages.stored_stages(store)} == {KEY, OTHER}
    found = only(store)
    assert set(found.parts) == {f"{BY}/{name}" for name in FILES}
    assert (found.size, found.publisher, found.problem(), found.leftovers()) == (3002, BY, "", {})
    assert abs(found.updated - store.now()) < 60
    assert stages.sizes(store, [KEY, OTHER, key_of(9.0)]) == {KEY: 3002, OTHER: 1}
    assert only(store, OTHER).publisher == "000007-2"


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda store: delete(store, "stage.json"), "stage.json is missing"),
        (lambda store: overwrite(store, "stage.json", b"{"), "stage.json has 1 bytes, its manifest says 2"),
        (lambda store: overwrite(store, "stage.json", b""), "stage.json has 0 bytes, its manifest says 2"),
    ],
    ids=["missing", "cut-off", "empty"],
)
def test_files_that_are_missing_or_have_another_size_are_named(store, damage, problem):
    publish(store, KEY)
    damage(store)
    assert only(store).problem() == problem


def test_changed_bytes_of_equal_size_are_found(store):
    publish(store, KEY)
    assert stages.damaged_bytes(store, only(store)) == ""
    overwrite(store, "weights/model.bin", b"v" * 3000)
    problem = "weights/model.bin has other bytes than its manifest says"
    if isinstance(store, Bucket):
        assert only(store).problem() == problem
    else:
        assert only(store).problem() == ""
        assert stages.damaged_bytes(store, only(store)) == problem


@pytest.mark.parametrize(
    ("data", "is_newer"),
    [(b"{", False), (b"[]", False), (b'{"schema": 1}', False), (b'{"schema": 2, "files": []}', True)],
)
def test_unreadable_and_newer_manifests_are_reported(store, data, is_newer):
    store_files(store, KEY, BY)
    store.create(f"stages/{KEY}/manifest.json", data)
    found = only(store)
    assert found.problem().startswith("its manifest ")
    assert found.manifest.is_newer == is_newer
    assert stages.sizes(store, [KEY]) == {}
    assert len(found.leftovers()) == 2


def test_pipe_as_manifest_is_a_problem_and_removable(tmp_path):
    store = LocalStore(tmp_path / "sweep")
    store_files(store, KEY, BY)
    os.mkfifo(tmp_path / "sweep" / "stages" / KEY / "manifest.json")
    found = only(store)
    assert "a named pipe" in found.problem()
    stages.remove(store, found)
    assert stages.stored_stages(store) == []


def test_names_that_nobody_writes_are_foreign(store):
    publish(store, KEY)
    for key in ("stages/notes.txt", f"stages/{KEY[:10]}/model", f"stages/{KEY.upper()}/model"):
        store.create(key, b"x")
    found = stages.foreign(store.list(stages.STAGES))
    assert found == sorted(("stages/notes.txt", f"stages/{KEY[:10]}/model", f"stages/{KEY.upper()}/model"))
    assert [stage.key for stage in stages.stored_stages(store)] == [KEY]


def test_what_is_removed_is_gone_and_another_snapshot_stays(store):
    publish(store, KEY)
    publish(store, OTHER)
    found = only(store)
    stages.remove(store, found)
    assert [stage.key for stage in stages.stored_stages(store)] == [OTHER]
    assert only(store, OTHER).problem() == ""
    stages.remove(store, found)  # again, as after a crash: nothing is left to do
    publish(store, KEY)
    assert only(store).problem() == ""


def test_checkpoint_published_since_listing_stays(store):
    publish(store, KEY)
    old = only(store)
    stages.remove(store, only(store))
    publish(store, KEY, "000003-1")
    with pytest.raises(Conflict):
        stages.remove(store, old)
    assert only(store).problem() == ""
    assert len(only(store).parts) == 2


def test_files_that_were_written_since_the_listing_stay(store):
    store_files(store, KEY, BY)
    old = only(store)
    overwrite(store, "weights/model.bin", b"new")
    stages.remove_files(store, KEY, old.parts)
    assert set(only(store).parts) == {f"{BY}/weights/model.bin"}


def test_interrupted_removal_leaves_no_manifest(store, monkeypatch):
    """One deletion fails after the other; what is left is never a snapshot that looks complete."""

    class Killed(Exception):
        pass

    for survivors in range(3):
        publish(store, KEY, f"00000{survivors}-1")
        found, left = only(store), [survivors]

        def fuse(act, left=left):
            def removing(*given, **named):
                if left[0] == 0:
                    raise Killed
                left[0] -= 1
                return act(*given, **named)

            return removing

        with monkeypatch.context() as patch:
            if not isinstance(store, LocalStore):  # whose `delete` unlinks
                patch.setattr(type(store), "delete", fuse(type(store).delete))
            if not isinstance(store, Bucket):
                patch.setattr(Path, "unlink", fuse(Path.unlink))
            with pytest.raises(Killed):
                stages.remove(store, found)
        (after,) = stages.stored_stages(store)
        if survivors == 0:
            assert after.problem() == ""
        else:
            assert after.problem() == "it has no manifest"
            assert len(after.parts) == 3 - survivors
        stages.remove(store, after)
        assert stages.stored_stages(store) == []


def test_unwritable_folder_is_an_error_with_path(tmp_path, monkeypatch):
    store = LocalStore(tmp_path / "sweep")
    publish(store, KEY)

    def refuse(path, **options):
        raise PermissionError(13, "Permission denied", str(path))

    found = only(store)
    store.delete(f"stages/{KEY}/manifest.json", found.manifest.version)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StoreUnavailable, match=f"{KEY}: .*Permission denied"):
        stages.remove(store, found)


def test_publishing_during_listing_is_no_damage(store, monkeypatch):
    """A publisher writes its manifest last: a listing that reads manifests first never has one without files."""
    store_files(store, OTHER, BY)
    read_manifests = stages.read_manifests

    def slowly(store, keys):
        publish(store, KEY)
        return read_manifests(store, keys)

    monkeypatch.setattr(stages, "read_manifests", slowly)
    assert {(s.key, s.problem()) for s in stages.stored_stages(store)} <= {
        (OTHER, "it has no manifest"),
        (KEY, "it has no manifest"),
    }

    def late(store, keys):
        found = read_manifests(store, keys)
        publish(store, OTHER, "000009-1")
        return found

    monkeypatch.setattr(stages, "read_manifests", late)
    assert {s.key: s.problem() for s in stages.stored_stages(store)} == {
        KEY: "",
        OTHER: "it has no manifest",
    }
