"""trainer.cache: one build for all, nothing half-built is ever taken for finished."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from trainer import cache
from trainer.cache import CacheError, artifact, cache_root

SPEC = {"name": "thing", "size": 3}
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.ROOT_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def fill(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "ids.bin").write_bytes(b"0123456789")
    (folder / "notes.txt").write_text("notes")


def never(folder: Path) -> None:
    raise AssertionError("built although it was there")


def contents(folder: Path) -> dict[str, bytes]:
    """Everything below a folder except locks and the manifest with its time stamp."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != cache.MANIFEST and path.suffix != ".lock"
    }


def assert_nothing_but(root: Path, *folders: Path) -> None:
    left = {path for path in (root / "things").iterdir() if path.suffix != ".lock"}
    assert left == set(folders)


# Where


def test_the_root_is_the_environments_choice(root: Path) -> None:
    assert cache_root() == root


@pytest.mark.parametrize("value", [None, ""], ids=["unset", "empty"])
def test_the_root_is_in_the_home_directory_otherwise(
    value: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(cache.ROOT_VARIABLE)
    if value is not None:
        monkeypatch.setenv(cache.ROOT_VARIABLE, value)
    assert cache_root() == tmp_path / ".cache" / "stagesweep"


# Once


def test_an_artefact_is_built_once_and_found_again(root: Path) -> None:
    first = artifact("things", SPEC, fill)
    assert artifact("things", dict(reversed(SPEC.items())), never) == first
    assert contents(first) == {"deep/ids.bin": b"0123456789", "notes.txt": b"notes"}
    assert_nothing_but(root, first)


def test_another_spec_or_kind_is_another_artefact() -> None:
    folders = {
        artifact(kind, spec, fill)
        for kind in ("things", "others")
        for spec in (SPEC, SPEC | {"size": 4}, SPEC | {"size": "3"})
    }
    assert len(folders) == 6


def test_the_manifest_tells_spec_sizes_and_hashes() -> None:
    manifest = json.loads((artifact("things", SPEC, fill) / cache.MANIFEST).read_text())
    assert manifest["spec"] == SPEC
    assert manifest["files"] == {
        "deep/ids.bin": {"size": 10, "sha256": hashlib.sha256(b"0123456789").hexdigest()},
        "notes.txt": {"size": 5, "sha256": hashlib.sha256(b"notes").hexdigest()},
    }


@pytest.mark.parametrize(
    ("spec", "error"),
    [({"x": float("nan")}, ValueError), ({"x": Path("a")}, TypeError)],
    ids=["nan", "not-json"],
)
def test_a_spec_that_cannot_be_a_key_is_refused(spec: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        artifact("things", spec, never)


# Damage


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


DAMAGES: dict[str, Callable[[Path], None]] = {
    "file-missing": lambda folder: (folder / "notes.txt").unlink(),
    "nested-file-truncated": lambda folder: _truncate(folder / "deep" / "ids.bin"),
    "file-emptied": lambda folder: (folder / "notes.txt").write_bytes(b""),
    "file-grown": lambda folder: (folder / "notes.txt").write_bytes(b"notes and more"),
    "manifest-missing": lambda folder: (folder / cache.MANIFEST).unlink(),
    "manifest-truncated": lambda folder: _truncate(folder / cache.MANIFEST),
    "manifest-not-an-object": lambda folder: (folder / cache.MANIFEST).write_text("[1]"),
    "manifest-without-files": lambda folder: (folder / cache.MANIFEST).write_text(json.dumps({"spec": SPEC})),
    "manifest-of-another-spec": lambda folder: (folder / cache.MANIFEST).write_text(
        '{"spec": {"name": "another"}, "files": {}}'
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_artefact_is_built_anew(damage: Callable[[Path], None], root: Path) -> None:
    folder = artifact("things", SPEC, fill)
    intact = contents(folder)
    damage(folder)
    assert artifact("things", SPEC, fill) == folder
    assert contents(folder) == intact
    assert artifact("things", SPEC, never) == folder
    assert_nothing_but(root, folder)


def test_open_files_survive_a_replacement() -> None:
    folder = artifact("things", SPEC, fill)
    with (folder / "deep" / "ids.bin").open("rb") as file:
        (folder / "notes.txt").unlink()
        artifact("things", SPEC, fill)
        assert file.read() == b"0123456789"


# Builders that fail


class BuildFault(Exception):
    """What a builder may raise of its own."""


def fill_and_fail(folder: Path) -> None:
    fill(folder)
    raise BuildFault


def test_a_builder_that_raises_leaves_nothing(root: Path) -> None:
    with pytest.raises(BuildFault):
        artifact("things", SPEC, fill_and_fail)
    assert_nothing_but(root)
    artifact("things", SPEC, fill)


def test_failed_rebuild_keeps_the_old_files() -> None:
    folder = artifact("things", SPEC, fill)
    (folder / "notes.txt").unlink()
    with pytest.raises(BuildFault):
        artifact("things", SPEC, fill_and_fail)
    assert (folder / "deep" / "ids.bin").exists()
    assert artifact("things", SPEC, fill) == folder


class Killed(BaseException):
    """Stands for a death at one exact point; nothing catches it."""


def test_death_between_two_renames_is_repaired(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = artifact("things", SPEC, fill)
    (folder / "notes.txt").unlink()
    rename = Path.rename

    def die_before_the_second(path: Path, target: Path) -> Path:
        if target == folder:
            raise Killed
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", die_before_the_second)
    monkeypatch.setattr(cache.shutil, "rmtree", lambda *arguments, **options: None)  # the dead clean nothing
    with pytest.raises(Killed):
        artifact("things", SPEC, fill)
    assert not folder.exists()
    assert len(list((root / "things").glob(".*.tmp"))) == 2
    monkeypatch.undo()
    monkeypatch.setenv(cache.ROOT_VARIABLE, str(root))
    assert artifact("things", SPEC, fill) == folder
    assert_nothing_but(root, folder)


def hang_half_way(folder: Path) -> None:
    fill(folder)
    (folder.parent.parent / "half-way").touch()
    time.sleep(600)


def ask_and_hang(root: str, spec: dict[str, Any]) -> None:
    os.environ[cache.ROOT_VARIABLE] = root
    artifact("things", spec, hang_half_way)


@pytest.fixture
def hanging_builder(root: Path) -> Iterator[Callable[[dict[str, Any]], Any]]:
    """Start a process that has written its files and now never finishes."""
    started = []

    def start(spec: dict[str, Any]) -> Any:
        process = SPAWN.Process(target=ask_and_hang, args=(str(root), spec))
        process.start()
        started.append(process)
        deadline = time.monotonic() + 60
        while not (root / "half-way").exists():
            assert process.is_alive()
            assert time.monotonic() < deadline, "the builder did not start"
            time.sleep(0.02)
        return process

    yield start
    for process in started:
        process.kill()
        process.join()
        process.close()


def test_killed_builder_leaves_no_artifact(
    hanging_builder: Callable[[dict[str, Any]], Any], root: Path
) -> None:
    process = hanging_builder(SPEC)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert [path for path in (root / "things").iterdir() if not path.name.startswith(".")] == []
    assert len(list((root / "things").glob(".*.tmp"))) == 1
    folder = artifact("things", SPEC, fill)
    assert contents(folder) == {"deep/ids.bin": b"0123456789", "notes.txt": b"notes"}
    assert_nothing_but(root, folder)


def test_leftovers_of_dead_builders_are_removed(
    hanging_builder: Callable[[dict[str, Any]], Any], root: Path
) -> None:
    process = hanging_builder(SPEC | {"size": 4})
    (work,) = (root / "things").glob(".*.tmp")
    first = artifact("things", SPEC, fill)
    assert_nothing_but(root, first, work)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    second = artifact("things", SPEC | {"size": 5}, fill)
    assert_nothing_but(root, first, second)


# Many at once


def build_slowly(log: Path) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        with log.open("a") as lines:
            lines.write(f"{os.getpid()}\n")
        for part in range(5):
            (folder / f"{part}.bin").write_bytes(bytes(1000))
            time.sleep(0.05)

    return build


def ask_at_once(root: str, log: str, start: Barrier, answers: Any) -> None:
    os.environ[cache.ROOT_VARIABLE] = root
    start.wait(60)
    folder = artifact("things", SPEC, build_slowly(Path(log)))
    answers.put((str(folder), sorted(path.name for path in folder.iterdir())))


def test_four_processes_at_once_build_once_and_all_see_the_whole(root: Path, tmp_path: Path) -> None:
    log = tmp_path / "builds"
    start, answers = SPAWN.Barrier(4), SPAWN.SimpleQueue()
    processes = [
        SPAWN.Process(target=ask_at_once, args=(str(root), str(log), start, answers)) for _ in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(90)
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    results = [answers.get() for _ in processes]
    answers.close()
    assert len(log.read_text().splitlines()) == 1
    names = ["0.bin", "1.bin", "2.bin", "3.bin", "4.bin", cache.MANIFEST]
    assert results == [(str(artifact("things", SPEC, never)), names)] * 4


def test_a_long_wait_is_logged(
    hanging_builder: Callable[[dict[str, Any]], Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    process = hanging_builder(SPEC)
    monkeypatch.setattr(cache, "PATIENCE_S", 0.1)
    log = logging.getLogger("trainer.cache")
    warn = log.warning

    def kill_then_warn(*args: Any) -> None:
        warn(*args)
        os.kill(process.pid, signal.SIGKILL)

    monkeypatch.setattr(log, "warning", kill_then_warn)
    artifact("things", SPEC, fill)
    assert "waiting for" in caplog.text


# Folders that cannot be used


def assert_one_line_that_helps(error: pytest.ExceptionInfo[CacheError], root: Path) -> None:
    message = str(error.value)
    assert str(root) in message
    assert cache.ROOT_VARIABLE in message
    assert "\n" not in message


@pytest.mark.parametrize("taken", ["", "things"], ids=["root-is-a-file", "kind-is-a-file"])
def test_a_file_in_the_caches_place_is_named(taken: str, root: Path) -> None:
    blocked = root / taken
    blocked.parent.mkdir(parents=True, exist_ok=True)
    blocked.write_text("a file")
    with pytest.raises(CacheError) as error:
        artifact("things", SPEC, fill)
    assert_one_line_that_helps(error, root)


@pytest.fixture
def unwritable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Take every permission to write below a folder away, also from root (who becomes nobody meanwhile)."""
    euid = os.geteuid()
    closed: list[Path] = []

    def close(folder: Path) -> None:
        for path in (folder, *folder.rglob("*")):
            if path.is_dir():
                path.chmod(0o555)
                closed.append(path)
        if euid == 0:
            os.seteuid(65534)

    yield close
    if euid == 0:
        os.seteuid(0)
    for path in closed:
        path.chmod(0o755)


@pytest.fixture
def open_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a cache root that other users can reach (pytest's own folders are closed to them)."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv(cache.ROOT_VARIABLE, folder)
        yield Path(folder)


def test_a_finished_artefact_is_read_from_a_read_only_cache(
    open_root: Path, unwritable: Callable[[Path], None]
) -> None:
    folder = artifact("things", SPEC, fill)
    unwritable(open_root)
    assert artifact("things", SPEC, never) == folder
    assert contents(folder)["notes.txt"] == b"notes"


@pytest.mark.parametrize("kind", ["things", "others"], ids=["kind-exists", "kind-is-new"])
def test_a_read_only_cache_without_the_artefact_is_named(
    kind: str, open_root: Path, unwritable: Callable[[Path], None]
) -> None:
    artifact("things", SPEC, fill)
    unwritable(open_root)
    with pytest.raises(CacheError, match="Permission denied") as error:
        artifact(kind, SPEC | {"size": 4}, never)
    assert_one_line_that_helps(error, open_root)


def full(folder: Path) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_in_rust(folder: Path) -> None:
    raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("build", [full, full_in_rust], ids=["os-error", "text-of-a-rust-library"])
def test_a_disk_that_fills_up_while_building_is_named(build: Callable[[Path], None], root: Path) -> None:
    with pytest.raises(CacheError, match="No space left") as error:
        artifact("things", SPEC, build)
    assert_one_line_that_helps(error, root)
    assert_nothing_but(root)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def test_without_locks_the_first_of_several_builders_wins(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A file as a lock would stay for good where a machine dies that builds, and all others would wait for it."""

    def fail(fd: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    first: list[tuple[Path, int]] = []

    def fill_second(folder: Path) -> None:
        fill(folder)
        made = artifact("things", SPEC, fill)  # another process that begins meanwhile, and is done
        first.append((made, made.stat().st_ino))

    made = artifact("things", SPEC, fill_second)
    assert [(made, made.stat().st_ino)] == first
    assert artifact("things", SPEC, never) == made
    assert_nothing_but(root, made)


def test_without_locks_no_builder_takes_away_what_another_has_just_repaired(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", fail)
    made = artifact("things", SPEC, fill)
    next(path for path in made.iterdir() if path.name != "manifest.json").unlink()
    look, repaired = cache._is_intact, []

    def look_too_early(folder: Path, canonical: str) -> bool:
        found = look(folder, canonical)
        if len(looks) == 1:  # after the build: another process repairs it between this look and the renames
            looks.append(folder)
            repaired.append(artifact("things", SPEC, fill).stat().st_ino)
        looks.append(folder)
        return found

    looks: list[Path] = []
    monkeypatch.setattr(cache, "_is_intact", look_too_early)
    assert artifact("things", SPEC, fill).stat().st_ino == repaired[0]
    assert look(made, cache._canonical(SPEC))
    assert_nothing_but(root, made)


def test_a_disk_that_fails_to_keep_the_files_leaves_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CacheError):
        artifact("things", SPEC, fill)
    assert_nothing_but(root)


def test_other_errors_of_the_build_pass_through(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        artifact("things", SPEC, lambda folder: fill(tmp_path / "elsewhere"))
