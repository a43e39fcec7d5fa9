"""Trials of a user's own: before the search's, within the cap, and observations like others, in every store."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace

import pytest
from memory_store import MemoryStore

from sweeps.errors import InputError, StoreUnavailable, SweepClosed
from sweeps.experiment import Experiment
from sweeps.search import enqueueing
from sweeps.search.allocation import ASK_KEY
from sweeps.space.definition import Budget, Choice, Search
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.local import LocalStore
from sweeps.trials.lease import ObjectLease
from sweeps.trials.lifecycle import Complete

METHODS = {
    "grid": Search(method="grid"),
    "random": Search(method="random", sobol=4, seed=3),
    "bayes": Search(method="bayes", sobol=2, seed=3),
}
OWN = {"x": 2, "mode": "fast"}


@pytest.fixture
def choices(space):
    parameters = (Choice(name="x", values=tuple(range(12)), ordered=True), space.parameters[2])
    return replace(space, parameters=parameters, search=METHODS["grid"])


@pytest.fixture(params=["memory", "local", "gcs"])
def stored(request, choices, tmp_path, let_go_of_leases):
    store = {
        "memory": MemoryStore,
        "local": lambda: LocalStore(str(tmp_path / "sweep")),
        "gcs": lambda: GcsStore(
            f"gs://bucket/own/{uuid.uuid4().hex}", endpoint=request.getfixturevalue("gcs").url
        ),
    }[request.param]()
    yield Experiment.create(store, choices)
    let_go_of_leases()


def finish(experiment, record, loss):
    return experiment.apply(
        record.trial, Complete(worker=record.worker, attempt=record.attempt, metrics={"loss": loss})
    )


def test_enqueued_trials_are_claimed_first_in_order(stored):
    first = stored.ask("w")
    made = stored.enqueue([{**OWN, "x": x} for x in (7, 5, 9)], "me")
    assert [(r.trial, r.status, r.generator) for r in made] == [(i, "pending", "enqueued") for i in (1, 2, 3)]
    again = Experiment.open(stored.store)
    assert [again.ask("w").parameters["x"] for _ in range(3)] == [7, 5, 9]
    assert again.ask("w").generator == "grid"
    assert first.parameters["x"] == 0


@pytest.mark.parametrize("method", METHODS)
def test_the_search_learns_from_them_and_proposes_others(choices, method):
    experiment = Experiment.create(MemoryStore(), replace(choices, search=METHODS[method], run_cap=8))
    experiment.enqueue([{**OWN, "x": x} for x in (6, 2, 11)], "me")
    records = [
        finish(experiment, record, 0.1 * record.parameters["x"])
        for record in iter(lambda: experiment.ask("w"), None)
    ]
    assert len(records) == 8  # the cap counts them
    assert [record.parameters["x"] for record in records[:3]] == [6, 2, 11]
    assert len({record.parameters["x"] for record in records}) == 8
    assert {record.generator for record in records[:3]} == {"enqueued"}
    assert {record.generator for record in records[3:]} <= {"grid", "sobol", "botorch"}
    assert method != "bayes" or records[-1].generator == "botorch"


def test_a_grid_is_complete_with_them(choices):
    experiment = Experiment.create(MemoryStore(), replace(choices, run_cap=None))
    experiment.enqueue([OWN], "me")
    records = [finish(experiment, record, 1.0) for record in iter(lambda: experiment.ask("w"), None)]
    assert sorted(record.parameters["x"] for record in records) == list(range(12))


def test_the_baseline_still_comes(choices):
    ours = replace(choices, search=METHODS["random"], baseline={"x": 1, "mode": "fast"})
    experiment = Experiment.create(MemoryStore(), ours)
    experiment.enqueue([OWN], "me")
    assert [experiment.ask("w").generator for _ in range(2)] == ["enqueued", "baseline"]


def test_all_or_none_within_the_run_cap(choices):
    experiment = Experiment.create(MemoryStore(), replace(choices, run_cap=3))
    experiment.ask("w")
    with pytest.raises(InputError, match=r"run_cap is 3; .*sweep extend"):
        experiment.enqueue([{**OWN, "x": x} for x in (3, 4, 5)], "me")
    assert len(experiment.trials()) == 1
    assert len(experiment.enqueue([{**OWN, "x": x} for x in (3, 4)], "me")) == 2
    with pytest.raises(InputError, match="run_cap is 3"):
        experiment.enqueue([OWN], "me")


def test_they_count_towards_the_budget(choices):
    experiment = Experiment.create(MemoryStore(), replace(choices, budget=Budget(effective_steps=10)))
    experiment.enqueue([OWN, {**OWN, "x": 3}], "me")
    record = experiment.ask("w")
    experiment.apply(
        record.trial, Complete(worker="w", attempt=1, metrics={"loss": 1.0, "effective_steps": 20})
    )
    with pytest.raises(SweepClosed, match="budget"):
        experiment.ask("w")


def test_one_that_exists_is_taken_where_that_is_asked(choices):
    experiment = Experiment.create(MemoryStore(), choices)
    done = finish(experiment, experiment.ask("w"), 1.0)
    again = experiment.enqueue([done.parameters, OWN, OWN], "me", skip_if_exists=True)
    assert [record.trial for record in again] == [0, 1, 1]
    assert [record.trial for record in experiment.enqueue([OWN, OWN], "me")] == [2, 3]


def test_it_waits_for_a_worker_that_creates_a_trial(choices):
    experiment = Experiment.create(MemoryStore(), choices)
    lease = ObjectLease(experiment.store, ASK_KEY, heartbeat_s=10, expire_s=30)
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with lease.held("w"):
            entered.set()
            leave.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    entered.wait(10)
    found = []
    other = threading.Thread(
        target=lambda: found.extend(Experiment.open(experiment.store).enqueue([OWN], "me"))
    )
    other.start()
    other.join(0.3)
    assert experiment.trials() == found == []
    leave.set()
    other.join(10)
    holder.join(10)
    assert [record.trial for record in found] == [0]


def test_others_that_hold_the_lock_for_minutes_are_an_error(choices, monkeypatch):
    monkeypatch.setattr(enqueueing, "PATIENCE_S", 0.0)
    experiment = Experiment.create(MemoryStore(), choices)
    lease = ObjectLease(experiment.store, ASK_KEY, heartbeat_s=10, expire_s=30)
    with lease.held("w"), pytest.raises(Exception, match="held by others"):
        experiment.enqueue([OWN], "me")
    assert experiment.trials() == []


def test_an_index_that_a_stalled_worker_took_is_left_to_it(choices, monkeypatch):
    """A holder that stalls past its lease may still create the trial that it had begun."""
    experiment = Experiment.create(MemoryStore(), choices)
    slow, create = Experiment.open(experiment.store), experiment.store.create

    def late(key, data):
        if key == "trials/000000.json" and slow is not None:
            monkeypatch.setattr(experiment.store, "create", create)
            create("trials/000000.json", data.replace(b'"x": 2', b'"x": 3'))
        return create(key, data)

    monkeypatch.setattr(experiment.store, "create", late)
    assert [record.trial for record in experiment.enqueue([OWN], "me")] == [1]
    assert [record.parameters["x"] for record in experiment.trials()] == [3, 2]


@pytest.mark.parametrize(("stored_before", "raised"), [(0, InputError), (1, StoreUnavailable)])
def test_the_cap_holds_when_the_lease_was_lost_meanwhile(choices, monkeypatch, stored_before, raised):
    experiment = Experiment.create(MemoryStore(), replace(choices, run_cap=3))
    create = experiment.store.create

    def late(key, data):
        if (
            key == f"trials/{stored_before:06d}.json"
        ):  # here it stood still, and another worker made all others
            monkeypatch.setattr(experiment.store, "create", create)
            for index in range(stored_before, 3):
                made = data.replace(b'"trial": %d' % stored_before, b'"trial": %d' % index)
                create(f"trials/{index:06d}.json", made.replace(b'"x": ', b'"x": 1'))
        return create(key, data)

    monkeypatch.setattr(experiment.store, "create", late)
    with pytest.raises(raised, match="run_cap is 3") as refused:
        experiment.enqueue([{**OWN, "x": 0}, {**OWN, "x": 1}], "me")
    assert len(experiment.trials()) == 3
    assert ("; 1 of 2 are enqueued already" in str(refused.value)) == bool(stored_before)
