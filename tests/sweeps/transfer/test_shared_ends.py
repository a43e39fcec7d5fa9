"""A stage is computed once: what a trial leaves of it, another starts from, and no fault of a snapshot costs a trial."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_gcs import FakeGcs, Fault
from memory_store import MemoryStore
from published import put
from silent_watcher import Silent
from transfers import bucket, warnings

from sweeps.errors import Interrupted
from sweeps.experiment import Experiment
from sweeps.programs import base
from sweeps.programs.kinds import program_of
from sweeps.programs.signals import Stop
from sweeps.space.definition import Choice, Lease, Objective, Program, Search, Space, Stage
from sweeps.stages.checkpoint import Checkpoint, SharedKeys
from sweeps.storage.local import LocalStore
from sweeps.storage.run_files.exchange import Deadline, UploadConfig
from sweeps.transfer import copying, fetching, publishing
from sweeps.trials import lifecycle
from sweeps.trials.costs import nominal, paid
from sweeps.trials.record import Trial, run_prefix
from sweeps.trials.stage_run import StageRun
from sweeps.worker.loop import Limits, Tally, work

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def two_stages(_functions) -> Iterator:
    """The objective of the sweep, with nothing that an earlier test has left in it."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "functions"))
    import two_stages

    two_stages.computed.clear()
    yield two_stages
    two_stages.between.clear()
    sys.path.pop(0)


@pytest.fixture
def staged() -> Space:
    return Space(
        name="staged",
        objectives=(Objective(metric="loss"),),
        parameters=(Choice(name="x", values=(1.0, 2.0)), Choice(name="n", values=(1, 2, 3))),
        program=Program(kind="function", function="two_stages:objective"),
        search=Search(method="grid"),
        lease=Lease(heartbeat_s=0.05, expire_s=30, max_attempts=3),
        stages=(
            Stage(name="first", parameters=("x",), cost="100*x"),
            Stage(name="second", parameters=("n",), cost="n"),
        ),
    )


@pytest.fixture
def sweep(staged: Space, two_stages) -> Experiment:
    return Experiment.create(MemoryStore(), staged)


def run(sweep: Experiment, trials: int = 1, stop: Stop | None = None) -> Tally:
    return work(sweep, stop=stop or Stop(), watcher=Silent(), limits=Limits(max_trials=trials))


def first(record: Trial) -> StageRun:
    (found,) = (stage for stage in record.stages if stage.name == "first")
    return found


# ---- the ordinary course


def test_trials_of_one_prefix_compute_it_once(staged, store, two_stages) -> None:
    sweep = Experiment.create(store, staged)
    run(sweep, 3)
    one, two, three = sweep.trials()
    assert two_stages.computed == [1.0]
    assert [record.metrics["loss"] for record in (one, two, three)] == [3, 4, 5]
    assert [first(record).reused_from for record in (one, two, three)] == [None, 0, 0]
    assert [first(record).snapshot for record in (one, two, three)] == [True, False, False]
    assert [nominal(record) for record in (one, two, three)] == [101, 102, 103]
    assert [paid(record) for record in (one, two, three)] == [101, 2, 3]
    assert {first(record).key for record in (one, two, three)} == set(
        program_of(staged).shared_keys(one.parameters).ends.values()
    )
    assert first(two).seconds == first(one).seconds > 0


def test_all_trials_give_what_they_give_without_reuse(staged, two_stages) -> None:
    results = []
    for reuse in ("auto", "none"):
        sweep = Experiment.create(MemoryStore(), replace(staged, search=replace(staged.search, reuse=reuse)))
        run(sweep, 6)
        results.append([(dict(record.parameters), record.metrics["loss"]) for record in sweep.trials()])
        keys = [entry.key for entry in sweep.store.list("stages/")]
        assert len(keys) == (1 if reuse == "auto" else 0)  # the best trial's, now that the sweep has ended
        assert all(len(record.stages) == 2 for record in sweep.trials())
    assert results[0] == results[1]
    assert two_stages.computed == [1.0, 2.0, *[1.0] * 3, *[2.0] * 3]


def test_a_sweep_without_stages_does_as_before(staged, two_stages) -> None:
    sweep = Experiment.create(MemoryStore(), replace(staged, stages=()))
    run(sweep, 2)
    assert two_stages.computed == [1.0, 1.0]
    assert [record.stages for record in sweep.trials()] == [(), ()]
    assert (sweep.store.folder(run_prefix(0, 1)) / "snapshots/first/weights").exists()


