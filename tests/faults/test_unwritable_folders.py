"""A folder that can no longer be written: read-only, full, or beyond the file size limit (`ulimit -f`).

The machine is at fault: no trial fails for it, the worker leaves with one line, and others go on.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from memory_store import MemoryStore
from silent_watcher import Silent

from sweeps.errors import EnvironmentFault, StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.export.table import replace_file
from sweeps.programs.command import CommandProgram
from sweeps.programs.result import Completed
from sweeps.programs.signals import Stop
from sweeps.space.definition import Fixed, Lease, Objective, Program, Range, Search, Space
from sweeps.storage.local import LocalStore
from sweeps.trials.lease import ObjectLease
from sweeps.worker import loop

LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))

def writes_too_much(parameters):
    with open("checkpoint", "wb") as file:
        file.write(b"xx")
    return {"loss": 0.0}
"""


def space(*command: str, **lease: float) -> Space:
    return Space(
        name="toy",
        objectives=(Objective(metric="loss"),),
        parameters=(Range(name="x", min=0.0, max=1.0, kind="float"), Fixed(name="mode", value="fast")),
        program=Program(kind="command", command=(*command, "${overrides}")),
        search=Search(method="random"),
        run_cap=1,
        baseline={"x": 0.5},
        lease=Lease(**({"heartbeat_s": 10, "expire_s": 30, "max_attempts": 3} | lease)),
    )


def run(experiment: Experiment) -> loop.Tally:
    return loop.work(experiment, stop=Stop(), watcher=Silent())


@pytest.fixture
def broken_disk(monkeypatch) -> Callable[[Path, int], None]:
    """Let every flush of a file below a folder fail from now on, as on such a disk."""
    flush = os.fsync

    def breaks(folder: Path, code: int) -> None:
        def fail(fd: int) -> None:
            if Path(f"/proc/self/fd/{fd}").resolve().is_relative_to(folder):
                raise OSError(code, os.strerror(code))
            flush(fd)

        monkeypatch.setattr(os, "fsync", fail)

    return breaks


@pytest.mark.parametrize(
    "code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT], ids=["full", "read-only", "quota"]
)
def test_failure_in_an_unwritable_folder_costs_no_attempt(code, broken_disk):
    store = MemoryStore()  # the bucket is well; the run folder lies on this machine
    sweep = Experiment.create(store, space("sh", "-c", "exit 1"))
    broken_disk(store.folder("runs"), code)
    with pytest.raises(EnvironmentFault, match="cannot write") as caught:
        run(sweep)
    assert "\n" not in str(caught.value)
    (record,) = sweep.trials()
    assert (record.status, record.attempt, record.error) == ("pending", 1, None)
    assert record.history[0].reason == "released"


@pytest.mark.parametrize("words", ["no space left on device", "Stale file handle", "Disk quota exceeded"])
def test_failure_by_a_disk_that_is_well_again_costs_an_attempt_and_no_trial(words):
    """A disk has room for a probe and none for a checkpoint, or another program has just made some."""
    sweep = Experiment.create(
        MemoryStore(), space("sh", "-c", f"echo step 1; echo 'cannot write: {words}'; exit 1")
    )
    with pytest.raises(EnvironmentFault, match=rf"of trial 0 \(cannot write: {words}\)"):
        run(sweep)
    (record,) = sweep.trials()
    assert (record.status, record.attempt, record.error) == ("pending", 1, None)
    for _ in range(2):
        with pytest.raises(EnvironmentFault, match="of trial 0"):
            run(sweep)
    (record,) = sweep.trials()
    assert record.status == "failed"  # else a program that cannot be served anywhere would end all workers
    assert "cannot write" in record.error


def test_function_on_a_full_disk_may_be_tried_again():
    def full(parameters):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "shard-3.bin")

    sweep = Experiment.create(MemoryStore(), space("true"))
    with pytest.raises(EnvironmentFault, match="No space left on device"):
        loop.work(sweep, stop=Stop(), watcher=Silent(), function=full)
    assert [record.status for record in sweep.trials()] == ["pending"]


def test_full_disk_that_the_program_has_outlived_is_not_its_end():
    log = "echo No space left on device; seq 9; echo KeyError; exit 1"
    sweep = Experiment.create(MemoryStore(), space("sh", "-c", log))
    run(sweep)
    assert {record.status for record in sweep.trials()} == {"failed"}


def test_a_run_folder_that_cannot_be_made_hands_the_trial_back(tmp_path):
    sweep = Experiment.create(LocalStore(tmp_path / "store"), space("true"))
    sweep.enqueue([{"x": 0.5, "mode": "fast"}], "me")
    (tmp_path / "store" / "runs").write_text("a file stands here")
    with pytest.raises(StoreUnavailable, match="found a file"):
        run(sweep)
    (record,) = sweep.trials()
    assert (record.status, record.history[0].reason) == ("pending", "released")


def test_no_trial_is_made_where_run_folders_cannot_be_looked_at(tmp_path):
    sweep = Experiment.create(LocalStore(tmp_path / "store"), space("true"))
    (tmp_path / "store" / "runs").write_text("a file stands here")
    with pytest.raises(StoreUnavailable, match="found a file"):
        run(sweep)
    assert sweep.trials() == []


