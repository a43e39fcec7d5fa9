"""What a worker reads of the other trials to decide whether to stop its own early."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from memory_store import MemoryStore

from sweeps.experiment import Experiment
from sweeps.programs import progress_log
from sweeps.space.definition import EarlyTerminate, Lease, Objective, Program, Range, Search, Space
from sweeps.trials import lifecycle
from sweeps.trials.record import key
from sweeps.worker.heartbeat import HeartbeatThread

SPACE = Space(
    name="toy",
    objectives=(Objective(metric="loss"),),
    parameters=(Range(name="x", min=0.0, max=1.0, kind="float"),),
    program=Program(kind="command", command=("true", "${overrides}")),
    search=Search(method="random"),
    early_terminate=EarlyTerminate(percentile=50.0, min_trials=3, min_step=10.0),
    lease=Lease(heartbeat_s=0.02, expire_s=600.0),
)


class CountingStore(MemoryStore):
    """A store that counts what heartbeats read: records by their key, and listings as ""."""

    def __init__(self) -> None:
        super().__init__()
        self.read_by_hearts: Counter[str] = Counter()

    def _count(self, keys: Sequence[str]) -> None:
        if threading.current_thread().name.startswith("heart-"):
            self.read_by_hearts.update(keys)

    def read(self, key: str) -> tuple[bytes, str]:
        self._count([key])
        return super().read(key)

    def list(self, prefix: str):
        self._count([""])
        return super().list(prefix)


def beat(experiment: Experiment, store: CountingStore, beats: int) -> None:
    """Run a trial until its heartbeat has been stored so many times."""
    record = experiment.ask("w")
    heartbeat = HeartbeatThread(experiment, record, lambda *_: None)
    (heartbeat.folder / progress_log.METRICS_FILE).write_text('{"step": 1, "loss": 2.0}\n')
    store.read_by_hearts.clear()
    until = time.monotonic() + 20
    with heartbeat:
        while store.read_by_hearts[key(record.trial)] < beats:
            assert time.monotonic() < until
            time.sleep(0.002)


def test_ended_trials_are_not_read_again_for_each_trial() -> None:
    store = CountingStore()
    experiment = Experiment.create(store, SPACE)
    for _ in range(20):
        done = experiment.ask("w")
        experiment.apply(
            done.trial, lifecycle.Complete(worker="w", attempt=1, metrics={"loss": 1.0}, curve=((1.0, 1.0),))
        )
    beat(experiment, store, 3)
    assert {name for name in store.read_by_hearts if name} == {key(20)}


def test_many_running_trials_are_listed_less_often() -> None:
    store = CountingStore()
    experiment = Experiment.create(store, SPACE)
    for _ in range(40):
        experiment.ask("another")
    beat(experiment, store, 13)
    assert 3 <= store.read_by_hearts[""] <= 5
    few = CountingStore()
    beat(Experiment.create(few, replace(SPACE, name="few")), few, 13)
    assert few.read_by_hearts[""] >= 12
