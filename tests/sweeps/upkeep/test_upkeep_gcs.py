"""Doctor and repair over a bucket: the same findings, sizes from the bucket, and no findings afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest
from fake_gcs import FakeGcs, Fault
from published import put
from upkeep_cases import healthy, made, tear

from sweeps.experiment import Experiment
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.retries import RetryPolicy
from sweeps.storage.run_files.exchange import Deadline, UploadConfig
from sweeps.storage.run_files.upload import FolderUpload
from sweeps.upkeep import diagnostics, doctor
from sweeps.upkeep.diagnostics import plan
from sweeps.upkeep.inventory import survey
from sweeps.upkeep.repair import carry_out

QUICK = RetryPolicy(total_s=20.0, attempt_s=2.0, first_wait_s=0.02, longest_wait_s=0.2)


@pytest.fixture
def bucket(gcs: FakeGcs) -> Callable[[], GcsStore]:
    url = f"gs://bucket/experiments/{uuid.uuid4().hex}"
    return lambda: GcsStore(url, endpoint=gcs.url, retries=QUICK)


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


def test_a_bucket_with_a_wrong_clock_is_reported(gcs, bucket, space):
    gcs.objects.clock_skew_s = -3600.0
    experiment = Experiment.create(bucket(), space)
    diagnosis = doctor.examine(lambda: experiment, expected=True)
    assert [(f.kind, f.level) for f in diagnosis.findings] == [("clock", "problem")]


def test_interrupted_uploads_are_listed_and_removed(gcs, bucket, space, tmp_path):
    """Old objects that no manifest names; what a manifest names, what is young, and what runs stays."""
    store = bucket()
    experiment = Experiment.create(store, space)
    gcs.objects.clock_skew_s = -2 * 86400.0
    for record in healthy(store.now()):
        put(store, record)
    complete, half, none, running = (f"runs/00000{i}/attempt-1" for i in (0, 1, 2, 3))
    put(store, replace(made(3, x=0.9, now=store.now()), status="running", worker="w", attempt=1))
    (tmp_path / "log.txt").write_text("said")
    for prefix in (complete, half):
        upload = FolderUpload(store, tmp_path, prefix, Deadline(UploadConfig()))
        upload.round(final=True)
    for prefix in (half, none, running):
        store.create(f"{prefix}/checkpoints/10/model", b"x" * 2000)
    gcs.objects.clock_skew_s = 0.0
    store = bucket()  # the clock of the first one remembers
    store.create(f"{complete}/checkpoints/20/model", b"young")
    before = {entry.key for entry in store.list("runs/")}

    steps = plan(experiment, survey(store))
    assert [(step.kind, step.where) for step in steps] == [
        ("half", store.location(half)),
        ("half", store.location(none)),
    ]
    assert all("2.0 KiB" in step.what and "(1 object)" in step.what for step in steps)
    findings = diagnostics.examine(experiment, survey(store))
    assert ("half", "note") in [(f.kind, f.level) for f in findings]
    assert [carry_out(step).state for step in steps] == ["done", "done"]
    gone = {f"{prefix}/checkpoints/10/model" for prefix in (half, none)}
    assert {entry.key for entry in store.list("runs/")} == before - gone
    assert plan(experiment, survey(store)) == []


def test_a_manifest_that_cannot_be_read_keeps_its_objects(gcs, bucket, space):
    gcs.objects.clock_skew_s = -7200.0
    store = bucket()
    experiment = Experiment.create(store, space)
    put(store, healthy(store.now())[0])
    store.create("runs/000000/attempt-1/manifest.json", b'{"schema": 2}')
    store.create("runs/000000/attempt-1/model", b"x")
    gcs.objects.clock_skew_s = 0.0
    assert plan(experiment, survey(bucket())) == []
