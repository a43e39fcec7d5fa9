"""Checkpoints of an earlier attempt are there for the next one, each complete or not at all."""

from __future__ import annotations

import os
import shutil
import signal
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from fake_gcs import FakeGcs, Fault
from memory_store import MemoryStore
from silent_watcher import Silent

from sweeps.errors import EnvironmentFault
from sweeps.experiment import Experiment
from sweeps.programs.signals import Stop
from sweeps.space.definition import Program
from sweeps.storage.base import Store
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.local import LocalStore
from sweeps.storage.retries import RetryPolicy
from sweeps.storage.run_files import fetch
from sweeps.storage.run_files.exchange import PART_UNIT
from sweeps.storage.run_files.mirror import UploadConfig, Uploader
from sweeps.trials.lifecycle import Release
from sweeps.trials.record import Trial, run_prefix
from sweeps.worker.loop import work
from sweeps.worker.resuming import fetch_checkpoints

QUICK = RetryPolicy(total_s=1.0, attempt_s=0.5, first_wait_s=0.02, longest_wait_s=0.1)
PACE = UploadConfig(scan_s=0.05, growing_s=0.05, patience_s=1, first_wait_s=0.02, longest_wait_s=0.1)


@pytest.fixture(params=["folder", "bucket"])
def stores(request: pytest.FixtureRequest, gcs: FakeGcs, tmp_path: Path) -> tuple[Store, Store]:
    """One sweep, as two machines see it."""
    if request.param == "folder":
        return LocalStore(tmp_path / "store"), LocalStore(tmp_path / "store")
    url = f"gs://bucket/resuming/{uuid.uuid4().hex}"
    return tuple(GcsStore(url, endpoint=gcs.door(door), retries=QUICK) for door in "ab")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "UploadConfig", lambda: PACE)


def claimed(attempt: int, trial: int = 3) -> Trial:
    return Trial(trial=trial, status="running", parameters={}, generator="x", attempt=attempt, worker="me")


def leave(store: Store, attempt: int, files: dict[str, str], trial: int = 3) -> Path:
    """Write the run folder of an attempt whose worker died."""
    folder = store.folder(run_prefix(trial, attempt))
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    assert Uploader(store, folder, run_prefix(trial, attempt), config=PACE).close(20) == ()
    return folder


def there(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}


FIRST = {"checkpoints/10/model": "a", "checkpoints/10/state.json": "b", "checkpoints/latest": "10"}
NEXT = {"checkpoints/20/model": "c", "checkpoints/latest": "20"}


def test_the_first_attempt_finds_nothing(stores) -> None:
    folder = stores[0].folder(run_prefix(3, 1))
    assert fetch_checkpoints(stores[0], claimed(1), folder) is None
    assert there(folder) == {}


def test_next_attempt_has_only_the_checkpoints_of_the_last(stores) -> None:
    here, elsewhere = stores
    leave(
        here,
        1,
        FIRST | {"log.txt": "words", "config.json": "{}", "metrics.jsonl": "{}\n", "result.json": "{}"},
    )
    folder = elsewhere.folder(run_prefix(3, 2))
    assert fetch_checkpoints(elsewhere, claimed(2), folder) == 1
    assert there(folder) == FIRST


def test_the_newest_attempt_that_has_left_any_counts(stores) -> None:
    here, elsewhere = stores
    leave(here, 1, FIRST)
    leave(here, 2, NEXT)
    leave(here, 3, {"log.txt": "it died before its first checkpoint"})
    folder = elsewhere.folder(run_prefix(3, 5))  # of attempt 4 there is nothing at all
    assert fetch_checkpoints(elsewhere, claimed(5), folder) == 2
    assert there(folder) == NEXT


def test_checkpoints_that_nobody_will_look_at_go(stores) -> None:
    """A machine that is preempted every hour would leave its checkpoints each time."""
    here, elsewhere = stores
    folders = [leave(here, 1, FIRST | {"log.txt": "words"}), leave(here, 2, NEXT | {"log.txt": "words"})]
    folder = elsewhere.folder(run_prefix(3, 3))
    assert fetch_checkpoints(elsewhere, claimed(3), folder) == 2
    assert [(folder / "checkpoints").exists() for folder in folders] == [here.is_remote, True]
    assert all((folder / "log.txt").exists() for folder in folders)