def test_record_lists_published_end_while_running(staged, store, two_stages) -> None:
    sweep = Experiment.create(store, staged)

    def wait_for_record(folder: Path) -> None:
        for _ in range(200):
            record = sweep.trial(0)
            if record.stages and first(record).snapshot:
                assert record.status == "running"
                assert paid(record) == 100
                return
            time.sleep(0.05)
        raise AssertionError("no heartbeat says that the stage is published")

    two_stages.between.append(wait_for_record)
    run(sweep)
    assert sweep.trial(0).status == "completed"


def test_run_folders_keep_no_snapshots(staged, gcs, two_stages) -> None:
    """They would be uploaded twice, and stay when the snapshot is removed."""
    store = bucket(gcs)
    sweep = Experiment.create(store, staged)
    two_stages.between.append(lambda folder: (folder / "notes.txt").write_text("kept") and time.sleep(0.3))
    run(sweep, 2)
    assert not any("snapshots" in entry.key for entry in store.list("runs/"))
    assert sum("notes.txt" in entry.key for entry in store.list("runs/")) == 2
    for trial in (0, 1):
        assert not list(store.folder(run_prefix(trial, 1)).iterdir())  # all of it is in the bucket


def test_a_failed_trial_leaves_its_first_stage_to_others(staged, two_stages) -> None:
    """Though it fails long before the next heartbeat is due."""
    seldom = Lease(heartbeat_s=30, expire_s=90, max_attempts=3)
    sweep = Experiment.create(MemoryStore(), replace(staged, lease=seldom))

    def fail(folder: Path) -> None:
        raise FloatingPointError("the second stage has diverged")

    two_stages.between.append(fail)
    run(sweep)
    two_stages.between.clear()
    failed = sweep.trial(0)
    assert (failed.status, first(failed).snapshot, paid(failed)) == ("failed", True, 100)
    run(sweep)
    assert first(sweep.trial(1)).reused_from == 0
    assert two_stages.computed == [1.0]


def test_stage_of_another_version_is_computed_again_and_said(sweep, two_stages, monkeypatch, caplog) -> None:
    """As by a worker whose trainer was updated: its keys differ for the same parameters."""
    run(sweep)
    own = base.end_keys
    later = {"first": "f" * 64}
    monkeypatch.setattr(base, "end_keys", lambda *given: own(*given) | later)
    run(sweep, 2)
    old, new, third = sweep.trials()
    assert two_stages.computed == [1.0, 1.0]
    assert [first(record).reused_from for record in (old, new, third)] == [None, None, 1]
    (warning,) = warnings(caplog)
    assert warning.startswith(
        "trial 1: trial 0 has stored the end of first with these parameters, by another version"
    )


def test_a_stage_of_another_key_is_not_published(sweep, two_stages, monkeypatch, caplog) -> None:
    """As by a program that was started with other parameters than the worker thinks."""

    original = Path.rename

    def rename_with_another_key(self: Path, target: Path):
        (self / "stage.json").write_text(json.dumps({"schema": 1, "key": "0" * 64}))
        return original(self, target)

    monkeypatch.setattr(Path, "rename", rename_with_another_key)
    run(sweep)
    assert not first(sweep.trial(0)).snapshot
    (warning,) = warnings(caplog)
    assert warning.startswith("trial 0: its snapshot of first ")
    assert "stage.json" in warning


# ---- what is not worth it, or cannot be used


def test_a_snapshot_that_takes_too_long_to_fetch_is_not_fetched(
    sweep, two_stages, monkeypatch, caplog
) -> None:
    run(sweep)
    size, seconds = 3, first(sweep.trial(0)).seconds  # "2.0" is all that is stored
    for share, reused in ((1.1, None), (0.9, 0)):
        pace = size / (0.5 * seconds * share)  # bytes per second
        monkeypatch.setattr(fetching, "FASTEST_BYTES_PER_S", pace)
        run(sweep)
        assert first(sweep.trials()[-1]).reused_from == reused
    assert not first(sweep.trial(1)).snapshot  # trial 0 has published it
    assert warnings(caplog) == []