@pytest.mark.timeout(60)
def test_result_waits_for_a_folder_within_its_lease(tmp_path, broken_disk, monkeypatch):
    sweep = Experiment.create(LocalStore(tmp_path / "store"), space("true", heartbeat_s=0.3, expire_s=1.5))
    monkeypatch.setattr(CommandProgram, "run", lambda *args, **options: completed(broken_disk, tmp_path))
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="write to"):
        run(sweep)
    assert time.monotonic() - began < 30
    assert [record.status for record in sweep.trials()] == ["running"]  # until its lease has expired


def completed(broken_disk, folder: Path) -> Completed:
    broken_disk(folder, errno.EROFS)
    return Completed(metrics={"loss": 1.0})


def test_file_size_limit_costs_no_attempt(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (2**20, resource.RLIM_INFINITY))
    sweep = Experiment.create(MemoryStore(), space("sh", "-c", "kill -XFSZ $$"))
    with pytest.raises(EnvironmentFault, match="ulimit -f"):
        run(sweep)
    assert [(record.status, record.attempt) for record in sweep.trials()] == [("pending", 1)]


BEYOND = "import os; open(os.environ['SWEEP_RUN_DIR'] + '/weights', 'wb').write(bytes(10**5))"


def test_limit_above_the_probe_costs_no_attempt_of_a_python_program(monkeypatch):
    """Python ignores the signal, and so do libraries that write through it: it is an error like others."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (2**16, resource.RLIM_INFINITY))
    limited = f'ulimit -f 64; exec {sys.executable} -c "{BEYOND}"'
    sweep = Experiment.create(MemoryStore(), space("sh", "-c", limited))
    with pytest.raises(EnvironmentFault, match=r"of trial 0.*File too large.*ulimit -f"):
        run(sweep)
    assert [(record.status, record.attempt) for record in sweep.trials()] == [("pending", 1)]
    assert sweep.trials()[0].history[0].reason == "released"


def beyond_its_limit(parameters: dict[str, object]) -> None:
    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), "weights.bin")


def test_limit_above_the_probe_costs_no_attempt_of_a_function(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (2**16, resource.RLIM_INFINITY))
    sweep = Experiment.create(MemoryStore(), space("true"))
    with pytest.raises(EnvironmentFault, match=r"of trial 0.*File too large.*ulimit -f"):
        loop.work(sweep, stop=Stop(), watcher=Silent(), function=beyond_its_limit)
    assert [(record.status, record.attempt) for record in sweep.trials()] == [("pending", 1)]


def test_same_words_without_a_limit_fail_the_trial():
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    sweep = Experiment.create(MemoryStore(), space("true"))
    loop.work(sweep, stop=Stop(), watcher=Silent(), function=beyond_its_limit)
    assert [(record.status, record.failure) for record in sweep.trials()] == [("failed", "crashed")]


def test_same_signal_without_a_limit_counts():
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    sweep = Experiment.create(MemoryStore(), space("sh", "-c", "kill -XFSZ $$"))
    run(sweep)
    (record,) = sweep.trials()
    assert record.history[0].reason == "crashed"


def test_a_lease_that_cannot_be_renewed_is_told_once(caplog, monkeypatch):
    store = MemoryStore()
    lease = ObjectLease(store, "ask.lock", heartbeat_s=0.01, expire_s=30)
    tries = []

    def refuse(*args: object) -> str:
        tries.append(args)
        raise StoreUnavailable("read-only")

    with caplog.at_level(logging.WARNING), lease.held("me"):
        monkeypatch.setattr(store, "replace", refuse)
        while len(tries) < 5:
            time.sleep(0.01)
    (warning,) = [text for record in caplog.records if "renewed" in (text := record.getMessage())]
    assert warning.startswith("ask.lock ")


def test_export_into_a_read_only_folder_names_the_file(tmp_path, monkeypatch):
    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StoreUnavailable) as caught:
        replace_file(tmp_path / "table.csv", refuse)
    assert str(caught.value).startswith(f"{tmp_path}/table.csv: ")


@pytest.mark.timeout(120)
def test_worker_beyond_its_file_size_limit_leaves(tmp_path):
    (tmp_path / "limited.py").write_text(LIMITED)
    program = Program(kind="function", function="limited:writes_too_much")
    toy = replace(space("true", heartbeat_s=0.3, expire_s=1.5), program=program)
    Experiment.create(LocalStore(tmp_path / "store" / "toy"), toy)
    first = sweep_worker(tmp_path)
    assert first.returncode == 1
    assert "ulimit -f" in first.stderr.splitlines()[-1]
    assert "Traceback" not in first.stderr
    for file in (tmp_path / "store").rglob("*.json"):
        json.loads(file.read_bytes())

    (tmp_path / "limited.py").write_text(LIMITED.replace("(1, 1)", "(-1, -1)"))
    second = sweep_worker(tmp_path)
    assert second.returncode == 0, second.stderr
    (record,) = Experiment.open(LocalStore(tmp_path / "store" / "toy")).trials()
    assert (record.status, record.metrics) == ("completed", {"loss": 0.0})


def sweep_worker(folder: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "sweeps", "worker", "--storage", str(folder / "store" / "toy")]
    repository = str(Path(__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": repository, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
