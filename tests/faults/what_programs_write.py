"""Programs and users that write arbitrary data, run in this process, and what must hold afterwards.

A `Sweep` is a real one in memory with a real worker and its heart; only the program's process is replaced, by a
function that writes what a case says into the run folder. `must_be_sound` looks at it as the next worker and a
person would.
"""

from __future__ import annotations

import contextlib
import io
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from memory_store import MemoryStore

from sweeps.cli import main
from sweeps.experiment import Experiment
from sweeps.programs import process
from sweeps.programs.signals import Stop
from sweeps.space.definition import Brake, Fixed, Lease, Objective, Program, Range, Search, Space
from sweeps.storage.base import Store
from sweeps.storage.local import LocalStore
from sweeps.trials import record as trial
from sweeps.trials.record import Trial
from sweeps.worker import loop
from sweeps.worker.progress import Lines

COMMAND = Program(kind="command", command=("true",))
FUNCTION = Program(kind="function", function=f"{__name__}:objective")
SPACE = Space(
    name="anything",
    objectives=(Objective(metric="loss"),),
    parameters=(Range(name="x", min=0.0, max=1.0, kind="float"), Fixed(name="mode", value="fast")),
    program=COMMAND,
    search=Search(method="random", sobol=4, seed=3),
    lease=Lease(heartbeat_s=0.02, expire_s=600, max_attempts=1),
    brake=Brake(first=0, later=0),  # a sweep whose every trial fails goes on here
)


def _is_well() -> dict[str, float]:
    return {"loss": 1.0}


objective_body: Callable[[], Any] = _is_well
"""Body of `objective`, set by a case."""


def objective(parameters: Mapping[str, Any]) -> Any:
    """Call `objective_body`; this is the function of `FUNCTION`."""
    return objective_body()


@dataclass(frozen=True)
class Ran:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Restore what `sweep worker` replaces, so that a run of the tests can still be interrupted."""
    kept = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for signum, handler in kept.items():
            signal.signal(signum, handler)


def sweep(*argv: str) -> Ran:
    """Run the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with _own_signals(), streams[0], streams[1], mock.patch.object(sys, "argv", ["sweep", *argv]):
        try:
            main()
        except SystemExit as left:
            return Ran(int(left.code or 0), out.getvalue(), err.getvalue())
    raise AssertionError("main() returned")


class _Log(logging.Handler):
    """Log handler that keeps lines as users see them."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))


class Sweep:
    """Sweep in memory whose trials run a given function."""

    def __init__(self, program: Program = COMMAND) -> None:
        self.store = MemoryStore()
        self.experiment = Experiment.create(self.store, replace(SPACE, program=program))
        self.log: list[str] = []
        self.dead_threads: list[str] = []

    def run(self, write: Callable[[Path], int]) -> Trial:
        """Let a worker run one trial whose program is `write`: called with its run folder, it returns an exit status."""

        def program(argv: object, *, log_file: Path, env: Mapping[str, str], **_: object) -> int:
            return write(Path(env["SWEEP_RUN_DIR"]))

        with mock.patch.object(process, "run", program):
            return self._work()

    def call(self, function: Callable[[], Any]) -> Trial:
        """Let a worker run one trial whose objective is this Python function."""
        with mock.patch.object(sys.modules[__name__], "objective_body", function):
            return self._work()

    def wait_for_heartbeats(self, count: int = 1) -> None:
        """Wait, inside a program, until its worker has sent so many more."""
        latest = self.experiment.trials()[-1].trial
        for _ in range(count):
            before = self.store.read(trial.key(latest))[1]
            until = time.monotonic() + 20
            while self.store.read(trial.key(latest))[1] == before:
                assert time.monotonic() < until, f"the heart stopped: {self.log[-3:]}"
                time.sleep(0.001)

    def _work(self) -> Trial:
        index = add_pending(self.store)
        with watched(self.log, self.dead_threads), contextlib.redirect_stderr(io.StringIO()) as err:
            limits = loop.Limits(max_trials=1)
            watcher = Lines(self.experiment)
            tally = loop.work(self.experiment, stop=Stop(), watcher=watcher, limits=limits)
        self.log += err.getvalue().splitlines()
        assert tally.ended.total() == 1
        return self.must_read_back(index)

    def must_read_back(self, index: int) -> Trial:
        """Return the record as a new worker reads it, after a check that no thread has died."""
        assert not self.dead_threads
        assert not [line for line in self.log if "Traceback" in line]
        return Experiment.open(self.store).trial(index)

    def must_be_sound(self, folder: Path) -> None:
        """Fail unless commands and a second worker find nothing wrong; `folder` is for a copy."""
        assert not self.dead_threads
        Experiment.open(self.store).trials()
        copy = LocalStore(str(folder))
        for entry in self.store.list(""):
            copy.create(entry.key, self.store.read(entry.key)[0])
        must_be_sound(copy.url)


def add_pending(store: Store) -> int:
    """Add a pending trial and return its index; generating one would take much longer."""
    index = len(store.list(trial.PREFIX))
    fresh = Trial(
        trial=index, status="pending", parameters={"x": index % 997 / 997, "mode": "fast"}, generator="sobol"
    )
    store.create(trial.key(index), trial.encode(fresh, f"pending {index}"))
    return index


def must_be_sound(url: str) -> None:
    """Fail unless `status`, `doctor`, `trials` and a second worker end well on the sweep, without a traceback."""
    dead: list[str] = []
    for argv in (
        ("status",), ("status", "--format", "json"), ("trials",), ("trials", "--format", "json"),
        ("trials", "--format", "csv"), ("doctor",), ("worker", "--exit-when-idle", "--max-trials", "1"),
    ):  # fmt: skip
        with watched([], dead), mock.patch.object(process, "run", _well_behaved):
            ran = sweep(*argv, "--storage", url)
        only_failures = (
            argv == ("doctor",)
            and ran.out.count("problem: ") == ran.out.count("no trial has completed,") == 1
        )
        assert ran.status == only_failures, (argv, ran.err, ran.out)
        assert "Traceback" not in ran.err  # that of a user's function stands in the table, on stdout
    assert not dead


def _well_behaved(argv: object, *, env: Mapping[str, str], **_: object) -> int:
    Path(env["SWEEP_RUN_DIR"], "result.json").write_text('{"loss": 1.0}')
    return 0


@contextlib.contextmanager
def watched(log: list[str], dead_threads: list[str]) -> Iterator[None]:
    """Record log lines, and exceptions that end a thread."""
    handler, hook = _Log(log), threading.excepthook
    logging.getLogger().addHandler(handler)
    threading.excepthook = lambda args: dead_threads.append(f"{args.thread}: {args.exc_value!r}")
    try:
        yield
    finally:
        threading.excepthook = hook
        logging.getLogger().removeHandler(handler)