@pytest.mark.parametrize("status", [0, 70], ids=["completed", "diverged"])
def test_completed_trial_leaves_no_checkpoints_of_lost_attempts(tmp_path: Path, space, status: int) -> None:
    code = "mkdir -p $SWEEP_RUN_DIR/checkpoints; echo x > $SWEEP_RUN_DIR/checkpoints/$0; "
    first = f"{code} [ -e $SWEEP_RUN_DIR/../attempt-2 ] && {{ echo '{{\"loss\": 1}}' > $SWEEP_RUN_DIR/result.json; exit {status}; }}; kill -9 $$"
    program = Program(kind="command", command=("sh", "-c", first, "${trial}", "${args}"))
    sweep = Experiment.create(LocalStore(tmp_path / "store"), replace(space, program=program, run_cap=1))
    work(sweep, stop=Stop(), watcher=Silent())
    (record,) = sweep.trials()
    assert (record.status, record.attempt) == ("failed" if status else "completed", 2)
    kept = {path.parent.name for path in (tmp_path / "store" / "runs" / "000000").glob("*/checkpoints")}
    assert kept == ({"attempt-1", "attempt-2"} if status else {"attempt-2"})


def test_earlier_attempts_files_do_not_change(stores) -> None:
    here, elsewhere = stores
    left = leave(here, 1, FIRST)
    folder = elsewhere.folder(run_prefix(3, 2))
    fetch_checkpoints(elsewhere, claimed(2), folder)
    with (folder / "checkpoints/10/model").open("a") as file:
        file.write("more")
    assert there(left) == FIRST


def test_what_lay_there_of_a_record_that_was_lost_is_taken_away(stores) -> None:
    folder = leave(stores[0], 1, FIRST)
    assert fetch_checkpoints(stores[0], claimed(1), folder) is None
    assert there(folder) == {}


def test_a_checkpoint_that_is_rotated_away_meanwhile_is_left_out(tmp_path: Path, monkeypatch) -> None:
    """By a trainer whose worker was cut off, and which is still alive."""
    store = LocalStore(tmp_path / "store")
    left = leave(store, 1, {"checkpoints/10/a": "1", "checkpoints/10/b": "2", "checkpoints/20/a": "3"})
    copy = fetch.copy_regular

    def rotating(source: Path, target: Path) -> None:
        copy(source, target)
        shutil.rmtree(left / "checkpoints/10", ignore_errors=True)

    monkeypatch.setattr(fetch, "copy_regular", rotating)
    folder = store.folder(run_prefix(3, 2))
    assert fetch_checkpoints(store, claimed(2), folder) == 1
    assert there(folder) == {"checkpoints/20/a": "3"}


def test_incomplete_upload_is_skipped_for_the_attempt_before(gcs: FakeGcs, stores) -> None:
    here, elsewhere = stores
    if isinstance(here, LocalStore):
        pytest.skip("nothing is uploaded")
    leave(here, 1, FIRST)
    leave(here, 2, NEXT)
    root = here.url.removeprefix("gs://bucket/")
    gcs.objects.delete("bucket", f"{root}/{run_prefix(3, 2)}/checkpoints/20/model", {})
    folder = elsewhere.folder(run_prefix(3, 3))
    assert fetch_checkpoints(elsewhere, claimed(3), folder) == 1
    assert there(folder) == FIRST


LARGE = {f"checkpoints/00000{n}00/model": str(n) * (2 * PART_UNIT) for n in (1, 2)}
LARGE |= {f"checkpoints/00000{n}00/state.json": "{}" for n in (1, 2)} | {"checkpoints/latest": "00000200"}


@pytest.mark.parametrize("last", ["", "00000200/"], ids=["none", "one-of-two"])
def test_attempt_whose_copies_are_not_up_yet_hides_no_checkpoints(gcs: FakeGcs, stores, last: str) -> None:
    """Gigabytes that were fetched take minutes to go up again, and small files go before them."""
    here, elsewhere = stores
    leave(here, 1, LARGE)
    folder = elsewhere.folder(run_prefix(3, 2))
    assert fetch_checkpoints(elsewhere, claimed(2), folder) == 1
    (folder / "log.txt").write_text("words")
    gcs.faults.add(Fault(action="hang", operation="upload_part", name=f"*{last}model*", times=None))
    pace = replace(PACE, chunk_bytes=PART_UNIT)
    missing = Uploader(elsewhere, folder, run_prefix(3, 2), config=pace).close(2)
    gcs.faults.clear()
    folder = here.folder(run_prefix(3, 3))
    assert fetch_checkpoints(here, claimed(3), folder) == (1 if here.is_remote else 2)
    assert there(folder) == LARGE
    assert set(missing) == (LARGE.keys() if here.is_remote else set())


