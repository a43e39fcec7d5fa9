"""The real trainer, forked by a real worker: the same bits as started by its command, and the same ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from worker_processes import trainer_of

import sweeps
from sweeps.experiment import Experiment
from sweeps.space.definition import Choice, Fixed, Lease, Objective, Program, Search, Space
from sweeps.storage.local import LocalStore

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has warm starts"),
]

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
    *("stage1_9.schedule.warmup_steps=1", "stage2.batch_size=4", "stage2.schedule.warmup_steps=1"),
    *("stage2.lambda_warmup.warmup_steps=3", "eval.batches=2", "eval.batch_size=4", "eval.at=[]"),
    *("samples.enabled=false", "device=cpu", "device.threads=1", "log_every=1"),
)
TIMES = {"train_seconds", "tokens_per_second", "peak_memory_gib", "eval_seconds"}
LINE_TIMES = {
    *("tokens_per_second", "data_seconds", "compute_seconds", "save_seconds", "unix_seconds"),
    *("held_out_seconds", "memory_mib", "peak_memory_mib"),
}
SPACE = Space(
    name="warm",
    objectives=(Objective(metric="final_loss"),),
    parameters=(
        Choice(name="stage2.optimizer.lr", values=(2e-3, 4e-3, 8e-3)),
        Fixed(name="stage2.max_steps", value=6),
    ),
    program=Program(kind="trainer", overrides=TRAINER),
    search=Search(method="grid"),  # takes no Ax, which each worker takes seconds to load
    run_cap=2,
    lease=Lease(heartbeat_s=0.5, expire_s=30, max_attempts=2),
)


class Worker:
    """`sweep worker -v` in a process."""

    def __init__(self, store: LocalStore, folder: Path, *, warm: bool) -> None:
        self._stderr = folder / f"stderr-{time.monotonic_ns()}.txt"
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(sweeps.__file__).parents[1]),
            "STAGESWEEP_CACHE": str(folder.parent / "cache"),
            "STAGESWEEP_WARM_START": "1" if warm else "0",
        }
        with self._stderr.open("w") as stderr:
            command = [sys.executable, "-m", "sweeps", "-v", "worker", "--storage", store.url]
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stderr=stderr)

    def wait(self) -> int:
        return self.process.wait(300)

    def stderr(self) -> str:
        return self._stderr.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the prepared text and teacher, shared by the tests."""
    return tmp_path_factory.mktemp("warm")


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Worker]]:
    """Yield what starts a worker, and kill those that a failed test left behind."""
    started: list[Worker] = []

    def start(store: LocalStore, *, warm: bool) -> Worker:
        started.append(Worker(store, folder, warm=warm))
        return started[-1]

    yield start
    for worker in started:
        worker.kill()


@pytest.fixture
def create(tmp_path: Path) -> Callable[..., LocalStore]:
    def create(name: str, **changes) -> LocalStore:
        store = LocalStore(tmp_path / name)
        Experiment.create(store, replace(SPACE, **changes))
        return store

    return create


def results(store: LocalStore) -> list[tuple[object, ...]]:
    """Return of each trial all that its run computed."""
    found = []
    for record in Experiment.open(store).trials():
        run = store.folder(f"runs/{record.trial:06d}/attempt-{record.attempt}")
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        metrics = {name: value for name, value in record.metrics.items() if name not in TIMES}
        found.append(
            (record.status, record.parameters, metrics, [line | dict.fromkeys(LINE_TIMES) for line in lines])
        )
    return found


def test_the_results_are_the_same_bits(create, start) -> None:
    stores = {warm: create(f"{warm}") for warm in (False, True)}
    workers = {}
    for warm, store in stores.items():
        workers[warm] = start(store, warm=warm)
        assert workers[warm].wait() == 0, workers[warm].stderr()
    assert results(stores[True]) == results(stores[False])
    assert [status for status, *_ in results(stores[True])] == ["completed"] * 2
    assert workers[True].stderr().count("trials are forked from process") == 1
    assert "forked" not in workers[False].stderr()


def test_trial_of_a_stopped_worker_resumes_from_its_checkpoint(create, start) -> None:
    long = tuple(each for each in SPACE.parameters if each.name != "stage2.max_steps")
    program = Program(kind="trainer", overrides=(*TRAINER, "stage2.max_steps=150"))
    store = create("stopped", parameters=long, program=program, run_cap=1)
    worker = start(store, warm=True)
    log = store.folder("runs/000000/attempt-1") / "log.txt"
    while not (log.exists() and "stage2 20/150" in log.read_text()):
        assert worker.process.poll() is None, worker.stderr()
        time.sleep(0.05)
    children = psutil.Process(worker.process.pid).children(recursive=True)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait() == 75, worker.stderr()
    assert not any(child.is_running() for child in children)
    assert "trainer: stopped by SIGTERM" in log.read_text().splitlines()[-1]
    (record,) = Experiment.open(store).trials()
    assert [attempt.reason for attempt in record.history] == ["released"]
    second = start(store, warm=True)
    assert second.wait() == 0, second.stderr()
    assert "going on after step" in log.parents[1].joinpath("attempt-2", "log.txt").read_text()


def test_a_trainer_that_dies_hard_fails_alone(create, start) -> None:
    store = create("killed")
    worker = start(store, warm=True)
    while (trainer := trainer_of(worker.process.pid)) is None:
        assert worker.process.poll() is None, worker.stderr()
        time.sleep(0.01)
    trainer.send_signal(signal.SIGABRT)
    assert worker.wait() == 0, worker.stderr()
    first, second = Experiment.open(store).trials()
    assert (first.status, first.attempt, second.status, second.attempt) == ("completed", 2, "completed", 1)
    assert "SIGABRT" in first.history[0].detail
    assert worker.stderr().count("trials are forked from process") == 1


def test_a_refused_configuration_fails_in_the_trainers_words(create, start) -> None:
    program = Program(kind="trainer", overrides=(*TRAINER, "stage2.optimiser.lr=1"))
    worker = start(store := create("refused", program=program, run_cap=1), warm=True)
    assert worker.wait() == 1
    (record,) = Experiment.open(store).trials()
    assert (record.status, record.failure) == ("failed", "bad_config")
    assert record.error is not None
    assert record.error.startswith("config refused: trainer: error: stage2.optimiser")
