"""Doctor and repair over a bucket: the same findings, sizes from the bucket, and a clean bill afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest
from fake_gcs import FakeGcs, Fault
from upkeep_cases import healthy, put, tear

from sweeps.experiment import Experiment
from sweeps.storage.gcs import GcsStore
from sweeps.storage.gcs_wire import Patience
from sweeps.upkeep import doctor
from sweeps.upkeep.repair import carry_out, plan
from sweeps.upkeep.survey import survey

QUICK = Patience(total_s=20.0, attempt_s=2.0, first_wait_s=0.02, longest_wait_s=0.2)


@pytest.fixture
def bucket(gcs: FakeGcs) -> Callable[[], GcsStore]:
    url = f"gs://bucket/experiments/{uuid.uuid4().hex}"
    return lambda: GcsStore(url, endpoint=gcs.url, patience=QUICK)


def test_a_sweep_in_a_bucket_is_examined_mended_and_clean(gcs, bucket, space):
    store = bucket()
    experiment = Experiment.create(store, space)
    for record in healthy(store.now()):
        put(store, record)
    put(store, replace(experiment.trial(1), attempt=2))
    store.create("runs/000001/attempt-1/checkpoints/10.safetensors", b"x" * 3000)
    store.create("runs/000001/attempt-1/manifest.json", b"{}")
    torn = tear(experiment)

    diagnosis = doctor.examine(lambda: experiment, expected=True)
    assert {f.kind for f in diagnosis.findings} == {"torn", "superseded"}
    assert "clock" in diagnosis.facts

    steps = plan(experiment, survey(store))
    assert [step.kind for step in steps] == ["torn", "superseded"]
    assert "2.9 KiB" in steps[1].what
    gcs.faults.add(Fault(action="lose_response", times=None, chance=0.2))
    assert [carry_out(step).state for step in steps] == ["done", "done"]
    gcs.faults.clear()

    assert [store.read(entry.key)[0] for entry in store.list("quarantine/")] == [torn]
    assert store.list("runs/") == []
    assert plan(experiment, survey(store)) == []
    assert doctor.examine(lambda: Experiment.open(bucket()), expected=True).findings == ()


def test_a_bucket_with_a_wrong_clock_is_told(gcs, bucket, space):
    gcs.objects.clock_skew_s = -3600.0
    experiment = Experiment.create(bucket(), space)
    diagnosis = doctor.examine(lambda: experiment, expected=True)
    assert [(f.kind, f.level) for f in diagnosis.findings] == [("clock", "problem")]