def test_the_rate_of_a_large_fetch_is_what_the_next_is_judged_by(sweep, two_stages, monkeypatch) -> None:
    monkeypatch.setattr(fetching, "_MEASURABLE", 1)
    run(sweep, 2)
    assert first(sweep.trial(1)).reused_from == 0
    monkeypatch.setitem(fetching._rates, sweep.store.url, (1e-6, time.monotonic(), 1.0))
    run(sweep)
    assert first(sweep.trial(2)).reused_from is None


def took(sweep: Experiment, trial: int, seconds: float) -> None:
    """Let the record say that the first stage took so long."""
    record = sweep.trial(trial)
    stages = tuple(replace(run, seconds=seconds) if run.name == "first" else run for run in record.stages)
    put(sweep.store, replace(record, stages=stages))


def test_a_rate_that_nobody_has_measured_refuses_no_fetch_that_could_pay(
    sweep, two_stages, monkeypatch
) -> None:
    """1.1 GB of SmolLM2-135M with Muon's state, and 35 steps on an H200: nothing would measure the rate."""
    run(sweep)
    took(sweep, 0, 11.0)
    monkeypatch.setattr(copying.Published, "size", 1_100_000_000)
    run(sweep)
    assert first(sweep.trial(1)).reused_from == 0


@pytest.mark.parametrize(
    ("hours", "took_s", "expected"),
    [(0, 1, 1), (2, 1, 2), (2, 1800, 1)],
    ids=["at once", "hours later", "too soon after half an hour in vain"],
)
def test_a_first_fetch_ends_once_it_has_taken_what_it_saves(
    sweep, two_stages, monkeypatch, caplog, hours, took_s, expected
) -> None:
    """And tells the rate, so that the next trial does not try it again, but one that is hours later."""
    run(sweep)
    took(sweep, 0, 0.1)
    monkeypatch.setattr(fetching, "_LEAST_PATIENCE_S", 0.05)
    monkeypatch.setattr(fetching, "_MEASURABLE", 1)
    tries = []

    def fetch_slowly(*_, deadline: Deadline, **options: object) -> None:
        tries.append(options)
        for _ in range(1000):
            deadline.check()
            time.sleep(0.01)

    monkeypatch.setattr(copying, "fetch", fetch_slowly)
    run(sweep)
    rate, measured, _ = fetching._rates[sweep.store.url]
    monkeypatch.setitem(fetching._rates, sweep.store.url, (rate, measured - hours * 3600, took_s))
    run(sweep)
    assert [first(sweep.trial(n)).reused_from for n in (1, 2)] == [None, None]
    assert len(tries) == expected
    warning, *_ = warnings(caplog)
    assert warning.endswith("3 bytes took longer to fetch than the 0 s that it saves; the stage is computed")


def weights_of(sweep: Experiment, by: str = "000000-1") -> Path:
    key = first(sweep.trial(0)).key
    return sweep.store.folder(f"stages/{key}") / by / "weights"


DAMAGE: dict[str, Callable[[Path], object]] = {
    "weights is missing": lambda path: path.unlink(),
    "weights has 2 bytes, not 3": lambda path: path.write_text("2."),
    "weights has another checksum": lambda path: path.write_text("9.0"),
}


@pytest.mark.parametrize("why", DAMAGE)
def test_damaged_end_is_computed_charged_and_replaced(staged, tmp_path, two_stages, caplog, why) -> None:
    sweep = Experiment.create(LocalStore(tmp_path / "store"), staged)
    run(sweep)
    DAMAGE[why](weights_of(sweep))
    run(sweep)
    second = sweep.trial(1)
    assert (second.metrics["loss"], paid(second), first(second).snapshot) == (4, 102, True)
    (warning,) = warnings(caplog)
    assert warning.startswith("trial 1: the snapshot of first ")
    assert why in warning
    run(sweep)
    assert paid(sweep.trial(2)) == 3
    assert two_stages.computed == [1.0, 1.0]


def test_a_snapshot_that_is_gone_is_computed_and_published_again(sweep, two_stages, caplog) -> None:
    run(sweep)
    manifest = f"stages/{first(sweep.trial(0)).key}/manifest.json"
    sweep.store.delete(manifest, sweep.store.read(manifest)[1])
    run(sweep, 2)
    (warning,) = warnings(caplog)
    assert warning.startswith("trial 1: the snapshot of first ")
    assert [first(sweep.trial(n)).reused_from for n in (1, 2)] == [None, 0]
    assert two_stages.computed == [1.0, 1.0]


