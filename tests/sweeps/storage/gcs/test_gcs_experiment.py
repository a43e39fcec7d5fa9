"""Sweep in an unreliable bucket: every trial ends exactly once; number of requests."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from dataclasses import replace

import pytest
from fake_gcs import FakeGcs, Fault
from run_folders import download

from sweeps.experiment import Experiment
from sweeps.programs.signals import Stop
from sweeps.space.definition import Program, Space
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.retries import RetryPolicy
from sweeps.trials import record as trial
from sweeps.trials.lifecycle import Complete
from sweeps.worker.loop import work as work_on
from sweeps.worker.progress import Lines

QUICK = RetryPolicy(total_s=20.0, attempt_s=1.0, first_wait_s=0.02, longest_wait_s=0.2)


@pytest.fixture
def url() -> str:
    return f"gs://bucket/experiments/{uuid.uuid4().hex}"


def work(url: str, endpoint: str, name: str, reported: list[int]) -> None:
    """Do what a worker does, without training: claim, report, claim again."""
    experiment = Experiment.open(GcsStore(url, endpoint=endpoint, retries=QUICK))
    while (record := experiment.ask(name)) is not None:
        loss = float(record.trial)
        done = Complete(worker=name, attempt=record.attempt, metrics={"loss": loss})
        experiment.apply(record.trial, done)
        reported.append(record.trial)


def test_workers_in_bad_weather_end_every_trial_once(gcs: FakeGcs, url: str, space: Space):
    Experiment.create(GcsStore(url, endpoint=gcs.url, retries=QUICK), replace(space, run_cap=12))
    for fault in (
        Fault(action="lose_response", times=None, chance=0.1),
        Fault(action="lose_request", times=None, chance=0.1),
        Fault(action="status", status=503, times=None, chance=0.05),
        Fault(action="status", status=429, times=None, chance=0.05),
    ):
        gcs.faults.add(fault)
    gcs.objects.clock_skew_s = -3600.0
    reported: list[int] = []
    workers = [
        threading.Thread(target=work, args=(url, gcs.door(name), name, reported))
        for name in ("w1", "w2", "w3")
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    gcs.faults.clear()

    records = Experiment.open(GcsStore(url, endpoint=gcs.url, retries=QUICK)).trials()
    assert Counter(reported) == Counter(range(12))
    assert [record.trial for record in records] == list(range(12))
    assert {record.status for record in records} == {"completed"}
    assert {record.attempt for record in records} == {1}  # no lost answer cost a takeover
    assert [record.metrics["loss"] for record in records] == [float(i) for i in range(12)]
    assert len({tuple(sorted(record.parameters.items())) for record in records}) == 12


def test_a_report_costs_one_read_and_one_write(gcs: FakeGcs, url: str, space: Space, let_go_of_leases):
    store = GcsStore(url, endpoint=gcs.url, retries=QUICK)
    experiment = Experiment.create(store, space)
    experiment.ask("w1")
    let_go_of_leases()
    gcs.journal.clear()
    experiment.apply(0, Complete(worker="w1", attempt=1, metrics={"loss": 1.0}))
    assert [(e.operation, e.status) for e in gcs.journal.entries()] == [("get", 200), ("insert", 200)]
    assert [e.name.endswith(trial.key(0)) for e in gcs.journal.entries()] == [True, True]


def test_files_of_a_trial_are_in_the_bucket_for_the_next_machine(
    gcs: FakeGcs, url: str, command_space: Space, tmp_path
):
    code = (
        'mkdir -p "$SWEEP_RUN_DIR/checkpoints/10"; echo weights > "$SWEEP_RUN_DIR/checkpoints/10/model"; echo said; '
        'echo \'{"loss": 1.5}\' > "$SWEEP_RUN_DIR/result.json"'
    )
    program = Program(kind="command", command=("sh", "-c", code, "${overrides}"))
    space = replace(command_space, program=program, run_cap=1)
    experiment = Experiment.create(GcsStore(url, endpoint=gcs.url, retries=QUICK), space)
    work_on(experiment, stop=Stop(), watcher=Lines(experiment))
    assert experiment.trial(0).metrics["loss"] == 1.5
    elsewhere = GcsStore(url, endpoint=gcs.url, retries=QUICK)
    prefix = trial.run_prefix(0, 1)
    folder = elsewhere.folder(prefix)
    files = ["checkpoints/10/model", "log.txt", "result.json", "trial.json"]
    assert sorted(download(elsewhere, prefix, folder)) == files
    assert (folder / "checkpoints/10/model").read_text() == "weights\n"
    assert (folder / "log.txt").read_text() == "said\n"
