"""Trials that the holder of the ask lock creates for waiting workers, and when it stops."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest
from fake_gcs import FakeGcs
from memory_store import MemoryStore

from sweeps.errors import Interrupted, SweepClosed
from sweeps.experiment import Experiment
from sweeps.search import allocation
from sweeps.search.allocation import ASK_KEY
from sweeps.search.optimizer import Optimizer
from sweeps.space.definition import Budget, Program, Search
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.local import LocalStore
from sweeps.trials import budget, control, lifecycle
from sweeps.trials import record as record_module
from sweeps.trials.record import Trial


class Bucket(MemoryStore):
    """Names change slowly here, though nothing refuses a faster change."""

    is_remote = True

    @property
    def write_interval_s(self) -> float:
        return 0.001


@pytest.fixture(autouse=True)
def _settled(let_go_of_leases):
    yield
    let_go_of_leases()


@pytest.fixture
def space(space):
    return replace(space, run_cap=40)


@pytest.fixture
def bucket(space, clock) -> Experiment:
    return Experiment.create(Bucket(clock=clock), space)


def ask_after(experiment: Experiment, *holders: str, worker: str = "me", wait=time.sleep):
    """Ask while others hold the lock, one after another."""
    store, holders_left = experiment.store, list(holders)
    experiment.allocator.lease.settle()

    def step(seconds: float) -> None:
        if not holders_left:
            wait(seconds)  # it is our turn, or has been
            return
        store.delete(ASK_KEY, store.read(ASK_KEY)[1])
        holders_left.pop(0)
        if holders_left:
            _hold(store, holders_left[0])

    if holders_left:
        _hold(store, holders_left[0])
    return experiment.ask(worker, wait=step)


def _hold(store: MemoryStore, holder: str) -> None:
    store.create(ASK_KEY, json.dumps({"holder": holder, "renewed": store.now()}).encode())


def statuses(experiment: Experiment) -> str:
    return "".join(record.status[0] for record in experiment.trials())


def test_who_had_to_wait_makes_trials_for_those_who_still_do(bucket):
    assert ask_after(bucket, "other").trial == 0
    assert statuses(bucket) == "r" + 15 * "p"


def test_the_longer_the_queue_the_more_it_makes(bucket):
    assert ask_after(bucket, "a", "b").trial == 0
    assert statuses(bucket) == "r" + 30 * "p"


def waits_of_100_s(experiment: Experiment, monkeypatch) -> list[float]:
    """Return the waits of a worker that waits for the ask lease until it is stopped after 100 s."""
    clock = [0.0]
    monkeypatch.setattr(allocation.time, "monotonic", lambda: clock[0])
    _hold(experiment.store, "other")
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        clock[0] += seconds
        if clock[0] > 100:
            raise Interrupted("SIGTERM")

    with pytest.raises(Interrupted):
        experiment.ask("me", wait=wait)
    return waits


def test_waits_grow_with_the_time_waited(bucket, monkeypatch):
    """Of a thousand workers that wait, each would otherwise list the trials several times a second."""
    waits = waits_of_100_s(bucket, monkeypatch)
    assert waits[0] <= 0.25
    assert 10 < len(waits) < 150  # 650 without
    assert 2 < max(waits) < bucket.space.lease.expire_s + 0.25


def test_waits_stay_short_in_a_folder(space, clock, monkeypatch):
    """Nothing is refused there, and a lease that nobody takes is a worker without a trial."""
    assert max(waits_of_100_s(Experiment.create(MemoryStore(clock=clock), space), monkeypatch)) <= 0.25


def test_they_are_the_candidates_that_asking_one_by_one_gives(bucket, space):
    one_by_one = Experiment.create(MemoryStore(), space)
    expected = [dict(one_by_one.ask("w").parameters) for _ in range(16)]
    ask_after(bucket, "other")
    assert [dict(record.parameters) for record in bucket.trials()] == expected


def test_who_did_not_have_to_wait_makes_one(bucket):
    bucket.ask("me")
    assert statuses(bucket) == "r"


def test_where_the_lock_changes_hands_at_once_there_is_no_need(experiment):
    ask_after(experiment, "other")
    assert statuses(experiment) == "r"


def test_the_run_cap_holds(space, clock):
    experiment = Experiment.create(Bucket(clock=clock), replace(space, run_cap=3))
    ask_after(experiment, "other")
    assert statuses(experiment) == "rpp"


@pytest.fixture
def _cheap_surrogate(monkeypatch):
    """Points of the surrogate that cost no fit: these tests are about who creates a candidate, and when."""

    def points(self, index, found, stored, left, *, by_source):
        yield self._sobol[20 + index]

    monkeypatch.setattr(Optimizer, "_surrogate_points", points)


def searching(space, clock, **rest) -> Experiment:
    """A sweep whose next candidates come from the surrogate, if what it costs is no matter."""
    space = replace(space, search=Search(method="bayes", sobol=2, seed=1), **rest)
    experiment = Experiment.create(Bucket(clock=clock), space)
    for loss in (3.0, 2.0, 1.0):
        record = experiment.ask("w")
        done = lifecycle.Complete(worker="w", attempt=1, metrics={"loss": loss})
        experiment.apply(record.trial, done)
    return experiment


@pytest.mark.usefixtures("_cheap_surrogate")
def test_the_surrogate_makes_as_many_ahead_as_the_queue_was_long(space, clock):
    """What it knows counts: a candidate is not made before somebody needs it."""
    made = {}
    for holders in (("a",), ("a", "b", "c")):
        experiment = searching(space, clock)
        assert ask_after(experiment, *holders).generator == "botorch"
        made[len(holders)] = statuses(experiment)
    assert made == {1: "cccr", 3: "cccrpp"}


@pytest.mark.usefixtures("_cheap_surrogate")
def test_spare_points_do_not_extend_sobol_phase(space, clock):
    few = replace(space, search=Search(method="bayes", sobol=6, seed=1))
    experiment = Experiment.create(Bucket(clock=clock), few)
    for loss in (3.0, 2.0, 1.0):
        record = experiment.ask("w")
        experiment.apply(record.trial, lifecycle.Complete(worker="w", attempt=1, metrics={"loss": loss}))
    ask_after(experiment, "a")
    assert [record.generator for record in experiment.trials()] == 6 * ["sobol"] + ["botorch"]


def test_spare_points_before_results_end_with_the_first_design(space, clock):
    """Further points of Sobol would use up a run cap that candidates of the surrogate are for."""
    few = replace(space, search=Search(method="bayes", sobol=6, seed=1))
    made = {}
    for holders in (("a",), tuple("abcdefgh")):
        experiment = Experiment.create(Bucket(clock=clock), few)
        ask_after(experiment, *holders)
        made[len(holders)] = statuses(experiment)
    assert made == {1: "r" + 6 * "p", 8: "r" + 8 * "p"}  # the longer queue has nothing better to wait for


@pytest.mark.usefixtures("_cheap_surrogate")
@pytest.mark.parametrize("state", ["paused", "stopped"])
def test_a_sweep_that_was_closed_meanwhile_gets_no_more(space, clock, state, monkeypatch):
    experiment = searching(space, clock)
    create_claimed = allocation.Allocator.create_claimed

    def close(self, claim, **named):
        made = create_claimed(self, claim, **named)
        control.write(experiment.store, state, by="test")
        return made

    monkeypatch.setattr(allocation.Allocator, "create_claimed", close)
    assert ask_after(experiment, "a", "b", "c").status == "running"
    assert statuses(experiment) == "cccr"


@pytest.mark.usefixtures("_cheap_surrogate")
def test_a_budget_that_was_spent_meanwhile_makes_no_more(space, clock):
    experiment = searching(space, clock, budget=Budget(wall_hours=1.0))
    clock.advance(3599.5)
    ask_after(experiment, "a", "b", "c", wait=lambda seconds: clock.advance(1.0))
    assert statuses(experiment) == "cccr"


@pytest.mark.parametrize("devices", [1, 4])
def test_device_hours_count_each_device_of_a_trial(space, clock, devices):
    program = Program(kind="trainer", processes=devices // 2 or 1, nodes=2 if devices > 1 else 1)
    four_hours = replace(space, program=program, budget=Budget(device_hours=4.0))
    experiment = Experiment.create(MemoryStore(clock=clock), four_hours)
    record = experiment.ask("w")
    clock.advance(3600.0)
    experiment.apply(record.trial, lifecycle.Complete(worker="w", attempt=1, metrics={"loss": 1.0}))
    if devices == 1:
        assert experiment.ask("w").status == "running"
    else:
        with pytest.raises(SweepClosed, match="4 of 4 device_hours"):
            experiment.ask("w")


def test_device_hours_count_the_hosts_of_the_worker_that_ran_a_trial(space, clock):
    """`sweep worker --nodes 3` of a space file without `nodes`, and `sweep status` elsewhere."""
    store = MemoryStore(clock=clock)
    stored = replace(space, program=Program(kind="trainer", processes=2))
    Experiment.create(store, stored)
    for nodes in (3, 1):
        experiment = Experiment(store, replace(stored, program=replace(stored.program, nodes=nodes)))
        record = experiment.ask("w")
        clock.advance(3600.0)
        experiment.apply(record.trial, lifecycle.Complete(worker="w", attempt=1, metrics={"loss": 1.0}))
    elsewhere = Experiment.open(store)
    assert budget.spent(elsewhere.space, elsewhere.trials(), store.now()).device_hours == 8.0


def test_interrupted_worker_still_gets_its_trial(bucket):
    def interrupt(seconds: float) -> None:
        raise Interrupted("SIGTERM")

    record = ask_after(bucket, "other", wait=interrupt)
    assert (record.trial, record.worker, record.status) == (0, "me", "running")


def test_whatever_goes_wrong_with_the_others_trials_ours_is_run(bucket, monkeypatch):
    candidate = allocation.Allocator.candidate

    def broken(self, records):
        if records:
            raise RuntimeError("no memory")
        return candidate(self, records)

    monkeypatch.setattr(allocation.Allocator, "candidate", broken)
    assert ask_after(bucket, "other").trial == 0
    assert statuses(bucket) == "r"


def test_it_ends_before_the_first_heartbeat_is_overdue(space, monkeypatch):
    """Only the time can end it."""
    monkeypatch.setattr(allocation.Allocator, "_makes_another", lambda *_: True)
    endless = replace(space, run_cap=None, lease=replace(space.lease, heartbeat_s=0.4))
    experiment = Experiment.create(Bucket(), endless)
    made = []
    candidate = allocation.Allocator.candidate

    def timed(self, records):
        made.append(time.monotonic())
        return candidate(self, records)

    monkeypatch.setattr(allocation.Allocator, "candidate", timed)
    ask_after(experiment, "other")
    assert len(made) > 1
    assert made[-1] - made[1] < 0.2 + 0.1


def test_trials_made_by_dead_worker_are_claimable(bucket, clock):
    """Killed after two of them: they are anybody's at once, its own trial is taken over after its lease."""

    class Killed(BaseException):
        pass

    create, made = bucket.store.create, []

    def killed(key: str, data: bytes) -> str:
        if key.startswith("trials/"):
            made.append(key)
            if len(made) == 4:
                raise Killed
        return create(key, data)

    bucket.store.create = killed
    with pytest.raises(Killed):
        ask_after(bucket, "other")
    bucket.store.create = create
    assert statuses(bucket) == "rpp"
    others = Experiment.open(bucket.store)
    assert {others.ask("w1").trial, others.ask("w2").trial} == {1, 2}
    clock.advance(31)
    taken_over = Experiment.open(bucket.store).ask("w3")  # who was there before would see the clock jump
    assert (taken_over.trial, taken_over.attempt) == (0, 2)