def test_trial_whose_costs_fail_shares_nothing(sweep, two_stages, monkeypatch, caplog) -> None:
    def fail(space: Space) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr("sweeps.transfer.attempt.Stages", fail)
    assert run(sweep, 2).ended == {"completed": 2}
    assert any(line.startswith("trial 0 ") and line.endswith(": too large") for line in warnings(caplog))
    assert not any(stage.snapshot for record in sweep.trials() for stage in record.stages)


def test_end_removed_during_fetch_is_computed(sweep, two_stages, monkeypatch, caplog) -> None:
    run(sweep)
    copy = copying.copy_regular

    def remove(source: Path, target: Path) -> None:
        monkeypatch.setattr(copying, "copy_regular", copy)
        shutil.rmtree(Path(source).parent)
        copy(source, target)

    monkeypatch.setattr(copying, "copy_regular", remove)
    run(sweep)
    assert (sweep.trial(1).status, paid(sweep.trial(1))) == ("completed", 102)
    assert len(warnings(caplog)) == 1


def test_a_full_disk_costs_neither_trial_anything(staged, tmp_path, two_stages, monkeypatch, caplog) -> None:
    sweep = Experiment.create(LocalStore(tmp_path / "store"), staged)
    full = [True]
    copy = copying.copy_regular

    def copy_if_there_is_room(source: Path, target: Path) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        copy(source, target)

    monkeypatch.setattr(copying, "copy_regular", copy_if_there_is_room)
    run(sweep)  # cannot publish
    assert not first(sweep.trial(0)).snapshot
    full.clear()
    run(sweep)
    full.append(True)
    run(sweep)  # cannot fetch
    assert [record.status for record in sweep.trials()] == ["completed"] * 3
    assert [first(record).snapshot for record in sweep.trials()] == [False, True, False]
    assert [line.partition(":")[0] for line in warnings(caplog)] == ["trial 0", "trial 2"]
    stored = weights_of(sweep).parents[1]
    assert sorted(path.name for path in stored.iterdir()) == ["000001-1", "manifest.json"]


@pytest.mark.parametrize(("operation", "names"), [("get", "*/weights"), ("get", "*/manifest.json")])
def test_a_bucket_out_of_reach_during_a_fetch(
    staged, gcs: FakeGcs, two_stages, caplog, operation, names
) -> None:
    store = bucket(gcs)
    sweep = Experiment.create(store, staged)
    run(sweep)
    pattern = f"*stages/{names}"
    fault = gcs.faults.add(Fault(action="status", operation=operation, name=pattern, status=503, times=None))
    # The publisher asks for the manifest, too.
    two_stages.between.append(lambda folder: gcs.faults.remove(fault))
    run(sweep)
    assert (sweep.trial(1).status, paid(sweep.trial(1))) == ("completed", 102)
    assert len([line for line in warnings(caplog) if "is not used" in line]) == 1


