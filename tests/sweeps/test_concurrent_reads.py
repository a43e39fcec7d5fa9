"""Records of a far store are read many at once, in order, and the first failure is told."""

from __future__ import annotations

import time
import uuid

import pytest
from fake_gcs import FakeGcs

from sweeps import trial
from sweeps.errors import DamagedObject
from sweeps.experiment import Experiment
from sweeps.storage.gcs import GcsStore
from sweeps.trial import Trial

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


def test_a_damaged_record_among_many_is_named(store):
    _, version = store.read(trial.key(7))
    store.replace(trial.key(7), b"{", version)
    with pytest.raises(DamagedObject, match="000007"):
        Experiment.open(store).trials()
