"""A trunk is computed once: trials of other lengths branch off its points, and no fault of a point costs a trial."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_gcs import FakeGcs, Fault
from memory_store import MemoryStore
from published import publish, put
from silent_watcher import Silent
from transfers import bucket, warnings

from sweeps.experiment import Experiment
from sweeps.programs import process
from sweeps.programs.kinds import program_of
from sweeps.programs.signals import Stop
from sweeps.space.definition import (
    Choice,
    Fixed,
    Lease,
    Objective,
    Program,
    Search,
    Snapshots,
    Space,
    Stage,
    Trunk,
)
from sweeps.stages.checkpoint import SharedKeys, TrunkKey
from sweeps.storage.local import LocalStore
from sweeps.storage.run_files.exchange import Deadline, UploadConfig
from sweeps.text.step_key import step_key
from sweeps.transfer import copying, fetching, publishing, removal
from sweeps.transfer.attempt import TrialStages
from sweeps.trials import costs, lifecycle
from sweeps.trials.record import Trial, run_prefix
from sweeps.trials.stage_run import StageRun
from sweeps.worker import heartbeat
from sweeps.worker.loop import Limits, Tally, work
from trainer import api
from trainer.errors import ConfigError

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def one_trunk(_functions) -> Iterator:
    """The objective of the sweep, with nothing that an earlier test has left in it."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "functions"))
    import one_trunk

    one_trunk.computed.clear()
    yield one_trunk
    one_trunk.after_trunk.clear()
    sys.path.pop(0)


TRUNK = Trunk(length="steps", decay=0.5)


@pytest.fixture
def lengths() -> Space:
    """Trials of 20, 40, 10 and 30 steps, which leave the trunk after 10, 20, 5 and 15."""
    return Space(
        name="lengths",
        objectives=(Objective(metric="loss"),),
        parameters=(
            Fixed(name="x", value=1.5),
            Choice(name="n", values=(1, 2)),
            Choice(name="steps", values=(20, 40, 10, 30)),
        ),
        program=Program(kind="function", function="one_trunk:objective"),
        search=Search(method="grid"),
        lease=Lease(heartbeat_s=0.05, expire_s=30, max_attempts=3),
        stages=(
            Stage(name="first", parameters=("x", "steps"), cost="2*steps", trunk=TRUNK),
            Stage(name="second", parameters=("n",), cost="1"),
        ),
        snapshots=Snapshots(keep=100),
    )


@pytest.fixture
def two_trunks(lengths: Space) -> Space:
    """Both stages have a trunk; trials of 20 steps in the second leave its after 10."""
    second = Stage(name="second", parameters=("n", "m"), cost="2*m", trunk=replace(TRUNK, length="m"))
    lengths = replace(lengths, program=command_of(REPORTING), stages=(lengths.stages[0], second))
    return replace(lengths, parameters=(*lengths.parameters, Choice(name="m", values=(20, 40))))


@pytest.fixture
def sweep(lengths: Space, one_trunk) -> Experiment:
    return Experiment.create(MemoryStore(), lengths)


def run(sweep: Experiment, trials: int = 1, stop: Stop | None = None) -> Tally:
    for _ in range(trials):
        plan(sweep)
        tally = work(sweep, stop=stop or Stop(), watcher=Silent(), limits=Limits(max_trials=1))
    return tally