def test_many_fresh_workers_share_few_turns_of_the_lock(gcs: FakeGcs, space):
    """Each turn of the lock costs two changes of its name, two seconds in a bucket."""
    gcs.objects.one_write_per_second = True
    gcs.latency_s = 0.01
    url = f"gs://bucket/asking/{uuid.uuid4().hex}"
    Experiment.create(GcsStore(url, endpoint=gcs.url), space)
    records = []

    def work(name: str) -> None:
        records.append(Experiment.open(GcsStore(url, endpoint=gcs.door(name))).ask(name))

    threads = [threading.Thread(target=work, args=(f"w{i}",)) for i in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    turns = sum(e.name.endswith(ASK_KEY) and e.status == 200 for e in gcs.journal.entries("insert"))
    assert len({record.trial for record in records}) == 10
    assert turns <= 3


WAITS = """
import sys
from sweeps.experiment import Experiment
from sweeps.storage.local import LocalStore

experiment = Experiment.open(LocalStore(sys.argv[1]))

def our_turn_never_comes(seconds):
    print(sorted({"ax", "torch"} & set(sys.modules)))
    raise SystemExit

with experiment.allocator.lease.held("somebody else") as theirs:
    assert theirs and "ax" not in sys.modules
    Experiment.open(LocalStore(sys.argv[1])).ask("me", wait=our_turn_never_comes)
"""


@pytest.mark.parametrize(
    ("method", "imported"),
    [pytest.param("bayes", "['ax', 'torch']\n", marks=pytest.mark.slow), ("random", "[]\n")],
    ids=["bayes", "random"],
)
def test_waiting_worker_has_imported_what_it_needs(space, tmp_path, method, imported):
    """Ax takes seconds: with the lease held, workers that start together would import it one by one."""
    Experiment.create(LocalStore(tmp_path), replace(space, search=Search(method=method)))
    code = [sys.executable, "-c", WAITS, str(tmp_path)]
    waited = subprocess.run(code, capture_output=True, text=True, check=False)
    assert waited.stdout == imported, waited.stderr


RANDOM = """
import sys
from sweeps.experiment import Experiment
from sweeps.storage.local import LocalStore

experiment = Experiment.open(LocalStore(sys.argv[1]))
print([experiment.ask("me").generator for _ in range(3)], {"ax", "torch"} & set(sys.modules))
"""


def test_random_search_imports_neither_ax_nor_torch(space, tmp_path):
    Experiment.create(LocalStore(tmp_path), space)
    code = [sys.executable, "-c", RANDOM, str(tmp_path)]
    asked = subprocess.run(code, capture_output=True, text=True, check=False)
    assert asked.stdout == "['sobol', 'sobol', 'sobol'] set()\n", asked.stderr


# ---- many workers that start together


class Counting(Bucket):
    """A bucket that counts the records that are read."""

    read_records = 0

    def read_many(self, keys):
        self.read_records += sum(key.startswith("trials/") for key in keys)
        return super().read_many(keys)


def crowded(space, clock, *, pending: int, running: int, **changed) -> Experiment:
    """Return a sweep of random search with more new records than a worker reads before a claim."""
    searched = replace(space, search=Search(method="random", seed=1), **{"run_cap": 1000} | changed)
    experiment = Experiment.create(Counting(clock=clock), searched)
    for index in range(pending + running):
        made = Trial(
            trial=index,
            status="pending",
            parameters={"x": index / 1000, "n": 1, "seed": 1},
            generator="sobol",
            created=clock.seconds,
        )
        if index < running:
            made = lifecycle.apply(made, lifecycle.Claim(worker=f"w{index}"), clock.seconds)
        experiment.store.create(record_module.key(index), record_module.encode(made, f"made-{index}"))
    return experiment


def test_a_new_worker_of_many_claims_without_reading_all(space, clock):
    experiment = crowded(space, clock, pending=100, running=100)
    assert experiment.ask("me").status == "running"
    assert experiment.store.read_records == allocation._SAMPLE


def test_where_none_is_pending_all_are_read_once_by_whoever_makes_the_next(space, clock):
    experiment = crowded(space, clock, pending=0, running=200)
    made = experiment.ask("me")
    assert (made.trial, made.generator) == (200, "sobol")
    assert experiment.store.read_records == 200


def test_while_others_make_trials_a_waiting_worker_does_not_read_all(space, clock):
    experiment = crowded(space, clock, pending=0, running=300)
    ask_after(experiment, "a", "b", "c")
    assert experiment.trials()[300].worker == "me"
    assert experiment.store.read_records == 300  # three samples, then the rest under the lease


def test_the_only_pending_trial_of_many_is_found(space, clock):
    experiment = crowded(space, clock, pending=1, running=200, run_cap=201)
    assert experiment.ask("me").trial == 200
    assert experiment.ask("me") is None


def test_a_new_worker_leaves_a_full_sweep_without_waiting_for_its_turn(space, clock):
    """A thousand that start again would otherwise take turns at the lease, only to learn that all is made."""
    experiment = crowded(space, clock, pending=0, running=200, run_cap=200)
    _hold(experiment.store, "other")

    def wait(seconds: float) -> None:
        raise AssertionError(f"waits {seconds} s for nothing")

    assert experiment.ask("me", wait=wait) is None


def test_a_silent_worker_among_many_is_noticed(space, clock):
    experiment = crowded(space, clock, pending=0, running=200, run_cap=200)
    clock.advance(3 * experiment.space.lease.expire_s)
    assert experiment.ask("me").attempt == 2


def test_failures_in_a_row_among_many_pause_the_sweep(space, clock):
    """The brake looks at all trials, and so does a worker that finds one that failed last."""
    experiment = crowded(space, clock, pending=200, running=100)
    for index in range(100):
        fail = lifecycle.Fail(worker=f"w{index}", attempt=1, error="no such file", failure="crashed")
        clock.advance(1.0)
        experiment.apply(index, fail)
    with pytest.raises(SweepClosed, match="no such file"):
        Experiment.open(experiment.store).ask("me")


def test_failures_among_many_that_completed_pause_nothing(space, clock):
    """A sample that happens to hold the failed ones alone must not stop a sweep of a hundred workers."""
    experiment = crowded(space, clock, pending=200, running=100)
    for index in range(100):
        clock.advance(1.0)
        event = lifecycle.Complete(worker=f"w{index}", attempt=1, metrics={"loss": 1.0})
        if index % 2:
            event = lifecycle.Fail(worker=f"w{index}", attempt=1, error="no such file", failure="crashed")
        experiment.apply(index, event)
    for _ in range(20):
        assert Experiment.open(experiment.store).ask("me").status == "running"


def test_a_budget_counts_all_trials_of_many(space, clock):
    experiment = crowded(space, clock, pending=100, running=200, budget=Budget(usd=100.0))
    for index in range(200):
        metrics = {"loss": 1.0, "usd": 1.0}
        experiment.apply(index, lifecycle.Complete(worker=f"w{index}", attempt=1, metrics=metrics))
    with pytest.raises(SweepClosed, match="usd"):
        Experiment.open(experiment.store).ask("me")


def test_paused_sweep_of_many_hands_out_nothing(space, clock):
    experiment = crowded(space, clock, pending=200, running=0)
    control.write(experiment.store, "paused", by="me")
    with pytest.raises(SweepClosed, match="paused"):
        experiment.ask("me")


class Raced(MemoryStore):
    """Lets another write first, once, before it replaces a trial."""

    rival: Callable[[], object] | None = None

    def replace(self, key: str, data: bytes, expected: str) -> str:
        if self.rival is not None and key.startswith("trials/"):
            rival, self.rival = self.rival, None
            rival()
        return super().replace(key, data, expected)


def test_of_two_who_begin_at_once_the_second_takes_the_next_oldest_of_a_users_trials(space, clock):
    experiment = Experiment.create(Raced(clock=clock), space)
    experiment.enqueue([{"x": at / 100, "n": 1} for at in range(30)], worker="me")
    other = Experiment.open(experiment.store)
    for turn in range(5):
        experiment.store.rival = lambda: other.ask("other")
        assert experiment.ask("me").trial == 2 * turn + 1
        assert experiment.store.rival is None
