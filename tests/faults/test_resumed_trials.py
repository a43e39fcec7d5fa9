"""A trial that its worker cannot finish resumes elsewhere from its checkpoint, with bit-identical results.

Real workers, each with a disk of its own, over a folder and over the fake bucket; the real trainer.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
from changing_folders import find
from fake_gcs import FakeGcs
from forked import Forked
from run_folders import download
from worker_processes import trainer_of

from sweeps.experiment import Experiment
from sweeps.programs.trainer import TrainerProgram
from sweeps.space.definition import Lease, Objective, Program, Range, Search, Space
from sweeps.storage.base import NotFound, Store
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.local import LocalStore
from sweeps.storage.run_files.manifest import MANIFEST, decode
from sweeps.trials.record import run_prefix
from trainer import api

# Three processes after each other, each of which loads torch: 360 s on a busy machine.
pytestmark = pytest.mark.timeout(600)

TRAINER = (
    *("model.hidden_size=32", "model.intermediate_size=48", "model.layers=2", "model.heads=2"),
    *("model.teacher.max_steps=4", "model.teacher.batch_size=4", "model.teacher.schedule.warmup_steps=1"),
    *(
        "data.max_bytes=300000",
        "data.held_out_fraction=0.2",
        "data.vocab_size=300",
        "data.sequence_length=16",
    ),
    *("stage1.calibration_batches=1", "stage1_9.max_steps=6", "stage1_9.batch_size=4"),
    *("stage1_9.schedule.warmup_steps=1", "stage2.max_steps=200", "stage2.batch_size=4"),
    *("eval.batches=2", "eval.batch_size=4", "device=cpu", "device.threads=1", "log_every=1"),
    "checkpoint.every_steps=20",
)
TIMES = ("train_seconds", "tokens_per_second", "peak_memory_gib", "eval_seconds")
LINE_TIMES = (
    *("tokens_per_second", "data_seconds", "compute_seconds", "save_seconds", "unix_seconds"),
    *("held_out_seconds", "memory_mib", "peak_memory_mib"),
)


@dataclass
class Fleet:
    """Workers on one sweep, each as if on a machine of its own."""

    store: Store
    folder: Path
    cache: Path
    environment: dict[str, str]
    forkserver: ForkServerContext
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self) -> subprocess.Popen[str]:
        worker = subprocess.Popen(
            [sys.executable, "-m", "sweeps", "worker", "--storage", self.store.url, "--max-trials", "1"],
            cwd=self.folder,
            env={**self.environment, "SWEEP_SCRATCH": str(self.folder / f"disk-{len(self.started)}")},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(worker)
        return worker

    def run_folder(self, attempt: int) -> Path:
        """Return the folder of the attempt's files: a copy of the bucket's, where its worker has left none."""
        if isinstance(self.store, LocalStore):
            return self.store.folder(run_prefix(0, attempt))
        for found in self.folder.glob(f"disk-*/**/{run_prefix(0, attempt)}"):
            return found
        copied = self.folder / f"copied-{attempt}"
        assert download(self.store, run_prefix(0, attempt), copied)
        return copied

    def checkpoints(self, attempt: int) -> list[str]:
        pattern = f"**/{run_prefix(0, attempt)}/checkpoints/[0-9]*"
        return sorted(path.name for path in find(self.folder, pattern))

    def in_store(self, attempt: int) -> set[str]:
        """Return the checkpoints that are complete for another machine."""
        if isinstance(self.store, LocalStore):
            return set(self.checkpoints(attempt))
        try:
            files = decode(self.store.read(f"{run_prefix(0, attempt)}/{MANIFEST}")[0])
        except NotFound:
            return set()
        return {name.split("/")[1] for name in files if name.endswith("/state.json")}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the prepared text and teacher, shared by the tests; beside it is the run to compare with."""
    return tmp_path_factory.mktemp("resumed") / "cache"