def plan(sweep: Experiment) -> None:
    """Make the next trial, unless one is pending: of 20, 40, 10 and 30 steps in this order, for each n."""
    records = sweep.trials()
    if any(record.status == "pending" for record in records):
        return
    index, now = len(records), sweep.store.now()
    given = {"x": 1.5, "n": 1 + index // 4, "steps": (20, 40, 10, 30)[index % 4]}
    put(sweep.store, Trial(trial=index, status="pending", parameters=given, generator="grid", created=now))


def begin(sweep: Experiment, index: int, *, m: int, n: int = 1, steps: int = 20) -> SharedKeys:
    """Make a trial of two trunks, and return its keys."""
    given = {"x": 1.5, "n": n, "m": m, "steps": steps}
    put(sweep.store, Trial(trial=index, status="pending", parameters=given, generator="grid"))
    return program_of(sweep.space).shared_keys(given)


def first(record: Trial) -> StageRun:
    (found,) = (stage for stage in record.stages if stage.name == "first")
    return found


def branch(record: Trial) -> tuple[int | None, int | None, float]:
    return first(record).branched_from, first(record).branched_at, first(record).saved


def own(record: Trial) -> list[int | None]:
    """The steps of the points that a trial has stored."""
    return [point.step for point in record.points if point.snapshot]


# ---- the ordinary course


def test_other_lengths_branch_off_or_continue_trunk(lengths, store, one_trunk) -> None:
    sweep = Experiment.create(store, lengths)
    run(sweep, 3)
    twenty, forty, ten = sweep.trials()[:3]
    assert one_trunk.computed == [20, 30, 5]
    assert [branch(record) for record in (twenty, forty, ten)] == [(None, None, 0), (0, 10, 20), (0, 5, 10)]
    assert [costs.nominal(record) for record in (twenty, forty, ten)] == [41, 81, 21]
    assert [costs.paid(record) for record in (twenty, forty, ten)] == [41, 61, 11]
    assert [own(record) for record in (twenty, forty, ten)] == [[5, 10], [15, 20], []]
    assert [point.cost for point in (*twenty.points, *forty.points) if point.snapshot] == [10, 20, 30, 40]
    assert [point.saved for point in forty.points if point.snapshot] == [20, 20]
    (trunk,) = program_of(lengths).shared_keys(twenty.parameters).trunks.values()
    assert [point.key for point in twenty.points] == [step_key(trunk.key, step) for step in (5, 10)]
    assert first(forty).seconds > twenty.points[-1].seconds > twenty.points[0].seconds > 0


def test_grid_keeps_steps_that_planned_trials_start_from(lengths, one_trunk) -> None:
    """Two trunks are opened first, though one snapshot may stay, as it does at the end."""
    parameters = (Choice(name="x", values=(0.5, 1.5)), Fixed(name="n", value=1), lengths.parameters[2])
    few = replace(lengths, parameters=parameters, snapshots=Snapshots(keep=1))
    sweep = Experiment.create(MemoryStore(), few)
    work(sweep, stop=Stop(), watcher=Silent(), limits=Limits())
    assert len(sweep.trials()) == 8
    assert sorted(one_trunk.computed) == [5, 5, 10, 10, 15, 15, 40, 40]
    assert sum(len(record.snapshots) for record in sweep.trials()) == 1


def test_all_lengths_end_as_they_do_from_scratch(lengths, one_trunk) -> None:
    results = []
    for reuse in ("auto", "none"):
        space = replace(lengths, search=replace(lengths.search, reuse=reuse))
        sweep = Experiment.create(MemoryStore(), space)
        run(sweep, 8)
        results.append([(dict(record.parameters), record.metrics["loss"]) for record in sweep.trials()])
    assert results[0] == results[1]  # to the last bit
    assert one_trunk.computed == [20, 30, 5, 15, *[20, 40, 10, 30] * 2]  # with n of 2, after the stage
    assert all(record.points == () for record in sweep.trials())


def test_running_record_lists_steps_and_branch(lengths, store, one_trunk) -> None:
    sweep = Experiment.create(store, lengths)
    run(sweep)
    observed: list[Trial] = []

    def wait_for_record(folder: Path) -> None:
        for _ in range(200):
            observed[:] = [sweep.trial(1)]
            if own(observed[0]) == [15, 20]:
                assert [path.name for path in (folder / "snapshots").iterdir()] == [
                    "first@10"
                ]  # it is in use
                return
            time.sleep(0.05)

    one_trunk.after_trunk.append(wait_for_record)
    run(sweep)
    (record,) = observed
    assert (record.status, own(record)) == ("running", [15, 20])
    began = record.points[0]
    assert (began.name, began.step, began.reused_from, began.snapshot) == ("first", 10, 0, False)
    assert began.key == sweep.trial(0).points[1].key
    assert sweep.trial(1).status == "completed"


def test_run_folders_keep_no_points(lengths, gcs, one_trunk) -> None:
    sweep = Experiment.create(bucket(gcs), lengths)
    one_trunk.after_trunk.append(lambda folder: (folder / "notes.txt").write_text("kept") and time.sleep(0.3))
    run(sweep, 2)
    assert not any("snapshots" in entry.key for entry in sweep.store.list("runs/"))
    assert sum("notes.txt" in entry.key for entry in sweep.store.list("runs/")) == 2
    for trial in (0, 1):
        assert not list(sweep.store.folder(run_prefix(trial, 1)).iterdir())  # all of it is in the bucket


def test_a_failed_trial_leaves_its_trunk_to_others(lengths, one_trunk) -> None:
    """Though it fails long before the next heartbeat is due."""
    seldom = Lease(heartbeat_s=30, expire_s=90, max_attempts=3)
    sweep = Experiment.create(MemoryStore(), replace(lengths, lease=seldom))

    def fail(folder: Path) -> None:
        raise FloatingPointError("the decay has diverged")

    one_trunk.after_trunk.append(fail)
    run(sweep)
    one_trunk.after_trunk.clear()
    assert (sweep.trial(0).status, own(sweep.trial(0))) == ("failed", [5, 10])
    run(sweep)
    assert branch(sweep.trial(1)) == (0, 10, 20)


STOPPED = """
import os, pathlib, time
run = pathlib.Path(os.environ["SWEEP_RUN_DIR"])
draft = run / "draft"
draft.mkdir()
(draft / "weight").write_text("2.0")
(run / "snapshots").mkdir(exist_ok=True)
draft.rename(run / "snapshots/first@7")
time.sleep(60)
"""


def test_early_stopped_trial_leaves_its_trunk(lengths, monkeypatch) -> None:
    command = Program(kind="command", command=("${python}", "-c", STOPPED, "${overrides}"))
    sweep = Experiment.create(MemoryStore(), replace(lengths, program=command))

    def stop_once_stored(self, record: Trial, of: str) -> None:
        if own(record):
            self.stop_reason = "it will not reach the front"

    monkeypatch.setattr(heartbeat.HeartbeatThread, "_check_early_stopping", stop_once_stored)
    run(sweep)
    stopped = sweep.trial(0)
    assert (stopped.status, own(stopped), stopped.stages) == ("early_stopped", [7], ())
    assert stopped.points[0].cost == 14


def test_the_end_of_a_stage_comes_before_the_points_of_its_trunk(sweep, one_trunk) -> None:
    run(sweep, 5)
    again = sweep.trial(4)  # of 20 steps with another n
    assert first(again).reused_from == 0
    assert (branch(again), again.points) == ((None, None, 0), ())


def test_a_stage_of_no_steps_is_not_reused(lengths, tmp_path) -> None:
    """As a Stage 1.9 of 0 steps, which has no key: a trial branches off after it, and nobody computed it."""
    stages = (
        Stage(name="none", parameters=("x",), cost="0"),
        Stage(name="second", parameters=("steps", "n"), cost="steps", trunk=TRUNK),
    )
    sweep = Experiment.create(MemoryStore(), replace(lengths, stages=stages))
    run = StageRun(name="none", key="", cost=0.0)
    point = StageRun(name="second", key=step_key("a" * 64, 10), step=10, cost=10.0, snapshot=True)
    given = {"parameters": {"x": 1.5, "n": 1, "steps": 20}, "generator": "grid"}
    put(sweep.store, Trial(trial=0, status="completed", stages=(run,), points=(point,), **given))
    publish(sweep.store, point.key)
    record = Trial(trial=1, status="running", worker="w", attempt=1, **given)
    shared = SharedKeys(trunks={"second": TrunkKey(key="a" * 64, until=10)})
    attempt = TrialStages(sweep, record, tmp_path, shared)
    attempt.fetch(0, 0)
    assert [(each.name, each.reused_from) for each in (*attempt.ended, *attempt.points)] == [
        ("none", None),
        ("second", 0),
    ]


# ---- costs without a statement


def test_costs_that_the_space_does_not_say_are_seconds(lengths, one_trunk, monkeypatch) -> None:
    stages = tuple(replace(stage, cost="") for stage in lengths.stages)
    sweep = Experiment.create(MemoryStore(), replace(lengths, stages=stages))
    original = Path.rename

    def rename_with_seconds(self: Path, target: Path):
        if "@" in target.name:
            stated = {"schema": 1, "step": int(target.name.split("@")[1]), "seconds": 1000.0}
            (self / "stage.json").write_text(json.dumps(stated))
        return original(self, target)

    monkeypatch.setattr(Path, "rename", rename_with_seconds)
    run(sweep, 2)
    one, two = sweep.trials()[:2]
    assert [point.cost for point in one.points] == [1000.0, 1000.0]
    assert branch(two) == (0, 10, 1000.0)
    assert 1000 < first(two).seconds == first(two).cost < 1010  # those of its first part with its own
    assert 0 < costs.paid(two) < 10


# ---- what is not worth it, or cannot be used


@pytest.mark.parametrize(("share", "expected"), [(1.5, (None, None, 0)), (0.7, (0, 10, 20))])
def test_a_point_that_takes_too_long_to_fetch_is_not_fetched(
    sweep, one_trunk, monkeypatch, caplog, share, expected
) -> None:
    run(sweep)
    size, seconds = stored_point(sweep, 0, 10).stat().st_size, sweep.trial(0).points[1].seconds
    pace = size / (0.5 * seconds * share)  # bytes per second
    monkeypatch.setattr(fetching, "FASTEST_BYTES_PER_S", pace)
    run(sweep)
    assert branch(sweep.trial(1)) == expected
    assert warnings(caplog) == []


def stored_point(sweep: Experiment, trial: int, step: int) -> Path:
    (point,) = (point for point in sweep.trial(trial).points if point.step == step)
    return sweep.store.folder(f"stages/{point.key}") / f"{trial:06d}-1" / "weight"


DAMAGE: dict[str, Callable[[Path], object]] = {
    "weight is missing": lambda path: path.unlink(),
    "weight has 1 bytes, not 17": lambda path: path.write_text("2"),
    "weight has another checksum": lambda path: path.write_text("9." + "0" * 15),
}


@pytest.mark.parametrize("why", DAMAGE)
def test_damaged_step_falls_back_and_is_published_anew(lengths, tmp_path, one_trunk, caplog, why) -> None:
    sweep = Experiment.create(LocalStore(tmp_path / "store"), lengths)
    run(sweep)
    DAMAGE[why](stored_point(sweep, 0, 10))
    run(sweep)
    second = sweep.trial(1)
    assert (branch(second), costs.paid(second)) == ((0, 5, 10), 71)
    (warning,) = warnings(caplog)
    assert warning.startswith("trial 1: the snapshot of first@10 ")
    assert why in warning
    assert own(second) == [10, 15, 20]
    assert one_trunk.computed == [20, 35]


def test_step_removed_during_fetch_is_not_used(sweep, one_trunk, monkeypatch, caplog) -> None:
    run(sweep)
    copy = copying.copy_regular

    def remove(source: Path, target: Path) -> None:
        monkeypatch.setattr(copying, "copy_regular", copy)
        shutil.rmtree(Path(source).parent)
        copy(source, target)

    monkeypatch.setattr(copying, "copy_regular", remove)
    run(sweep)
    assert (sweep.trial(1).status, branch(sweep.trial(1))) == ("completed", (0, 5, 10))
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("name", ["first@11", "first@010", "second@3", "first@0", "@5"])
def test_only_points_of_a_trunk_are_published(sweep, one_trunk, caplog, name) -> None:
    def leave_more(folder: Path) -> None:
        one_trunk.leave(folder / "snapshots" / name, 1.0)

    one_trunk.after_trunk.append(leave_more)
    run(sweep)
    assert (sweep.trial(0).status, own(sweep.trial(0))) == ("completed", [5, 10])
    expected = "trial 0: its snapshot of first@11 is not published: its trunk ends at step 10"
    assert warnings(caplog) == ([expected] if name == "first@11" else [])


def test_steps_of_one_trial_are_limited(sweep, one_trunk, monkeypatch, caplog) -> None:
    monkeypatch.setattr(one_trunk, "EVERY", 1)
    monkeypatch.setattr(publishing, "MOST_POINTS", 4)
    monkeypatch.setattr(removal, "collect", lambda experiment: None)
    run(sweep)
    assert len(own(sweep.trial(0))) == 4
    assert len(warnings(caplog)) == 6
    assert "4 points" in warnings(caplog)[0]


def test_a_bucket_that_refuses_a_point_is_asked_again_later(
    lengths, gcs: FakeGcs, one_trunk, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(publishing, "RETRY_S", 0.2)
    sweep = Experiment.create(bucket(gcs), lengths)
    refusal = Fault(action="status", operation="insert", name="*stages/*", status=403, times=None)
    fault = gcs.faults.add(refusal)

    def mend(folder: Path) -> None:
        for _ in range(100):
            if len(warnings(caplog)) == 2:
                break
            time.sleep(0.05)
        assert own(sweep.trial(0)) == []
        gcs.faults.remove(fault)
        for _ in range(100):
            if own(sweep.trial(0)) == [5, 10]:
                break
            time.sleep(0.05)

    one_trunk.after_trunk.append(mend)
    run(sweep)
    assert own(sweep.trial(0)) == [5, 10]
    first, second = sorted(warnings(caplog))
    assert "first@10 " in first
    assert "first@5 " in second


# ---- who published it


def publish_without_a_word(sweep: Experiment, trial: int, attempt: int, step: int) -> None:
    """Publish a point of a trial whose worker died before its heartbeat could say so."""
    trunk = program_of(sweep.space).shared_keys(sweep.trial(trial).parameters).trunks["first"]
    folder = sweep.store.folder(f"elsewhere/{trial}-{step}")
    weight = sweep.trial(trial).parameters["x"]
    for _ in range(step):
        weight = weight * 1.1 + 0.3
    (folder / "weight").write_text(repr(weight))
    by = fetching.folder_of(trial, attempt)
    prefix = f"stages/{step_key(trunk.key, step)}"
    copying.publish(sweep.store, prefix, folder, by, link=False, deadline=Deadline(UploadConfig()))


def test_trial_starts_at_a_step_of_its_killed_attempt(lengths, store, one_trunk) -> None:
    """Its worker died between the manifest and the heartbeat: the trial has paid for the trunk, once."""
    sweep = Experiment.create(store, lengths)
    plan(sweep)
    sweep.ask("killed")
    for step in (5, 10):
        publish_without_a_word(sweep, 0, 1, step)
    sweep.apply(0, lifecycle.Release(worker="killed", attempt=1))
    run(sweep, 2)
    again, other = sweep.trials()[:2]
    assert one_trunk.computed == [10, 30]
    assert (again.attempt, branch(again), own(again)) == (2, (None, None, 0), [10])
    assert costs.paid(again) == costs.nominal(again) == 41
    assert branch(other) == (0, 10, 20)


def test_saved_cost_survives_attempts(sweep, one_trunk) -> None:
    """It began at another's point, published one of its own, and was killed after the heartbeat."""
    run(sweep)
    plan(sweep)
    claimed = sweep.ask("killed")
    publish_without_a_word(sweep, 1, 1, 15)
    trunk = program_of(sweep.space).shared_keys(claimed.parameters).trunks["first"]
    point = StageRun(
        name="first", key=step_key(trunk.key, 15), step=15, cost=30.0, snapshot=True, branched_from=0, branched_at=10, saved=20.0
    )  # fmt: skip
    sweep.apply(1, lifecycle.Heartbeat(worker="killed", attempt=1, points=(point,)))
    sweep.apply(1, lifecycle.Release(worker="killed", attempt=1))
    run(sweep)
    again = sweep.trial(1)
    assert one_trunk.computed == [20, 25]
    assert (branch(again), costs.paid(again), own(again)) == ((0, 10, 20), 61, [15, 20])


@pytest.mark.parametrize("said", [{}, {"reused": True, "cost": 80}], ids=["says-nothing", "says-reused"])
@pytest.mark.parametrize("at", ["first", "second@10"])
def test_saved_cost_survives_a_start_further_on(two_trunks, monkeypatch, at, said) -> None:
    """The killed attempt began at another's point, ended the stage and published its end, or a later point."""
    sweep = Experiment.create(MemoryStore(), two_trunks)
    monkeypatch.setenv("STAGES", "[]")
    monkeypatch.setenv("POINT", "first@10")
    begin(sweep, 0, m=20, steps=20)
    run(sweep)
    keys = begin(sweep, 1, m=40, steps=40)
    sweep.ask("killed")
    end = keys.ends["first"]
    branched = StageRun(
        name="first", key=end, cost=80, snapshot=True, branched_from=0, branched_at=10, saved=20
    )
    point = StageRun(name="second", key=keys.within("second", 10).key, step=10, cost=20, snapshot=True)
    points = () if at == "first" else (point,)
    for stored in (branched, *points):
        publish(sweep.store, stored.key, "000001-1")
    sweep.apply(1, lifecycle.Heartbeat(worker="killed", attempt=1, stages=(branched,), points=points))
    sweep.apply(1, lifecycle.Release(worker="killed", attempt=1))
    monkeypatch.setenv("STAGES", json.dumps([{"name": "first", "key": end} | said] if said else []))
    monkeypatch.setenv("POINT", "")
    run(sweep)
    again = sweep.trial(1)
    assert (again.status, again.attempt) == ("completed", 2)
    assert branch(again) == (0, 10, 20)
    assert costs.paid(again) == costs.nominal(again) - 20


def test_a_stage_behind_a_point_is_reused_from_whoever_computed_it(two_trunks, monkeypatch) -> None:
    """Trial 1 has reused the first stage, so the one that starts at its point owes it to trial 0."""
    sweep = Experiment.create(MemoryStore(), two_trunks)
    monkeypatch.setenv("STAGES", "[]")
    for index, (point, m) in enumerate((("first", 20), ("second@10", 20), ("", 40))):
        monkeypatch.setenv("POINT", point)
        begin(sweep, index, n=1 if index else 2, m=m)
        run(sweep)
    assert [first(record).reused_from for record in sweep.trials()] == [None, 0, 0]
    assert sweep.trial(2).stages[1].branched_from == 1


def test_a_stage_of_its_own_behind_another_trials_point_is_paid_for(two_trunks, monkeypatch) -> None:
    """Its killed attempt has computed the first stage, which the trial at whose point it starts has reused."""
    sweep = Experiment.create(MemoryStore(), two_trunks)
    monkeypatch.setenv("STAGES", "[]")
    end = begin(sweep, 0, m=40).ends["first"]
    sweep.ask("killed")
    publish(sweep.store, end, "000000-1")
    ended = StageRun(name="first", key=end, cost=40, snapshot=True)
    sweep.apply(0, lifecycle.Heartbeat(worker="killed", attempt=1, stages=(ended,)))
    sweep.apply(0, lifecycle.Abandon(by="a person"))
    monkeypatch.setenv("POINT", "second@10")
    begin(sweep, 1, m=20)
    run(sweep)
    sweep.apply(0, lifecycle.Retry(by="a person"))
    monkeypatch.setenv("POINT", "")
    run(sweep)
    assert [first(record).reused_from for record in sweep.trials()] == [None, 0]
    assert (first(sweep.trial(0)).snapshot, sweep.trial(0).stages[1].branched_from) == (True, 1)


def test_unrecorded_step_is_adopted(sweep, one_trunk) -> None:
    """Else it would never be offered: its publisher was abandoned before its heartbeat."""
    plan(sweep)
    sweep.ask("killed")
    publish_without_a_word(sweep, 0, 1, 10)
    sweep.apply(0, lifecycle.Abandon(by="a person"))
    run(sweep)
    assert (own(sweep.trial(0)), own(sweep.trial(1))) == ([], [5, 10, 15, 20])
    assert one_trunk.computed == [40]
    assert branch(sweep.trial(1)) == (None, None, 0)


def test_step_of_running_publisher_is_not_adopted(sweep, one_trunk) -> None:
    plan(sweep)
    sweep.ask("busy")
    publish_without_a_word(sweep, 0, 1, 10)
    run(sweep)
    assert own(sweep.trial(1)) == [5, 15, 20]


def test_concurrent_trunks_publish_each_step_once(sweep, one_trunk) -> None:
    """The second of them finds them published when it comes to it."""
    inner = Experiment(sweep.store, sweep.space)

    def other_worker(folder: Path) -> None:
        one_trunk.after_trunk.clear()
        (folder / "snapshots").rename(folder / "later")  # the other one is faster
        run(inner)
        (folder / "later").rename(folder / "snapshots")

    one_trunk.after_trunk.append(other_worker)
    before, publishing.POLL_S = publishing.POLL_S, 60.0
    try:
        run(sweep)
    finally:
        publishing.POLL_S = before
    assert one_trunk.computed == [20, 40]
    stored = [step for record in sweep.trials()[:2] for step in own(record)]  # by whichever was first
    assert sorted(stored) == [5, 10, 15, 20]
    assert [costs.paid(record) for record in sweep.trials()[:2]] == [41, 81]


# ---- resumed trials, and what programs report


def command_of(text: str) -> Program:
    return Program(kind="command", command=("${python}", "-c", text, "${overrides}"))


RESUMED = """
import json, os, pathlib, sys
run = pathlib.Path(os.environ["SWEEP_RUN_DIR"])
points, checkpoints = sorted(p.name for p in run.glob("snapshots/*")), run / "checkpoints"
if os.environ["SWEEP_TRIAL"] == "0":
    for step in (5, 10):
        draft = run / f"draft{step}"
        draft.mkdir()
        (draft / "weight").write_text("2.0")
        (run / "snapshots").mkdir(exist_ok=True)
        draft.rename(run / f"snapshots/first@{step}")
    stages = []
elif not (checkpoints / "latest").exists():
    assert points == ["first@10"], points
    (checkpoints / "7").mkdir(parents=True)
    state = {"stage": "first", "over": False, "step": int(os.environ["AT"])}
    (checkpoints / "7/state.json").write_text(json.dumps(state))
    (checkpoints / "latest").write_text("7")
    sys.exit(75)
else:
    assert points == json.loads(os.environ["THEN"]), points
    stages = [{"name": "first", "cost": 80, "seconds": 9, "branched_at": 10, "saved": 19.5},
              {"name": "second", "cost": 1}]
(run / "result.json").write_text(json.dumps({"metrics": {"loss": 1}, "stages": stages}))
"""


@pytest.mark.parametrize(("at", "then"), [("12", []), ("9", ["first@10"])], ids=["further", "not-so-far"])
def test_what_a_checkpoint_has_behind_it_is_not_fetched(lengths, monkeypatch, at, then) -> None:
    """And whose point an earlier attempt began from is found in the records."""
    monkeypatch.setenv("AT", at)
    monkeypatch.setenv("THEN", json.dumps(then))
    sweep = Experiment.create(MemoryStore(), replace(lengths, program=command_of(RESUMED)))
    run(sweep)
    assert own(sweep.trial(0)) == [5, 10]
    assert run(sweep).preempted_by
    run(sweep)
    resumed = sweep.trial(1)
    assert (resumed.status, resumed.attempt, resumed.error) == ("completed", 2, None)
    assert (branch(resumed), costs.paid(resumed)) == ((0, 10, 19.5), 61.5)


REPORTING = """
import json, os, pathlib
run = pathlib.Path(os.environ["SWEEP_RUN_DIR"])
point = os.environ.get("POINT", "first@10" if os.environ["SWEEP_TRIAL"] == "0" else "")
if point:
    draft = run / "draft"
    draft.mkdir()
    (draft / "weight").write_text("2.0")
    (run / "snapshots").mkdir(exist_ok=True)
    draft.rename(run / "snapshots" / point)
stages = json.loads(os.environ["STAGES"])
(run / "result.json").write_text(json.dumps({"metrics": {"loss": 1}, "stages": stages}))
"""

REPORTS = {
    "it-went-on-from-it": ({"branched_at": 10}, (0, 10, 20)),
    "its-own-figure": ({"branched_at": 10, "saved": 7}, (0, 10, 7)),
    "more-than-all": ({"branched_at": 10, "saved": 700}, (0, 10, 80)),
    "it-was-not-used": ({}, (None, None, 0)),
    "from-nowhere": ({"branched_at": 3, "saved": 5}, (None, None, 0)),
    "nonsense": ({"branched_at": "10", "saved": -1}, (None, None, 0)),
    "reused-in-full": ({"reused": True, "branched_at": 10}, (0, 10, 20)),
}


@pytest.mark.parametrize("case", REPORTS)
def test_what_a_program_reports_of_a_branch_decides(lengths, monkeypatch, case) -> None:
    said, expected = REPORTS[case]
    sweep = Experiment.create(MemoryStore(), replace(lengths, program=command_of(REPORTING)))
    monkeypatch.setenv("STAGES", json.dumps([{"name": "first", "cost": 80} | said]))
    run(sweep, 2)
    assert sweep.trial(1).error is None
    assert branch(sweep.trial(1)) == expected


# ---- keys, and the trainer


def test_a_trunk_is_shared_by_all_that_differ_in_its_tail_alone(lengths) -> None:
    tail = replace(TRUNK, tail=("ratio",))
    stages = (replace(lengths.stages[0], trunk=tail, parameters=("x", "steps", "ratio")), *lengths.stages[1:])
    space = replace(
        lengths, stages=stages, parameters=(*lengths.parameters, Choice(name="ratio", values=(0.1, 0.2)))
    )
    base = {"x": 1.5, "steps": 20, "n": 1, "ratio": 0.1}

    def key(changed: dict) -> TrunkKey:
        return program_of(space).shared_keys(base | changed).trunks["first"]

    assert key({}) == TrunkKey(key=key({}).key, until=10)
    for same in ({"steps": 40}, {"ratio": 0.2}, {"n": 2}):
        assert key(same).key == key({}).key
    assert key({"steps": 40}).until == 20
    assert key({"x": 2.5}).key != key({}).key
    assert program_of(space).shared_keys(base | {"steps": 0}).trunks == {}  # nothing before its decay
    assert program_of(replace(space, stages=())).shared_keys(base).trunks == {}
    other = replace(space, program=replace(space.program, function="one_trunk:other"))
    assert program_of(other).shared_keys(base).trunks["first"].key != key({}).key


TRAINER = Space(
    name="trainer",
    objectives=(Objective(metric="final_loss"),),
    parameters=(
        Choice(name="stage1_9.max_steps", values=(10, 20)),
        Choice(name="stage2.max_steps", values=(10, 20)),
    ),
    program=Program(kind="trainer", overrides=("model=tiny",)),
    stages=(
        Stage(
            name="stage1_9",
            parameters=("stage1_9.*",),
            trunk=Trunk(length="stage1_9.max_steps", decay=0.3, every=7),
        ),
        Stage(
            name="stage2",
            parameters=("stage2.*",),
            trunk=Trunk(length="stage2.max_steps", decay=0.3, every=14),
        ),
    ),
)
OF_THE_TRAINER = {"stage1_9.max_steps": 20, "stage2.max_steps": 10}


@pytest.mark.parametrize(
    ("points", "overrides", "parameters", "expected"),
    [
        (True, (), {}, ["stage1_9.trunk_every=7", "stage2.trunk_every=[7,14]"]),  # 14 is no point of 10 steps
        (False, (), {}, []),
        (True, ("stage1_9.trunk_every=0",), {}, ["stage1_9.trunk_every=0", "stage2.trunk_every=[7,14]"]),
        (True, ("++stage2.trunk_every=3",), {}, ["++stage2.trunk_every=3", "stage1_9.trunk_every=7"]),
        (True, (), {"stage2.trunk_every": 2}, ["stage2.trunk_every=2", "stage1_9.trunk_every=7"]),
    ],
)
def test_trainer_leaves_steps_unless_user_overrides(
    tmp_path, monkeypatch, points, overrides, parameters, expected
) -> None:
    started = []

    def start(argv, **options):
        started.append([word for word in argv if "trunk_every" in word])
        return 1

    monkeypatch.setattr(process, "run", start)
    space = replace(TRAINER, program=replace(TRAINER.program, overrides=("model=tiny", *overrides)))
    record = Trial(
        trial=0, status="running", parameters=OF_THE_TRAINER | parameters, generator="grid", worker="w"
    )
    program_of(space).run(record, tmp_path, stop=Stop(), wants_stop=lambda: False, points=points)
    assert started == [expected]


def test_the_trainers_trunks_are_its_own(monkeypatch) -> None:
    asked = []

    class Composition:
        def __init__(self, overrides):
            asked.append(list(overrides))

        def stage_keys(self):
            return {}

        def stage_trunks(self):
            named = {"stage2": 7, "stage1_9": 14, "stage3": 5}
            return {name: TrunkKey(key=name.ljust(64, "0"), until=until) for name, until in named.items()}

    monkeypatch.setattr(api, "Composition", Composition)
    assert program_of(TRAINER).shared_keys(OF_THE_TRAINER).trunks == {
        "stage1_9": TrunkKey(key="stage1_9".ljust(64, "0"), until=14),
        "stage2": TrunkKey(key="stage2".ljust(64, "0"), until=7),
    }
    assert asked == [["model=tiny", "stage1_9.max_steps=20", "stage2.max_steps=10"]]
    without = replace(TRAINER, search=replace(TRAINER.search, reuse="none"))
    assert program_of(without).shared_keys(OF_THE_TRAINER).trunks == {}

    def refuse(overrides):
        raise ConfigError("stage2.max_steps: 0 is too few")

    monkeypatch.setattr(api, "Composition", refuse)
    assert program_of(TRAINER).shared_keys(OF_THE_TRAINER).trunks == {}
