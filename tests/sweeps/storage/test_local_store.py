"""Failures of local stores: full disks, interrupted writes, foreign files, paths that are no folders."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeps.errors import AlreadyExists, Conflict, StoreUnavailable, WriteRefused
from sweeps.storage.base import NotFound
from sweeps.storage.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def all_files(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and ".locks" not in p.parts
    }


@pytest.mark.parametrize(
    ("code", "advice"),
    [(errno.ENOSPC, "free some space"), (errno.EIO, "check the disk"), (errno.EROFS, "--storage")],
    ids=["disk-full", "io-error", "read-only"],
)
def test_failed_write_is_one_line_and_keeps_the_old_bytes(store, tmp_path, monkeypatch, code, advice):
    version = store.create("trials/000000.json", b"old")

    def fail(fd: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreUnavailable, match=advice) as caught:
        store.replace("trials/000000.json", b"new", version)
    with pytest.raises(StoreUnavailable):
        store.create("trials/000001.json", b"new")
    monkeypatch.undo()
    assert "\n" not in str(caught.value)
    assert all_files(tmp_path / "store") == {"trials/000000.json": b"old"}
    assert store.read("trials/000000.json") == (b"old", version)


def test_a_first_write_that_fails_leaves_no_folders_behind(tmp_path, monkeypatch):
    def fail(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreUnavailable, match="free some space"):
        LocalStore(tmp_path / "storage" / "sweep").create("sweep.json", b"x")
    assert list(tmp_path.rglob("*")) == []


def test_a_later_write_that_fails_keeps_what_was_there(store, tmp_path, monkeypatch):
    """Existing folders are never removed."""
    (tmp_path / "store" / "trials").mkdir(parents=True)

    def fail(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", fail)
        with pytest.raises(StoreUnavailable):
            store.create("trials/000000.json", b"x")
    assert (tmp_path / "store" / "trials").is_dir()
    store.create("trials/000000.json", b"x")
    with pytest.raises(AlreadyExists):
        store.create("trials/000000.json", b"y")
    assert store.read("trials/000000.json")[0] == b"x"


def test_killed_writer_leaves_nothing_listed(store, monkeypatch):
    version = store.create("trials/000000.json", b"old")
    monkeypatch.setattr(Path, "replace", lambda self, target: self)  # dies just before the rename
    store.replace("trials/000000.json", b"half", version)
    monkeypatch.undo()
    assert [e.key for e in store.list("trials/")] == ["trials/000000.json"]
    assert store.read("trials/000000.json") == (b"old", version)
    assert store.read("trials/000000.json")[1] != store.replace("trials/000000.json", b"new", version)


@pytest.mark.parametrize("begun", [False, True], ids=["no-folder", "folder"])
def test_a_file_system_without_locks_is_refused_with_advice(store, tmp_path, monkeypatch, begun):
    """A file as a lock would stay for good where a machine dies that has made it."""
    if begun:
        store.create("k", b"x")
    before = sorted(tmp_path.rglob("*"))

    def fail(fd, operation) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", fail)
    store = LocalStore(tmp_path / "store")
    with pytest.raises(WriteRefused, match="this file system has no locks; mount it with -o flock") as caught:
        store.create("trials/000000.json", b"x")
    assert "\n" not in str(caught.value)
    assert [path for path in sorted(tmp_path.rglob("*")) if path not in before] == []


def test_a_path_below_a_file_is_refused_with_advice(tmp_path):
    (tmp_path / "file").write_text("x")
    store = LocalStore(tmp_path / "file")
    with pytest.raises(StoreUnavailable, match="found a file"):
        store.create("k", b"x")


@pytest.mark.parametrize("key", ["../outside", "/absolute", "", "a/../../b"])
def test_a_key_cannot_leave_the_store(store, key):
    with pytest.raises(ValueError, match="not a key"):
        store.create(key, b"x")


def test_coarse_clock_does_not_repeat_versions(store, monkeypatch):
    """Simulate a mount with times in whole seconds: all writes within a second would look alike."""
    real = os.utime

    def coarse(path, *args, ns, **kwargs):
        real(path, *args, ns=tuple(-(-t // 10**9) * 10**9 for t in ns), **kwargs)

    monkeypatch.setattr(os, "utime", coarse)
    versions = [store.create("k", b"0")]
    versions += [store.replace("k", b"x", versions[-1]) for _ in range(1)]
    future = int(versions[-1]) + 5 * 10**9
    real(
        Path(store.location("k")), ns=(future, future)
    )  # as if written a moment later by a server ahead of us
    before = store.read("k")[1]
    after = store.replace("k", b"y", before)
    assert int(after) > int(before)


def test_unreadable_folder_is_reported_with_advice(store, monkeypatch):
    def refuse(self) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(StoreUnavailable, match="write to"):
        store.create("k", b"x")


def test_advice_on_what_cannot_be_read_is_not_to_write_elsewhere(store, monkeypatch):
    store.create("k", b"x")

    def refuse(path, *rest, **named):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreUnavailable, match="permission to read it"):
        store.read("k")


def test_reading_needs_no_write_permission(store, monkeypatch):
    store.create("k", b"x")
    real = Path.open

    def refuse_writing(self, mode="r", *args, **kwargs):
        if "w" in mode:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return real(self, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse_writing)
    assert store.read("k")[0] == b"x"
    assert [entry.key for entry in store.list("k")] == ["k"]
    assert store.now() > 0


def test_keys_are_those_of_a_listing(store, tmp_path):
    store.create("trials/000000.json", b"x")
    store.create("trials/below/1.json", b"x")
    store.create("trialsets/1.json", b"x")
    folder = tmp_path / "store" / "trials"
    (folder / ".000001.json.draft").write_bytes(b"half")
    (folder / "000002.json").symlink_to(folder / "000000.json")
    (folder / "000003.json").symlink_to(tmp_path)
    (folder / "000004.json").symlink_to(tmp_path / "nowhere")
    os.mkfifo(folder / "000005.json")
    keys = {f"trials/{name}.json" for name in ("000000", "below/1", "000002", "000004", "000005")}
    assert set(store.keys("trials/")) == keys == {entry.key for entry in store.list("trials/")}
    assert set(store.keys("trials")) == keys | {"trialsets/1.json"}
    assert not store.keys("runs/")


class TestClientOfNfs:
    """What a client of NFS may answer from memory; `make test-nfs` has real ones."""

    def test_object_of_another_machine_is_not_overwritten_by_create(self, store, monkeypatch):
        version = store.create("k", b"theirs")
        monkeypatch.setattr(os.path, "lexists", lambda path: False)  # it was missing a moment ago
        with pytest.raises(AlreadyExists):
            store.create("k", b"ours")
        assert store.read("k") == (b"theirs", version)

    def test_new_object_leaves_no_second_name(self, store, tmp_path):
        store.create("a/k", b"x")
        assert all_files(tmp_path / "store") == {"a/k": b"x"}
        assert Path(store.location("a/k")).stat().st_nlink == 1

    def test_folder_without_hard_links_has_objects_all_the_same(self, store, tmp_path, monkeypatch):
        def refuse(*_: object) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
        version = store.create("k", b"x")
        with pytest.raises(AlreadyExists):
            store.create("k", b"y")
        assert store.read("k") == (b"x", version)
        assert all_files(tmp_path / "store") == {"k": b"x"}

    def test_link_that_fails_otherwise_replaces_nothing(self, store, tmp_path, monkeypatch):
        def fail(*_: object) -> None:
            Path(store.location("k")).write_bytes(b"theirs")  # just made by another machine
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "link", fail)
        with pytest.raises(StoreUnavailable):
            store.create("k", b"ours")
        assert all_files(tmp_path / "store") == {"k": b"theirs"}

    def test_link_whose_answer_was_lost_is_ours(self, store, monkeypatch):
        real = os.link

        def lose_the_answer(old: Path, new: Path) -> None:
            real(old, new)
            raise FileExistsError  # to the second request

        monkeypatch.setattr(os, "link", lose_the_answer)
        version = store.create("k", b"x")
        assert store.read("k") == (b"x", version)

    @pytest.fixture
    def stale(self, store, tmp_path, monkeypatch):
        """Open the old file of `k` twice, though another machine has replaced it: returns its version."""
        first = store.create("k", b"old")
        path = Path(store.location("k"))
        kept = os.open(path, os.O_RDONLY)
        store.replace("k", b"new", first)
        real, answers = os.open, [kept, os.dup(kept)]

        def remember(name, *rest, **named):
            if os.fspath(name) == os.fspath(path) and answers:
                return answers.pop()
            return real(name, *rest, **named)

        monkeypatch.setattr(os, "open", remember)
        return first

    def test_replaced_file_is_not_read(self, store, stale):
        assert store.read("k")[0] == b"new"

    def test_replaced_file_is_not_taken_for_the_version_to_replace_or_delete(self, store, stale):
        with pytest.raises(Conflict):
            store.replace("k", b"ours", stale)
        with pytest.raises(Conflict):
            store.delete("k", stale)
        assert store.read("k")[0] == b"new"

    @pytest.mark.parametrize("call", ["fstat", "read"])
    def test_file_replaced_while_it_is_read_is_read_again(self, store, monkeypatch, call):
        version = store.create("k", b"x")
        real, errors = getattr(os, call), [OSError(errno.ESTALE, "Stale file handle") for _ in range(4)]

        def fail(*given):
            if errors:
                raise errors.pop()
            return real(*given)

        monkeypatch.setattr(os, call, fail)
        assert store.read("k") == (b"x", version)
        assert errors == []

    def test_file_that_stays_stale_is_an_error(self, store, monkeypatch):
        store.create("k", b"x")

        def fail(*_: object) -> None:
            raise OSError(errno.ESTALE, "Stale file handle")

        with monkeypatch.context() as patch:  # pytest asks for the status of files, too
            patch.setattr(os, "fstat", fail)
            with pytest.raises(StoreUnavailable, match="stale file handle"):
                store.read("k")

    def test_draft_that_is_not_seen_at_once_is_replaced(self, store, tmp_path, monkeypatch):
        version = store.create("k", b"old")
        (tmp_path / "store" / ".k.draft").write_bytes(b"of a killed writer")
        real, misses = Path.unlink, [1]

        def remember(self, missing_ok=False):
            if self.name == ".k.draft" and misses:
                misses.pop()
                return None
            return real(self, missing_ok=missing_ok)

        monkeypatch.setattr(Path, "unlink", remember)
        store.replace("k", b"new", version)
        assert all_files(tmp_path / "store") == {"k": b"new"}


def test_object_created_after_a_deletion_has_a_higher_version(store):
    path = Path(store.location("a/k"))
    store.create("a/k", b"x")
    ahead = path.stat().st_mtime_ns + 3_600 * 10**9  # of a clock that has been set back since
    os.utime(path, ns=(ahead, ahead))
    store.delete("a/k", str(ahead))
    assert int(store.create("a/k", b"x")) > ahead
    with pytest.raises(Conflict):
        store.delete("a/k", str(ahead))


class TestUnmounted:
    """A link to a folder on another device is the mount; without it, the path ends on this device."""

    @pytest.fixture
    def mount(self, tmp_path: Path) -> Iterator[Path]:
        here = tmp_path.stat().st_dev
        others = (Path(name) for name in ("/dev/shm", "/var/tmp") if Path(name).is_dir())
        elsewhere = next((each for each in others if each.stat().st_dev != here), None)
        if elsewhere is None:
            pytest.skip("there is no second file system to write to")
        with tempfile.TemporaryDirectory(dir=elsewhere) as folder:
            mount = tmp_path / "mount"
            mount.symlink_to(folder)
            yield mount

    def test_sweep_is_neither_empty_nor_deleted_nor_begun_anew(self, mount: Path) -> None:
        LocalStore(mount / "sweep").create("trials/000000.json", b"x")
        store = LocalStore(mount / "sweep")
        version = store.read("trials/000000.json")[1]
        device = mount.readlink()
        mount.unlink()
        for use in (
            lambda: store.read("trials/000000.json"),
            lambda: store.read_many(["sweep.json"]),
            lambda: store.list(""),
            lambda: store.keys("trials/"),
            lambda: store.versions(["trials/000000.json"]),
            lambda: store.create("trials/000001.json", b"y"),
            lambda: store.replace("trials/000000.json", b"y", version),
            lambda: store.delete("trials/000000.json", version),
            lambda: store.folder("runs/000000"),
            store.now,
        ):
            with pytest.raises(StoreUnavailable, match="not mounted any more"):
                use()
        assert list(mount.parent.iterdir()) == []
        mount.symlink_to(device)
        assert store.read("trials/000000.json") == (b"x", version)

    def test_folder_that_came_back_on_another_device_is_used(self, mount: Path) -> None:
        LocalStore(mount / "sweep").create("k", b"x")
        store = LocalStore(mount / "sweep")
        mount.unlink()
        LocalStore(mount / "sweep").create("k", b"x")
        with pytest.raises(NotFound):
            store.read("other")

    def test_deleted_folder_is_not_taken_for_it(self, tmp_path: Path) -> None:
        LocalStore(tmp_path / "storage" / "sweep").create("k", b"x")
        store = LocalStore(tmp_path / "storage" / "sweep")
        shutil.rmtree(tmp_path / "storage")
        assert store.list("") == []
        with pytest.raises(NotFound):
            store.read("k")
