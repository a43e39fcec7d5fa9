"""Removal of snapshots by workers: out of the records, then out of the store, once, never what is needed."""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace
from unittest.mock import Mock

import pytest
from fake_gcs import Fault
from memory_store import MemoryStore
from published import done, key_of, publish, publish_all, put, staged, with_points

from sweeps.errors import StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.programs.signals import Stop
from sweeps.search.confirm.plan import Finalist, Plan, store_plan
from sweeps.space.definition import Budget, Choice, Fixed, Trunk
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.local import LocalStore
from sweeps.storage.objects.store import ObjectStore
from sweeps.storage.retries import RetryPolicy
from sweeps.transfer import removal, stored_stages
from sweeps.transfer.removal import collect, discard
from sweeps.trials.record import Trial
from sweeps.upkeep.diagnostics import plan
from sweeps.upkeep.inventory import survey
from sweeps.upkeep.repair import carry_out
from sweeps.worker import loop
from sweeps.worker.trial_run import Watcher

QUICK = RetryPolicy(total_s=3.0, attempt_s=0.5, first_wait_s=0.02, longest_wait_s=0.1)


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(params=["memory", "folder", "bucket", "s3"])
def store(request, tmp_path):
    if request.param == "memory":
        return MemoryStore()
    if request.param == "folder":
        return LocalStore(tmp_path / "sweep")
    if request.param == "s3":
        door = request.getfixturevalue("s3").door("a")
        return ObjectStore(f"s3://bucket/collection/{uuid.uuid4().hex}", endpoint=door, retries=QUICK)
    gcs = request.getfixturevalue("gcs")
    return GcsStore(f"gs://bucket/collection/{uuid.uuid4().hex}", endpoint=gcs.url, retries=QUICK)


@pytest.fixture
def sweep(store, space) -> Experiment:
    """Three snapshots of which two may stay: that of `x` 0.9 is the worst, and its trial 2 has ended."""
    return made(store, staged(space, keep=2))


def made(store, space) -> Experiment:
    experiment = Experiment.create(store, space)
    for index, x in enumerate((0.1, 0.5, 0.9)):
        put(store, done(index, x, 1.0 + index, now=store.now()))
    publish_all(experiment)
    return experiment


def by_records(experiment: Experiment) -> set[str]:
    return {run.key for record in experiment.trials() for run in record.stages if run.snapshot}


def complete(experiment: Experiment) -> set[str]:
    return {s.key for s in stored_stages.stored_stages(experiment.store) if not s.problem()}


def others(experiment: Experiment) -> list[Trial]:
    return [replace(record, stages=(), write="") for record in experiment.trials()]


KEEP, GONE = {key_of(0.1), key_of(0.5)}, key_of(0.9)


def test_checkpoints_beyond_limit_are_removed(sweep):
    before = others(sweep)
    collect(sweep)
    assert by_records(sweep) == complete(sweep) == KEEP
    assert {stage.key for stage in stored_stages.stored_stages(sweep.store)} == KEEP
    assert others(sweep) == before
    assert sweep.trial(2).stages[0] == replace(done(2, 0.9).stages[0], snapshot=False)
    versions = sweep.store.list("")
    collect(sweep)  # nothing is left to do
    assert sweep.store.list("") == versions


def test_within_the_limit_nothing_is_touched(store, space):
    experiment = made(store, staged(space, keep=3))
    versions = store.list("")
    collect(experiment)
    assert store.list("") == versions


def test_the_limit_in_gib_counts_what_is_stored(store, space):
    experiment = made(store, staged(space, keep_gib=2 * 3002 / 2**30))
    collect(experiment)
    assert complete(experiment) == KEEP


@pytest.mark.parametrize("limit", ["run_cap", "budget"])
def test_at_the_sweeps_end_those_of_the_best_trials_stay(store, space, limit):
    closed = {"run_cap": 3} if limit == "run_cap" else {"budget": Budget(wall_hours=1e-12)}
    experiment = made(store, replace(staged(space), **closed))
    put(store, done(3, 0.7, status="running", now=store.now()))
    collect(experiment)
    assert complete(experiment) == {*KEEP, GONE}  # one trial still runs
    put(store, done(3, 0.7, status="failed", snapshot=False, now=store.now()))
    collect(Experiment.open(store))
    assert by_records(experiment) == complete(experiment) == {key_of(0.1)}


def test_extended_while_the_last_trial_ran_a_sweep_has_not_ended(space):
    experiment = made(MemoryStore(), replace(staged(space), run_cap=3))
    Experiment.open(experiment.store).extend({"run_cap": 9}, by="a")
    collect(experiment)
    assert by_records(experiment) == complete(experiment) == {*KEEP, GONE}