@pytest.fixture(params=["folder", "bucket"])
def fleet(
    request, gcs: FakeGcs, forkserver: ForkServerContext, tmp_path: Path, cache: Path, monkeypatch
) -> Iterator[Fleet]:
    if request.param == "folder":
        store: Store = LocalStore(tmp_path / "store")
    else:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
        store = GcsStore(f"gs://bucket/resumed/{uuid.uuid4().hex}")
    monkeypatch.setenv("STAGESWEEP_CACHE", str(cache))
    space = Space(
        name="resumed",
        objectives=(Objective(metric="final_loss"),),
        parameters=(Range(name="stage2.optimizer.lr", min=1e-3, max=8e-3, kind="float"),),
        program=Program(kind="trainer", overrides=TRAINER),
        search=Search(method="random", seed=1),
        run_cap=1,
        baseline={
            "stage2.optimizer.lr": 2e-3
        },  # a candidate without Ax, which takes each worker seconds to load
        lease=Lease(heartbeat_s=0.5, expire_s=6, max_attempts=9),
    )
    Experiment.create(store, space)
    environment = dict(os.environ, PYTHONPATH=str(Path(api.__file__).parents[1]), OMP_NUM_THREADS="1")
    fleet = Fleet(store, tmp_path, cache, environment, forkserver)
    yield fleet
    for worker in fleet.started:
        if worker.poll() is None:
            worker.kill()
            worker.communicate()


def wait_until(condition: Callable[[], object], worker: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 150
    while not condition():
        assert worker.poll() is None, worker.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def stop_the_trainer(worker: subprocess.Popen[str]) -> None:
    """Stop the trainer process, so that the next steps do not race with it."""
    trainer = trainer_of(worker.pid)
    assert trainer is not None
    trainer.suspend()


def steps(folder: Path) -> list[int]:
    """Return the steps of Stage 2 that this attempt has logged."""
    log = (folder / "log.txt").read_text()
    return [int(n) for n in re.findall(r"^stage2 (\d+)/200  loss", log, re.MULTILINE)]


def lines(folder: Path) -> list[dict]:
    read = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in LINE_TIMES} for line in read]


def without_times(metrics: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in metrics.items() if name not in TIMES and value is not None}


def check_against_a_run_that_was_never_ended(fleet: Fleet) -> None:
    experiment = Experiment.open(fleet.store)
    (record,) = experiment.trials()
    assert (record.status, record.attempt) == ("completed", 2)
    overrides = TrainerProgram(experiment.space).overrides(record.parameters)
    uninterrupted = fleet.cache.parent / sha256("\n".join(overrides).encode()).hexdigest()
    if not (uninterrupted / "result.json").exists():  # else an earlier test has run it
        _, _, _, _, *given = api.command(overrides, uninterrupted)
        run = Forked(fleet.forkserver, "trainer.__main__", given, cwd=fleet.folder, folder=fleet.folder)
        run.communicate(timeout=300)
        assert run.returncode == 0
    expected = json.loads((uninterrupted / "result.json").read_text())["metrics"]
    assert without_times(record.metrics) == without_times(expected)
    assert lines(fleet.run_folder(2)) == lines(uninterrupted)


@pytest.mark.slow
def test_killed_workers_trial_resumes_on_another(fleet: Fleet) -> None:
    first = fleet.start()
    wait_until(lambda: len(fleet.checkpoints(1)) >= 2, first)
    stop_the_trainer(first)
    newest = max(fleet.checkpoints(1))
    wait_until(lambda: newest in fleet.in_store(1), first)
    first.kill()
    first.communicate()
    second = fleet.start()
    _, stderr = second.communicate(timeout=200)
    assert second.returncode == 0, stderr
    done = int(newest) - 6
    assert steps(fleet.run_folder(2)) == list(range(done + 1, 201))
    message = f"going on after step {done} of stage2, from checkpoint {newest}\n"
    assert message in (fleet.run_folder(2) / "log.txt").read_text()
    (record,) = Experiment.open(fleet.store).trials()
    assert [attempt.reason for attempt in record.history] == ["expired", "completed"]
    check_against_a_run_that_was_never_ended(fleet)


@pytest.mark.slow
@pytest.mark.parametrize("fleet", ["bucket"], indirect=True)
def test_a_worker_that_is_told_to_go_hands_over_the_very_step(fleet: Fleet) -> None:
    first = fleet.start()
    wait_until(lambda: len(fleet.checkpoints(1)) >= 2, first)
    first.send_signal(signal.SIGTERM)
    _, stderr = first.communicate(timeout=60)
    assert first.returncode == 75, stderr
    (record,) = Experiment.open(fleet.store).trials()
    assert (record.status, [attempt.reason for attempt in record.history]) == ("pending", ["released"])
    made = steps(fleet.run_folder(1))
    assert f"{made[-1] + 6:08d}" in fleet.in_store(1)
    second = fleet.start()
    _, stderr = second.communicate(timeout=200)
    assert second.returncode == 0, stderr
    assert made + steps(fleet.run_folder(2)) == list(range(1, 201))
    check_against_a_run_that_was_never_ended(fleet)
    assert fleet.in_store(2) == set()  # a finished trial keeps none