def test_a_bucket_that_refuses_a_snapshot_is_asked_again_later(
    staged, gcs: FakeGcs, two_stages, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(publishing, "RETRY_S", 0.2)
    store = bucket(gcs)
    sweep = Experiment.create(store, staged)
    fault = gcs.faults.add(
        Fault(action="status", operation="insert", name="*stages/*", status=403, times=None)
    )

    def mend(folder: Path) -> None:
        for _ in range(100):
            if any("is not published" in line for line in warnings(caplog)):
                break
            time.sleep(0.05)
        assert not any(stage.snapshot for stage in sweep.trial(0).stages)
        gcs.faults.remove(fault)
        for _ in range(100):
            if any(stage.snapshot for stage in sweep.trial(0).stages):
                return
            time.sleep(0.05)

    two_stages.between.append(mend)
    run(sweep)
    assert first(sweep.trial(0)).snapshot
    assert len(warnings(caplog)) == 1


def test_a_bucket_that_refuses_to_the_end_costs_one_line(staged, gcs: FakeGcs, two_stages, caplog) -> None:
    store = bucket(gcs)
    sweep = Experiment.create(store, staged)
    gcs.faults.add(Fault(action="status", operation="insert", name="*stages/*", status=403, times=None))
    run(sweep, 2)
    assert [record.status for record in sweep.trials()] == ["completed"] * 2
    assert [paid(record) for record in sweep.trials()] == [101, 102]
    assert [line.partition(": ")[0] for line in warnings(caplog)] == ["trial 0", "trial 1"]


# ---- who published it


def publish_without_a_word(sweep: Experiment, trial: int, attempt: int) -> None:
    """Publish the first stage of a trial whose worker died before its heartbeat could say so."""
    key = program_of(sweep.space).shared_keys(sweep.trial(trial).parameters).ends["first"]
    folder = sweep.store.folder(f"elsewhere/{trial}")
    (folder / "weights").write_text(repr(2 * sweep.trial(trial).parameters["x"]))
    by = fetching.folder_of(trial, attempt)
    deadline = Deadline(UploadConfig())
    copying.publish(sweep.store, f"stages/{key}", folder, by, link=False, deadline=deadline)


def test_trial_starts_from_its_own_earlier_attempt(sweep, two_stages) -> None:
    """Its worker died between the manifest and the heartbeat: the trial has paid for the stage, once."""
    sweep.ask("killed")
    publish_without_a_word(sweep, 0, 1)
    sweep.apply(0, lifecycle.Release(worker="killed", attempt=1))
    run(sweep, 2)
    again, other = sweep.trials()
    assert two_stages.computed == []
    assert (again.attempt, first(again).reused_from, first(again).snapshot) == (2, None, True)
    assert paid(again) == nominal(again) == 101
    assert first(other).reused_from == 0


def test_an_attempt_after_the_heartbeat_starts_from_it_likewise(sweep, two_stages) -> None:
    stop = Stop()

    def preempt(folder: Path) -> None:
        for _ in range(100):
            if sweep.trial(0).stages and first(sweep.trial(0)).snapshot:
                break
            time.sleep(0.02)
        raise Interrupted("preempted")

    two_stages.between.append(preempt)
    run(sweep, 1, stop)
    assert [stage.snapshot for stage in sweep.trial(0).stages] == [True]
    two_stages.between.clear()
    run(sweep, 2)
    assert two_stages.computed == [1.0]
    assert [first(record).reused_from for record in sweep.trials()] == [None, 0]
    assert [paid(record) for record in sweep.trials()] == [101, 2]
    assert first(sweep.trial(0)).seconds is not None


def test_unrecorded_end_is_adopted(sweep, two_stages) -> None:
    """Else the prefix would never be offered: its publisher was abandoned."""
    sweep.ask("killed")
    publish_without_a_word(sweep, 0, 1)
    sweep.apply(0, lifecycle.Abandon(by="a person"))
    run(sweep, 2)
    assert two_stages.computed == [1.0]
    assert [first(sweep.trial(n)).reused_from for n in (1, 2)] == [None, 1]
    assert [first(sweep.trial(n)).snapshot for n in (1, 2)] == [True, False]


def test_end_of_running_publisher_is_not_adopted(sweep, two_stages) -> None:
    sweep.ask("busy")
    publish_without_a_word(sweep, 0, 1)
    run(sweep)
    assert (paid(sweep.trial(1)), first(sweep.trial(1)).snapshot) == (102, False)


def test_two_that_compute_one_stage_at_once_publish_it_once(sweep, two_stages, monkeypatch) -> None:
    """The second of them finds it published when it comes to it."""
    inner = Experiment(sweep.store, sweep.space)
    published, present = threading.Event(), SharedKeys.present

    def look(self: SharedKeys, folder: Path) -> list[Checkpoint]:
        slow = (
            "000000" in folder.parts and not published.is_set()
        )  # trial 0 looks when the other has stored it
        return [] if slow else present(self, folder)

    monkeypatch.setattr(SharedKeys, "present", look)

    def other_worker(folder: Path) -> None:
        two_stages.between.clear()
        environment = dict(os.environ)
        run(inner)
        assert dict(os.environ) == environment
        published.set()

    two_stages.between.append(other_worker)
    run(sweep)
    assert two_stages.computed == [1.0, 1.0]
    assert [first(record).snapshot for record in sweep.trials()] == [False, True]
    assert [paid(record) for record in sweep.trials()] == [101, 102]


# ---- preemption


@pytest.fixture
def listening() -> Iterator[Stop]:
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    stop = Stop()
    stop.listen()
    yield stop
    for number, handler in before.items():
        signal.signal(number, handler)


def test_worker_preempted_in_fetch_hands_trial_back(sweep, two_stages, listening, monkeypatch) -> None:
    run(sweep)
    copy = copying.copy_regular

    def copy_and_signal(source: Path, target: Path) -> None:
        copy(source, target)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    monkeypatch.setattr(copying, "copy_regular", copy_and_signal)
    assert run(sweep, 1, listening).preempted_by == "SIGTERM"
    assert (sweep.trial(1).status, sweep.trial(1).stages) == ("pending", ())
    assert list(sweep.store.folder(run_prefix(1, 1)).iterdir()) == []
    monkeypatch.setattr(copying, "copy_regular", copy)
    run(sweep)
    assert (sweep.trial(1).attempt, first(sweep.trial(1)).reused_from) == (2, 0)


def test_worker_preempted_in_publishing_leaves_at_once(
    sweep, two_stages, listening, monkeypatch, caplog
) -> None:
    publish = copying.publish

    def publish_for_ever(*arguments, deadline: Deadline, **named):
        while True:
            deadline.check()
            time.sleep(0.01)

    def preempt(folder: Path) -> None:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    monkeypatch.setattr(copying, "publish", publish_for_ever)
    two_stages.between.append(preempt)
    began = time.monotonic()
    assert run(sweep, 1, listening).preempted_by == "SIGTERM"
    assert time.monotonic() - began < 5
    assert sweep.trial(0).status == "pending"
    (warning,) = warnings(caplog)
    assert warning.startswith("trial 0: its snapshot of first ")
    two_stages.between.clear()
    monkeypatch.setattr(copying, "publish", publish)
    run(sweep, 2)
    assert two_stages.computed == [1.0, 1.0]  # nobody had it
    assert [paid(record) for record in sweep.trials()] == [101, 2]


def test_report_waits_for_upload_unless_stopping(sweep, two_stages, monkeypatch, caplog) -> None:
    stop = Stop()

    def publish_for_ever(*arguments, deadline: Deadline, **named):
        time.sleep(0.3)
        stop.request("SIGTERM")
        while True:
            deadline.check()
            time.sleep(0.01)

    monkeypatch.setattr(copying, "publish", publish_for_ever)
    monkeypatch.setattr("sweeps.worker.trial_run.UPLOAD_GRACE_S", 0.2)
    run(sweep, 1, stop)
    assert (sweep.trial(0).status, first(sweep.trial(0)).snapshot) == ("completed", False)


# ---- resumed trials


RESUMED = """
import json, os, pathlib, sys
run = pathlib.Path(os.environ["SWEEP_RUN_DIR"])
ended, checkpoints, is_first = run / "snapshots/first", run / "checkpoints", os.environ["SWEEP_TRIAL"] == "0"
resumed = (checkpoints / "latest").exists()
assert ended.exists() == (not is_first and not resumed), "useless traffic"
if not is_first and not resumed:
    (checkpoints / "7").mkdir(parents=True)
    (checkpoints / "7/state.json").write_text(json.dumps({"stage": "second", "over": False}))
    (checkpoints / "latest").write_text("7")
    sys.exit(75)
if is_first:
    draft = run / "draft"
    draft.mkdir()
    (draft / "weights").write_text("2.0")
    ended.parent.mkdir()
    draft.rename(ended)
stages = [{"name": "first", "key": os.environ["KEY"], "reused": resumed, "cost": 100, "seconds": 9},
          {"name": "second", "cost": 1, "reused": False}]
(run / "result.json").write_text(json.dumps({"metrics": {"loss": 1}, "stages": stages}))
"""


def test_nothing_is_fetched_for_a_stage_that_a_resume_has(staged, monkeypatch) -> None:
    """And who computed a stage that an earlier attempt has reused is found in the records."""
    space = replace(
        staged, program=Program(kind="command", command=("${python}", "-c", RESUMED, "${overrides}"))
    )
    key = program_of(space).shared_keys({"x": 1.0, "n": 1}).ends["first"]
    monkeypatch.setenv("KEY", key)
    sweep = Experiment.create(MemoryStore(), space)
    run(sweep)
    assert run(sweep).preempted_by
    assert [stage.reused_from for stage in sweep.trial(1).stages] in ([], [0])
    run(sweep)
    resumed = sweep.trial(1)
    assert (resumed.status, resumed.attempt, resumed.error) == ("completed", 2, None)
    assert first(resumed) == StageRun(name="first", key=key, cost=100.0, reused_from=0, seconds=9)
    assert (nominal(resumed), paid(resumed)) == (101, 1)