def test_a_confirmation_keeps_what_its_next_repeats_start_from(space):
    """Trials 0 and 1 differ in the second stage alone, so the repeats with one seed share the first."""
    space = staged(space, keep=1)
    first = replace(space.stages[0], parameters=("seed", *space.stages[0].parameters))
    seed = Fixed(name="seed", value=0)
    space = replace(space, run_cap=3, parameters=(*space.parameters, seed), stages=(first, *space.stages[1:]))
    experiment = Experiment.create(MemoryStore(), space)

    for record in (done(0, 0.1, 1.0), done(1, 0.1, 1.1, of=0), done(2, 0.9, 3.0)):
        put(experiment.store, replace(record, parameters={**record.parameters, "seed": 0}))
    publish_all(experiment)
    finalists = tuple(
        Finalist(trial=trial, parameters=experiment.trial(trial).parameters, first=1.0) for trial in (0, 1)
    )
    plan = Plan(metric="loss", goal="minimize", finalists=finalists, seed_name="seed", seeds=(11, 22), top=2)
    store_plan(experiment.store, plan, None)

    def repeat(index: int, trial: int, seed: int, *, of: int | None = None) -> None:
        repeated = done(index, seed / 100, 1.0, of=of)
        parameters = plan.repeat(trial, seed)
        put(experiment.store, replace(repeated, parameters=parameters, generator="confirm"))
        if of is None:
            publish(experiment.store, key_of(seed / 100))
        collect(experiment)

    repeat(3, 0, 11)
    repeat(4, 0, 22)
    assert by_records(experiment) == complete(experiment) == {key_of(0.1), key_of(0.11), key_of(0.22)}
    why = {
        verdict.checkpoint.key: verdict.why for verdict in removal.verdicts(experiment, experiment.trials())
    }
    assert why[key_of(0.11)] == "for 1 trial to come"
    repeat(5, 1, 11, of=3)
    assert by_records(experiment) == {key_of(0.1), key_of(0.22)}
    repeat(6, 1, 22, of=4)
    assert by_records(experiment) == complete(experiment) == {key_of(0.1)}


@pytest.mark.parametrize(
    ("closed", "kept"),
    [({"run_cap": 3}, {*KEEP, GONE}), ({"budget": Budget(wall_hours=1e-12)}, {key_of(0.1)})],
    ids=["goes on", "halted by the budget"],
)
def test_confirmation_that_a_spent_budget_halts_keeps_nothing(space, closed, kept):
    """Its repeats would never come, and nobody would remove anything after them."""
    experiment = made(MemoryStore(), replace(staged(space), **closed))
    finalists = tuple(
        Finalist(trial=trial, parameters=experiment.trial(trial).parameters, first=1.0) for trial in (0, 1)
    )
    plan = Plan(metric="loss", goal="minimize", finalists=finalists, seed_name="seed", seeds=(11, 22), top=2)
    store_plan(experiment.store, plan, None)
    collect(experiment)
    assert by_records(experiment) == complete(experiment) == kept


@pytest.mark.parametrize("status", ["running", "pending"])
def test_what_an_unfinished_trial_needs_stays(sweep, status):
    put(sweep.store, replace(done(3, 0.9, status=status, now=sweep.store.now()), stages=()))
    collect(sweep)
    assert complete(sweep) == by_records(sweep) == {*KEEP, GONE}
    assert not discard(sweep, GONE)


def test_a_trial_that_was_claimed_since_the_listing_keeps_it(sweep, monkeypatch):
    """The records are read once more before a removal."""

    def late(experiment, records, **options):
        put(sweep.store, replace(done(3, 0.9, status="running", now=sweep.store.now()), stages=()))
        return verdicts(experiment, records, **options)

    verdicts = removal.verdicts
    monkeypatch.setattr(removal, "verdicts", late)
    collect(sweep)
    assert complete(sweep) == by_records(sweep) == {*KEEP, GONE}


def test_all_that_published_one_key_are_told_of_its_removal(sweep):
    put(sweep.store, done(3, 0.9, 4.0))
    put(sweep.store, done(4, 0.9, 4.0, snapshot=False))
    assert discard(sweep, GONE)
    assert by_records(sweep) == complete(sweep) == KEEP


def test_of_two_workers_that_remove_one_snapshot_one_does_it(sweep, monkeypatch):
    other = Experiment.open(sweep.store)
    removals = []
    remove = stored_stages.remove

    def counting(store, stage):
        removals.append(stage.key)
        assert not discard(other, stage.key)  # the other comes to it in the middle of this one's removal
        remove(store, stage)

    monkeypatch.setattr(stored_stages, "remove", counting)
    assert discard(sweep, GONE)
    assert removals == [GONE]
    assert complete(sweep) == KEEP


def test_what_is_published_again_during_the_removal_stays(sweep, monkeypatch):
    forget = removal.forget

    def slowly(experiment, key):
        forgotten = forget(experiment, key)
        (old,) = stored_stages.stored_stages(experiment.store, only=key)
        stored_stages.remove(experiment.store, old)
        publish(experiment.store, key, "000003-1")
        put(experiment.store, done(3, 0.9, 5.0))
        return forgotten

    monkeypatch.setattr(removal, "forget", slowly)
    assert not discard(sweep, GONE)
    assert by_records(sweep) == complete(sweep) == {*KEEP, GONE}


