"""Records of a far store are read many at once, in order, and the first failure is told."""

from __future__ import annotations

import time
import uuid

import pytest
from fake_gcs import FakeGcs, Fault

from sweeps.errors import DamagedObject, StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.retries import RetryPolicy
from sweeps.trials import record as trial
from sweeps.trials.record import Trial

RECORDS, LATENCY_S = 40, 0.05


@pytest.fixture
def store(gcs: FakeGcs, space) -> GcsStore:
    store = GcsStore(f"gs://bucket/tests/{uuid.uuid4().hex}", endpoint=gcs.url)
    Experiment.create(store, space)
    for index in range(RECORDS):
        record = Trial(trial=index, status="pending", parameters={"x": index / 100}, generator="sobol")
        store.create(trial.key(index), trial.encode(record, f"t{index}"))
    gcs.latency_s = LATENCY_S
    return store


def test_many_records_cost_the_time_of_few(store):
    experiment = Experiment.open(store)
    start = time.monotonic()
    records = experiment.trials()
    assert time.monotonic() - start < RECORDS * LATENCY_S / 2
    assert [record.trial for record in records] == list(range(RECORDS))
    assert [record.parameters["x"] for record in records] == [index / 100 for index in range(RECORDS)]


def test_reads_that_go_wrong_among_many_are_sent_again_alone(gcs, store):
    gcs.latency_s = 0.0
    keys = [trial.key(index) for index in range(RECORDS)]
    expected = [store.read(key) for key in keys]
    for fault in (
        Fault(action="lose_response", operation="get", name="*000003.json"),
        Fault(action="lose_request", operation="get", name="*000004.json"),
        Fault(action="status", status=503, operation="get", name="*000005.json", times=2),
    ):
        gcs.faults.add(fault)
    gcs.journal.clear()
    assert store.read_many(keys) == expected
    assert len(gcs.journal.entries("get")) == RECORDS + 4


def test_silent_store_is_not_waited_for_at_each_key(gcs, store):
    quick = RetryPolicy(total_s=0.3, attempt_s=0.2, first_wait_s=0.02, longest_wait_s=0.05)
    cut_off = GcsStore(store.url, endpoint=gcs.door("cut-off"), retries=quick)
    gcs.partition("cut-off", how="hang")
    start = time.monotonic()
    with pytest.raises(StoreUnavailable, match="within"):
        cut_off.read_many([trial.key(index) for index in range(RECORDS)])
    assert time.monotonic() - start < 5.0


def test_an_account_that_may_not_read_is_told_once(gcs, store):
    gcs.faults.add(Fault(action="status", status=403, times=None))
    gcs.journal.clear()
    with pytest.raises(StoreUnavailable, match="access denied"):
        store.read_many([trial.key(index) for index in range(3)])
    assert len(gcs.journal.entries("get")) == 3


def test_a_damaged_record_among_many_is_named(store):
    _, version = store.read(trial.key(7))
    store.replace(trial.key(7), b"{", version)
    with pytest.raises(DamagedObject, match="000007"):
        Experiment.open(store).trials()