def test_checkpoint_beside_copies_that_are_up_is_there_for_the_next_attempt(gcs: FakeGcs, stores) -> None:
    here, elsewhere = stores
    leave(here, 1, LARGE)
    folder = elsewhere.folder(run_prefix(3, 2))
    assert fetch_checkpoints(elsewhere, claimed(2), folder) == 1
    uploader = Uploader(elsewhere, folder, run_prefix(3, 2), config=replace(PACE, chunk_bytes=PART_UNIT))
    uploader.start()
    more = {"checkpoints/00000300/model": "3" * (3 * PART_UNIT), "checkpoints/latest": "00000300"}
    for name, text in more.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    shutil.rmtree(folder / "checkpoints/00000100")  # as the program rotates them
    assert uploader.close(20) == ()
    folder = here.folder(run_prefix(3, 3))
    assert fetch_checkpoints(here, claimed(3), folder) == 2
    assert there(folder) == {n: t for n, t in (LARGE | more).items() if "/00000100/" not in n}


def test_trial_starts_over_when_the_bucket_is_out_of_reach(gcs: FakeGcs, stores, caplog) -> None:
    here, elsewhere = stores
    if isinstance(here, LocalStore):
        pytest.skip("a folder is always there")
    leave(here, 1, FIRST)
    folder = elsewhere.folder(run_prefix(3, 2))
    gcs.faults.add(Fault(action="status", operation="get", name="*model", status=503, times=None))
    assert fetch_checkpoints(elsewhere, claimed(2), folder) is None
    assert list(folder.iterdir()) == []
    assert "starts over" in caplog.text


def test_a_folder_that_cannot_be_written_is_the_machines_fault(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    leave(store, 1, FIRST)
    folder = store.folder(run_prefix(3, 2))
    (folder / ".incoming").write_text("in the way")
    with pytest.raises(EnvironmentFault, match="not a directory"):
        fetch_checkpoints(store, claimed(2), folder)


def test_worker_that_takes_over_fetches_the_checkpoints(command_space) -> None:
    code = (
        'if [ -e "$SWEEP_RUN_DIR/checkpoints/10/model" ]; then echo \'{"loss": 2}\' > "$SWEEP_RUN_DIR/result.json"; '
        'else mkdir -p "$SWEEP_RUN_DIR/checkpoints/10"; echo a > "$SWEEP_RUN_DIR/checkpoints/10/model"; exit 75; fi'
    )
    space = replace(
        command_space, program=Program(kind="command", command=("sh", "-c", code, "${overrides}")), run_cap=1
    )
    experiment = Experiment.create(MemoryStore(), space)
    assert work(experiment, stop=Stop(), watcher=Silent()).preempted_by
    assert work(experiment, stop=Stop(), watcher=Silent()).ended == {"completed": 1}
    (record,) = experiment.trials()
    assert (record.attempt, record.metrics["loss"]) == (2, 2)


def test_worker_stopped_while_fetching_hands_the_trial_back(command_space, monkeypatch) -> None:
    """And leaves nothing behind that the next attempt could take for a checkpoint."""
    space = replace(
        command_space, program=Program(kind="command", command=("true", "${overrides}")), run_cap=1
    )
    experiment = Experiment.create(MemoryStore(), space)
    record = experiment.ask("first")
    leave(experiment.store, 1, FIRST, trial=0)
    experiment.apply(0, Release(worker="first", attempt=1))
    stop = Stop()
    copy = fetch.copy_regular

    def copy_and_signal(source: Path, target: Path) -> None:
        copy(source, target)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    stop.listen()
    monkeypatch.setattr(fetch, "copy_regular", copy_and_signal)
    try:
        tally = work(experiment, stop=stop, watcher=Silent())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert tally.preempted_by == "SIGTERM"
    record = experiment.trial(0)
    assert (record.status, record.attempt) == ("pending", 2)
    assert [a.reason for a in record.history] == ["released", "released"]
    assert list(experiment.store.folder(run_prefix(0, 2)).iterdir()) == []