@pytest.mark.parametrize("step", ["before the record", "after the record", "after the manifest"])
def test_killed_removal_is_finished_by_repair(sweep, monkeypatch, step):
    """Whatever is left: no record names a snapshot that is incomplete, and a repair comes to the same end."""

    def die(*given, **named):
        raise Killed

    with monkeypatch.context() as patch:
        if step == "before the record":
            patch.setattr(Experiment, "apply", die)
        elif step == "after the record":
            patch.setattr(stored_stages, "remove", die)
        else:
            patch.setattr(stored_stages, "remove_files", die)
        with pytest.raises(Killed):
            collect(sweep)
    assert by_records(sweep) <= complete(sweep)
    if step == "before the record":
        collect(sweep)
    else:
        expected = {"after the record": "unnamed", "after the manifest": "unpublished"}[step]
        assert mended(sweep, monkeypatch) == [expected]
    assert by_records(sweep) == complete(sweep) == KEEP
    assert {stage.key for stage in stored_stages.stored_stages(sweep.store)} == KEEP
    assert mended(sweep, monkeypatch) == []


def mended(experiment: Experiment, monkeypatch) -> list[str]:
    """Repair as of two hours later, and return the kinds of the steps."""
    store, now = experiment.store, type(experiment.store).now
    with monkeypatch.context() as patch:
        patch.setattr(type(store), "now", lambda self: now(self) + 7200)
        steps = plan(experiment, survey(store))
    assert [carry_out(step).state for step in steps] == ["done"] * len(steps)
    return [step.kind for step in steps]


def test_store_error_is_one_warning_and_retried_later(sweep, monkeypatch, caplog):
    def refuse(*given, **named):
        raise StoreUnavailable("no right to delete")

    with monkeypatch.context() as patch:
        patch.setattr(type(sweep.store), "replace", refuse)
        with caplog.at_level(logging.WARNING):
            collect(sweep)
    (line,) = [record.getMessage() for record in caplog.records if "snapshot" in record.getMessage()]
    assert line.endswith(": no right to delete")
    assert by_records(sweep) == complete(sweep) == {*KEEP, GONE}
    collect(sweep)
    assert complete(sweep) == KEEP


@pytest.mark.parametrize("operation", ["insert", "delete"])
def test_a_removal_whose_answers_are_lost_is_done_once(gcs, space, operation):
    url = f"gs://bucket/collection/{uuid.uuid4().hex}"
    experiment = made(GcsStore(url, endpoint=gcs.url, retries=QUICK), staged(space, keep=2))
    gcs.faults.add(Fault(action="lose_response", operation=operation, times=3))
    collect(experiment)
    gcs.faults.clear()
    assert by_records(experiment) == complete(experiment) == KEEP
    assert {stage.key for stage in stored_stages.stored_stages(experiment.store)} == KEEP


def test_refused_deletion_is_left_to_repair(gcs, space, monkeypatch, caplog):
    url = f"gs://bucket/collection/{uuid.uuid4().hex}"
    experiment = made(GcsStore(url, endpoint=gcs.url, retries=QUICK), staged(space, keep=2))
    gcs.faults.add(Fault(action="status", status=403, operation="delete", times=None))
    collect(experiment)
    assert "could not be removed" in caplog.text
    gcs.faults.clear()
    assert by_records(experiment) == KEEP
    assert mended(experiment, monkeypatch) == ["unnamed"]
    assert complete(experiment) == KEEP


def test_a_sweep_without_stages_is_not_even_listed(space, monkeypatch):
    experiment = Experiment.create(MemoryStore(), space)
    monkeypatch.setattr(Experiment, "trials", lambda self: pytest.fail("listed"))
    collect(experiment)


def test_a_worker_removes_them_after_a_trial(space):
    experiment = made(MemoryStore(), staged(space, keep=2))
    put(experiment.store, done(3, 0.3, status="pending"))
    loop.work(experiment, stop=Stop(), watcher=Mock(spec=Watcher), limits=loop.Limits(max_trials=1))
    assert len(experiment.trials()) == 4
    assert by_records(experiment) == complete(experiment) == KEEP


def test_points_of_a_trunk_go_one_by_one(store, space):
    """Trials of 10 and 20 steps leave it at 5 and 10; what was taken from a point stays in its record."""
    space = staged(space)
    lengths = Choice(name="steps", values=(10, 20))
    first = replace(
        space.stages[0],
        parameters=(*space.stages[0].parameters, "steps"),
        trunk=Trunk(length="steps", decay=0.5),
    )
    space = replace(space, stages=(first, *space.stages[1:]), parameters=(*space.parameters, lengths))
    experiment = Experiment.create(store, space)
    publisher = with_points(done(0, 0.1, 1.0, snapshot=False, now=store.now()), 3, 5, 8, 10)
    put(store, publisher)
    taken = replace(publisher.points[2], snapshot=False, reused_from=0)
    put(store, replace(done(1, 0.1, 2.0, snapshot=False, now=store.now()), points=(taken,)))
    publish_all(experiment)
    collect(experiment)
    keys = [point.key for point in publisher.points]
    assert complete(experiment) == {keys[1], keys[3]}
    assert [point.snapshot for point in experiment.trial(0).points] == [False, True, False, True]
    assert experiment.trial(1).points == (taken,)
    assert survey(store).checkpoints == ()
