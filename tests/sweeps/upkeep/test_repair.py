"""Every step of a repair does what it says, loses no data, yields to workers, and is needed only once."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from memory_store import MemoryStore
from published import put
from upkeep_cases import make_gap, make_ownerless, overwrite, tear

from sweeps.errors import NewerObject, StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.search.allocation import ASK_KEY
from sweeps.storage.base import NotFound
from sweeps.storage.local import LocalStore
from sweeps.trials import control
from sweeps.trials import record as trial
from sweeps.trials.lifecycle import Complete
from sweeps.upkeep import diagnostics
from sweeps.upkeep.diagnostics import plan
from sweeps.upkeep.inventory import survey
from sweeps.upkeep.repair import carry_out


def planned(experiment: Experiment):
    return plan(experiment, survey(experiment.store))


def repair(experiment: Experiment) -> list[tuple[str, str]]:
    """Repair everything, check that a second repair finds nothing; kind and state of every step."""
    outcomes = [carry_out(step) for step in planned(experiment)]
    assert planned(experiment) == []
    return [(outcome.step.kind, outcome.state) for outcome in outcomes]


def quarantined(experiment: Experiment) -> list[bytes]:
    return [experiment.store.read(entry.key)[0] for entry in experiment.store.list("quarantine/")]


def test_a_healthy_sweep_needs_no_repair(tended):
    assert planned(tended) == []


def test_planning_changes_nothing(tended):
    tear(tended)
    before = tended.store.list("trials/")
    assert [step.kind for step in planned(tended)] == ["torn"]
    assert tended.store.list("trials/") == before
    assert quarantined(tended) == []


def test_a_torn_record_is_moved_aside_and_workers_go_on(tended):
    torn = tear(tended)
    assert repair(tended) == [("torn", "done")]
    assert quarantined(tended) == [torn]
    (entry,) = tended.store.list("quarantine/")
    assert entry.key.startswith("quarantine/000000.json-2")
    assert [record.trial for record in tended.trials()] == [1, 2]
    assert tended.ask("w1").trial == 2
    findings = diagnostics.examine(tended, survey(tended.store))
    assert findings == []  # the gap is accounted for


def test_step_hints_at_results_of_a_torn_record(tended):
    tear(tended)
    tended.store.create("runs/000000/attempt-1/result.json", b"{}")
    (step,) = planned(tended)
    assert "runs/000000/attempt-1/result.json may hold its results" in step.what


def test_a_record_that_was_put_back_in_the_meantime_stays(tended):
    good = tended.store.read(trial.key(0))[0]
    tear(tended)
    (step,) = planned(tended)
    overwrite(tended.store, trial.key(0), good)
    assert carry_out(step).state == "overtaken"
    assert tended.store.read(trial.key(0))[0] == good
    assert quarantined(tended) == []


def test_interruption_between_copy_and_removal_loses_nothing(space):
    class Interrupted(MemoryStore):
        broken = True

        def delete(self, key, expected):
            if self.broken:
                raise StoreUnavailable("the network is down")
            super().delete(key, expected)

    store = Interrupted()
    experiment = Experiment.create(store, space)
    store.create(trial.key(0), b'{"torn')
    (step,) = planned(experiment)
    assert carry_out(step).state == "failed"
    assert store.read(trial.key(0))[0] == b'{"torn'
    store.broken = False
    assert repair(experiment) == [("torn", "done")]
    assert set(quarantined(experiment)) == {b'{"torn'}


def test_a_torn_switch_is_moved_aside(tended):
    tended.store.create(control.KEY, b"{")
    assert repair(tended) == [("torn", "done")]
    assert control.read(tended.store) == "running"
    assert quarantined(tended) == [b"{"]


def run_silently(experiment: Experiment) -> None:
    running = replace(
        experiment.trial(2), status="running", worker="w1", attempt=1, heartbeat=5.0, started=5.0
    )
    put(experiment.store, running)


def test_the_trial_of_a_silent_worker_is_handed_back(tended):
    run_silently(tended)
    assert repair(tended) == [("expired", "done")]
    record = tended.trial(2)
    assert (record.status, record.history[-1].reason) == ("pending", "expired")


def test_result_reported_before_the_repair_is_kept(tended):
    run_silently(tended)
    (step,) = planned(tended)
    tended.apply(2, Complete(worker="w1", attempt=1, metrics={"loss": 0.5}))
    assert carry_out(step).state == "overtaken"
    assert tended.trial(2).metrics == {"loss": 0.5}


def test_a_record_of_a_later_version_is_left_alone(tended):
    data = tended.store.read(trial.key(0))[0].replace(b'"schema": 1', b'"schema": 2')
    overwrite(tended.store, trial.key(0), data)
    with pytest.raises(NewerObject, match="a later version"):
        planned(tended)


def test_a_dead_lock_is_removed_and_a_live_one_is_not(tended):
    store = tended.store
    store.create(ASK_KEY, json.dumps({"holder": "w1", "renewed": 5.0}).encode())
    (step,) = planned(tended)
    overwrite(store, ASK_KEY, json.dumps({"holder": "w2", "renewed": store.now()}).encode())
    assert carry_out(step).state == "overtaken"
    assert planned(tended) == []
    overwrite(store, ASK_KEY, b"torn")
    assert repair(tended) == [("lock", "done")]
    with pytest.raises(NotFound):
        store.read(ASK_KEY)


def test_files_of_a_lost_attempt_go_once_a_later_one_completed(tended):
    store = tended.store
    for key in ("attempt-1/log.txt", "attempt-1/checkpoints/1.pt", "attempt-2/log.txt"):
        store.create(f"runs/000000/{key}", b"x" * 100)
    store.create("runs/000002/attempt-1/log.txt", b"a pending trial may go on from here")
    assert planned(tended) == []
    put(store, replace(tended.trial(0), attempt=2))
    assert repair(tended) == [("superseded", "done")]
    left = [entry.key for entry in store.list("runs/")]
    assert left == ["runs/000000/attempt-2/log.txt", "runs/000002/attempt-1/log.txt"]


def test_the_size_of_what_will_be_removed_is_reported(tmp_path, sweep_in):
    experiment = sweep_in(LocalStore(tmp_path / "sweep"))
    done = {"status": "completed", "attempt": 2, "metrics": {"loss": 1.0}}
    record = trial.Trial(trial=0, parameters={"x": 0.5, "n": 1, "mode": "fast"}, generator="sobol", **done)
    put(experiment.store, record)
    folder = experiment.store.folder("runs/000000/attempt-1")
    (folder / "checkpoint").write_bytes(b"x" * 2**20)
    (folder / ".half").write_bytes(b"x" * 2**20)
    (step,) = planned(experiment)
    assert step.what.startswith("remove 2.0 MiB of trial 0's attempt 1")
    assert repair(experiment) == [("superseded", "done")]
    assert not folder.exists()


def test_an_old_draft_is_removed(tmp_path, sweep_in):
    experiment = sweep_in(LocalStore(tmp_path / "sweep"))
    draft = tmp_path / "sweep" / ".sweep.json.draft"
    draft.write_bytes(b"{")
    os.utime(draft, (5.0, 5.0))
    assert repair(experiment) == [("draft", "done")]
    assert not draft.exists()


@pytest.mark.parametrize("inflict", [make_gap, make_ownerless], ids=["a removed record", "runs without one"])
def test_nothing_is_made_up_and_nothing_unknown_is_removed(tended, inflict):
    inflict(tended)
    tended.store.create("trials/notes.txt", b"hello")
    assert planned(tended) == []


def test_failed_step_does_not_stop_the_others(space):
    class Stubborn(MemoryStore):
        def delete(self, key, expected):
            if key == trial.key(0):
                raise StoreUnavailable("no permission")
            super().delete(key, expected)

    experiment = Experiment.create(Stubborn(), space)
    for index in range(2):
        experiment.store.create(trial.key(index), b"torn")
    outcomes = [carry_out(step) for step in planned(experiment)]
    assert [(outcome.state, outcome.reason) for outcome in outcomes] == [
        ("failed", "no permission"),
        ("done", ""),
    ]


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_no_trial_takes_the_place_of_one_whose_record_is_lost(space, tmp_path, kind):
    """It would overwrite a result that can still be imported, or resume from what it finds there."""
    store = LocalStore(tmp_path) if kind == "folder" else MemoryStore()
    first, second = Experiment.create(store, space), Experiment.open(store)
    assert [first.ask("w1").trial, second.ask("w2").trial] == [0, 1]
    result = "runs/000001/attempt-1/result.json"
    store.create(result, b"{}")
    overwrite(store, trial.key(1), b'{"torn')
    assert ("torn", "done") in repair(first)
    assert [first.ask("w1").trial, second.ask("w2").trial] == [2, 3]
    store.create("runs/000004/attempt-1/result.json", b"{}")  # a record that somebody has removed
    enqueued = second.enqueue([dict(first.trial(0).parameters)] * 2, "me")
    assert [record.trial for record in enqueued] == [5, 6]
    assert store.read(result)[0] == b"{}"
