"""A worker that dies at one exact point of the protocol, and what the next one finds: the rows of docs/explanation/protocol.md.

Death is an exception that nothing catches, raised just before or just after one operation on one object.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from fake_gcs import FakeGcs, Fault
from memory_store import MemoryStore

from sweeps.errors import StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.search.allocation import ASK_KEY
from sweeps.space.definition import Lease, Objective, Program, Range, Search, Space
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.retries import RetryPolicy
from sweeps.trials import record as trial
from sweeps.trials.lifecycle import Complete
from sweeps.trials.record import Trial

EXPIRE_S = 30.0
RECORD = trial.key(0)
IMPATIENT = RetryPolicy(total_s=0.6, attempt_s=0.3, first_wait_s=0.02, longest_wait_s=0.1)


class Killed(BaseException):
    """Stand-in for SIGKILL: no handler cleans up."""


class Mortal(MemoryStore):
    """Store whose client dies once, at the operation and key that `die` selects, before or after it."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0
        super().__init__(clock=lambda: self.seconds)
        self.die: tuple[str, str, str] | None = None
        self.dead = False

    def create(self, key: str, data: bytes) -> str:
        return self._step("create", key, lambda: super(Mortal, self).create(key, data))

    def replace(self, key: str, data: bytes, expected: str) -> str:
        return self._step("replace", key, lambda: super(Mortal, self).replace(key, data, expected))

    def delete(self, key: str, expected: str) -> None:
        self._step("delete", key, lambda: super(Mortal, self).delete(key, expected) or "")

    def bury(self, after_s: float) -> None:
        """Let time pass, so that the next user of the store is another worker."""
        self.dead, self.die = False, None
        self.seconds += after_s

    def _step(self, operation: str, key: str, do: Callable[[], str]) -> str:
        if self.dead or (operation, key, "before") == self.die:
            self.dead = True
            raise Killed  # the dead change nothing, whatever their `finally` blocks try
        done = do()
        if (operation, key, "after") == self.die:
            self.dead = True
            raise Killed
        return done


@pytest.fixture
def space() -> Space:
    return Space(
        name="mortal",
        objectives=(Objective(metric="loss"),),
        parameters=(Range(name="x", min=0.0, max=1.0, kind="float"),),
        program=Program(kind="function", function="math:sqrt"),
        search=Search(method="random", seed=1),
        run_cap=1,
        lease=Lease(heartbeat_s=10.0, expire_s=EXPIRE_S, max_attempts=3),
    )


@pytest.fixture
def store() -> Mortal:
    return Mortal()


@pytest.fixture
def worker(store, space) -> Experiment:
    return Experiment.create(store, space)


def give_up(seconds: float) -> None:
    """Raise instead of waiting for a lock."""
    raise TimeoutError


def finish(store: Mortal, by: str) -> Trial:
    """Claim the next trial and complete it, as another worker."""
    experiment = Experiment.open(store)
    record = experiment.ask(by, wait=give_up)
    assert record is not None
    return experiment.apply(record.trial, done(record))


def done(record: Trial) -> Complete:
    return Complete(worker=record.worker or "", attempt=record.attempt, metrics={"loss": 0.5})


def state(store: Mortal) -> tuple[list[str], list[tuple[str, int]]]:
    """Return the keys, and status and attempt of every record."""
    records = Experiment.open(store).trials()
    return [entry.key for entry in store.list("")], [(record.status, record.attempt) for record in records]


def test_worker_dead_after_making_a_trial_leaves_it(store, worker):
    store.die = ("create", RECORD, "after")
    with pytest.raises(Killed):
        worker.ask("w1")
    assert state(store) == ([ASK_KEY, "sweep.json", RECORD], [("running", 1)])
    store.bury(after_s=EXPIRE_S - 1)
    assert Experiment.open(store).ask("w2", wait=give_up) is None  # at the cap, and w1 may live
    store.bury(after_s=2)
    assert finish(store, "w2").attempt == 2
    assert state(store)[1] == [("completed", 2)]


def test_worker_dead_after_its_claim_is_followed(store, worker):
    first = worker.ask("w1")
    assert first is not None
    store.bury(after_s=EXPIRE_S + 1)
    ended = finish(store, "w2")
    assert (ended.trial, ended.parameters, ended.attempt) == (first.trial, first.parameters, 2)
    assert [attempt.reason for attempt in ended.history] == ["expired", "completed"]


def test_a_result_that_was_never_reported_is_worked_out_again(store, worker):
    record = worker.ask("w1")
    store.die = ("replace", RECORD, "before")
    with pytest.raises(Killed):
        worker.apply(0, done(record))
    assert state(store) == (["sweep.json", RECORD], [("running", 1)])
    store.bury(after_s=EXPIRE_S + 1)
    assert finish(store, "w2").status == "completed"
    assert state(store) == (["sweep.json", RECORD], [("completed", 2)])


def test_a_report_whose_sender_died_before_the_answer_counts(store, worker):
    record = worker.ask("w1")
    store.die = ("replace", RECORD, "after")
    with pytest.raises(Killed):
        worker.apply(0, done(record))
    store.bury(after_s=EXPIRE_S + 1)
    assert Experiment.open(store).ask("w2", wait=give_up) is None
    assert state(store) == (["sweep.json", RECORD], [("completed", 1)])


def test_lost_claim_leaves_the_trial_pending(gcs: FakeGcs, space):
    url = f"gs://bucket/tests/{uuid.uuid4().hex}"
    experiment = Experiment.create(GcsStore(url, endpoint=gcs.url), space)
    fresh = Trial(trial=0, status="pending", parameters={"x": 0.5}, generator="sobol")
    experiment.store.create(RECORD, trial.encode(fresh, "made"))
    gcs.faults.add(Fault(action="lose_request", operation="insert", door="w1", times=None))
    cut_off = Experiment.open(GcsStore(url, endpoint=gcs.door("w1"), retries=IMPATIENT))
    with pytest.raises(StoreUnavailable):
        cut_off.ask("w1")
    assert [(r.status, r.attempt) for r in experiment.trials()] == [("pending", 0)]
    assert experiment.ask("w2").attempt == 1
