"""The heartbeat thread survives every exception: each of its operations × each kind of exception."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from memory_store import MemoryStore

from sweeps import experiment
from sweeps.errors import DamagedObject, StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.programs import progress_log
from sweeps.space.definition import EarlyTerminate, Lease, Objective, Program, Range, Search, Space
from sweeps.trials import lifecycle, repository
from sweeps.trials import record as trial
from sweeps.worker import early_stopping, heartbeat
from sweeps.worker.heartbeat import HeartbeatThread

HEARTBEAT_S = 0.02
SPACE = Space(
    name="immortal",
    objectives=(Objective(metric="loss"),),
    parameters=(Range(name="x", min=0.0, max=1.0, kind="float"),),
    program=Program(kind="function", function="math:sqrt"),
    search=Search(method="random", seed=1),
    lease=Lease(heartbeat_s=HEARTBEAT_S, expire_s=600, max_attempts=3),
    early_terminate=EarlyTerminate(min_step=1, percentile=50, min_trials=1),
)
RAISED = [
    OverflowError("int too large to convert to float"),
    RecursionError("maximum recursion depth exceeded"),
    MemoryError(),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    OSError(5, "Input/output error"),
    KeyError("loss"),
    TypeError("not a number"),
    AssertionError(),
    StoreUnavailable("away"),
    DamagedObject("trials/000000.json", "torn", "here"),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
]
PARTS: dict[str, tuple[Any, str]] = {
    "read-progress": (progress_log, "progress"),
    "read-losses": (progress_log.LossCurve, "curve"),
    "apply": (Experiment, "apply"),
    "clean": (repository.storable, "event"),
    "redact": (repository, "redact_event"),
    "transition": (lifecycle, "apply"),
    "encode": (trial, "encode"),
    "decode": (trial, "decode"),
    "read-store": (MemoryStore, "read"),
    "write-store": (MemoryStore, "replace"),
    "clock": (MemoryStore, "now"),
    "judge": (early_stopping, "should_stop"),
    "list": (experiment.Experiment, "trials"),
    "log": (heartbeat.log, "warning"),
}


class Running:
    """A running trial with a heartbeat every 20 ms; `shown` is called with the program's progress."""

    def __init__(self) -> None:
        self.shown: Callable[[], None] = lambda: None
        self.experiment = Experiment.create(MemoryStore(), SPACE)
        record = self.experiment.ask("w")
        assert record is not None
        self.heartbeat = HeartbeatThread(self.experiment, record, lambda *_: self.shown())
        (self.heartbeat.folder / progress_log.METRICS_FILE).write_text('{"step": 1, "loss": 2.0}\n')

    def beats(self, count: int = 2) -> None:
        """Wait until the store has received so many more heartbeats."""
        for _ in range(count):
            before = self.experiment.trial(0).heartbeat
            until = time.monotonic() + 20
            while self.experiment.trial(0).heartbeat == before:
                assert time.monotonic() < until, "the heart has stopped"
                time.sleep(0.002)


@pytest.fixture
def running() -> Iterator[Running]:
    made = Running()
    with made.heartbeat:
        made.beats(1)
        yield made
    assert not made.heartbeat.lost


class Trap:
    """Wrapper that raises in the heartbeat thread only: the first few times, or while it is set."""

    def __init__(self, original: Callable[..., Any], error: BaseException) -> None:
        self._original, self._error = original, error
        self.sprung = 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        if threading.current_thread().name.startswith("heart-"):
            self.sprung += 1
            raise self._error
        return self._original(*args, **options)

    def wait(self) -> None:
        until = time.monotonic() + 20
        while self.sprung < 3:
            assert time.monotonic() < until, "the operation is not called, or the heart has stopped"
            time.sleep(0.002)


@contextlib.contextmanager
def trapped(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: BaseException) -> Iterator[Trap]:
    trap = Trap(getattr(owner, name), error)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, (lambda *a, **k: trap(*a, **k)) if isinstance(owner, type) else trap)
        yield trap


DISPENSABLE = ("read-progress", "read-losses", "judge", "list")


@pytest.mark.parametrize("part", [part for part in PARTS if part != "log"])
def test_one_heart_beats_on_after_each_trouble(running, monkeypatch, part):
    """What a heartbeat can do without does not even delay it."""
    for error in RAISED:
        with trapped(monkeypatch, *PARTS[part], error) as trap:
            trap.wait()
            if part in DISPENSABLE:
                running.beats()
        running.beats()
    hearts = [thread.name for thread in threading.enumerate() if thread.name.startswith("heart-")]
    assert hearts == ["heart-0"]


def test_nobody_who_watches_ends_the_heart(running):
    for error in RAISED:

        def gone(error: BaseException = error) -> None:
            raise error

        running.shown = gone
        running.beats(3)


def test_a_log_that_cannot_be_written_does_not_end_the_heart(running, monkeypatch):
    # The same trouble is told once: each time another one.
    for error in RAISED:
        with trapped(monkeypatch, *PARTS["log"], error) as log:
            with trapped(monkeypatch, *PARTS["read-losses"], KeyError(repr(error))) as losses:
                losses.wait()
                running.beats()
            assert log.sprung, error


def test_unstorable_progress_keeps_the_heartbeat(running, monkeypatch, caplog):
    monkeypatch.setattr(repository.storable, "event", lambda event: event)  # as if the cleaning had a hole
    monkeypatch.setattr(progress_log, "progress", lambda folder: {"stage": "\ud800"})
    running.beats(3)
    assert "not be stored" in caplog.text


def test_the_same_trouble_is_told_once(running, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    with trapped(monkeypatch, *PARTS["read-losses"], OverflowError("too large")) as trap:
        trap.wait()
        running.beats()
    lines = [record.getMessage() for record in caplog.records if "losses" in record.getMessage()]
    assert lines == ["trial 0: its losses could not be read: OverflowError: too large"]


def test_a_heart_stops_for_another_owner_and_for_nothing_else():
    running = Running()
    with running.heartbeat:
        running.beats(1)
        running.experiment.apply(0, lifecycle.Release(worker="w", attempt=1))
        until = time.monotonic() + 20
        while not running.heartbeat.lost:
            assert time.monotonic() < until
            time.sleep(0.002)
    assert replace(running.experiment.trial(0), history=()).status == "pending"
