"""Fake bucket and real worker processes that use it, for fault injection in the benchmarks.

The bucket is the tests' fake, in a process of its own. Workers are forked from a server that has imported
everything; each has its own endpoint of the bucket, and writes an event log.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeps.errors import EXIT_PREEMPTED
from sweeps.experiment import Experiment
from sweeps.space.definition import Lease, Objective, Program, Range, Search, Space, Value
from sweeps.storage.base import Store
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.objects.store import ObjectStore
from sweeps.storage.retries import RetryPolicy
from sweeps.trials import record as trial
from sweeps.trials.record import Trial

TESTS = Path(__file__).parents[1] / "tests"
sys.path.append(str(TESTS))  # the fake bucket is the tests', and is installed nowhere

from fake_gcs import Fault, Remote  # noqa: E402 - it is found only now
from s3_server import ENVIRONMENT, Doors, Weed  # noqa: E402 - likewise

__all__ = [
    "Doors",
    "Fault",
    "Fleet",
    "Remote",
    "bucket",
    "nap",
    "nap_space",
    "open_at",
    "premade",
    "s3_bucket",
]

PRELOAD = [
    "benchmarks.fleet",
    "sweeps.worker.loop",
    "sweeps.search.optimizer",
    "gcsfs.core",
    "sweeps.storage.objects.store",
    "google.api_core.retry",
]


@contextmanager
def bucket(*, latency_s: float, one_write_per_second: bool = True, seed: int = 0) -> Iterator[Remote]:
    """Start a fake bucket in a process of its own."""
    argv = [sys.executable, "-m", "fake_gcs", "--latency-s", str(latency_s), "--seed", str(seed)]
    argv += ["--one-write-per-second"] if one_write_per_second else []
    with subprocess.Popen(argv, cwd=TESTS, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Remote(json.loads(process.stdout.readline())["url"])
        finally:
            process.terminate()


@contextmanager
def s3_bucket(*, seed: int = 0) -> Iterator[Doors]:
    """Start a real S3 server in a process of its own, behind doors in this one."""
    with Weed() as server, Doors(server.url, seed) as doors:
        yield doors


def open_at(url: str, endpoint: str, retries: RetryPolicy | None = None) -> Store:
    """Return the store of a sweep in one of the two buckets."""
    if url.startswith("gs://"):
        return GcsStore(url, endpoint=endpoint, retries=retries)
    os.environ.update(ENVIRONMENT)
    return ObjectStore(url, endpoint=endpoint, retries=retries)


# ---- the work


def nap(parameters: Mapping[str, Value]) -> dict[str, float]:
    """Sleep, and return an objective that is unique to these parameters."""
    time.sleep(float(parameters["seconds"]))
    return {"loss": loss_of(parameters)}


def loss_of(parameters: Mapping[str, Value]) -> float:
    return float(parameters["seconds"]) * 2 + 1


def nap_space(*, name: str, trials: int, seconds: tuple[float, float], lease: Lease) -> Space:
    """Return a sweep over naps; its candidates come from the Sobol sequence, so that no model is fitted."""
    low, high = seconds
    return Space(
        name=name,
        objectives=(Objective(metric="loss"),),
        parameters=(Range(name="seconds", min=low, max=high, kind="float"),),
        program=Program(kind="function", function="benchmarks.fleet:nap"),
        search=Search(method="random", seed=0),
        run_cap=trials,
        lease=lease,
    )


def premade(store: Store, index: int, seconds: float, *, done: bool = False) -> None:
    """Store a pending trial, or one that ended long ago."""
    parameters = {"seconds": seconds}
    record = Trial(
        trial=index,
        status="completed" if done else "pending",
        parameters=parameters,
        generator="sobol",
        created=store.now(),
        **({"attempt": 1, "metrics": {"loss": loss_of(parameters)}, "ended": store.now()} if done else {}),
    )
    store.create(trial.key(index), trial.encode(record, f"premade-{index}"))


# ---- the workers


@dataclass(kw_only=True)
class Member:
    """Worker process, and the signals that it was sent."""

    name: str
    process: Any
    sent: list[int] = field(default_factory=list)

    @property
    def hurt(self) -> bool:
        """Return True where our signals may have ended its heartbeats."""
        return not {signal.SIGKILL, signal.SIGSTOP}.isdisjoint(self.sent) or self.rushed

    @property
    def rushed(self) -> bool:
        """Return True after a second SIGTERM, on which it exits at once without handing its trial back."""
        return self.sent.count(signal.SIGTERM) > 1

    def ended_well(self) -> bool:
        """Return True where it ended as it should after the signals that it was sent."""
        expected = {0, EXIT_PREEMPTED} if self.rushed else {0}
        return signal.SIGKILL in self.sent or self.process.exitcode in expected

    def signal(self, signum: int) -> None:
        self.sent.append(signum)
        if self.process.is_alive():
            os.kill(self.process.pid, signum)


class Fleet:
    """Workers over one sweep in one bucket."""

    def __init__(self, remote: Remote | Doors, url: str, retries: RetryPolicy) -> None:
        self.remote, self.url, self.retries = remote, url, retries
        self.members: dict[str, Member] = {}
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self._logs = Path(tempfile.mkdtemp(prefix="fleet-"))
        weakref.finalize(self, shutil.rmtree, self._logs, ignore_errors=True)

    def start(self, count: int) -> float:
        """Start workers that all begin at once, and return the time of that."""
        gate = self._context.Barrier(count + 1)
        for _ in range(count):
            self.add(gate=gate)
        gate.wait(timeout=120)
        return time.monotonic()

    def add(self, *, skew_s: float = 0.0, gate: Any = None) -> Member:
        """Start one worker, whose machine's clock is wrong by `skew_s` seconds."""
        name = f"worker-{len(self.members)}"
        identity = (name, str(self._logs / name), skew_s)
        process = self._context.Process(
            target=_member, args=(self.url, self.remote.door(name), self.retries, *identity, gate)
        )
        process.start()
        self.members[name] = Member(name=name, process=process)
        return self.members[name]

    def alive(self) -> list[Member]:
        return [member for member in self.members.values() if member.process.is_alive()]

    def join(self, timeout_s: float) -> None:
        """Wait for all workers; kill those that remain, and raise RuntimeError."""
        deadline = time.monotonic() + timeout_s
        for member in self.members.values():
            member.process.join(max(0.0, deadline - time.monotonic()))
        stuck = [member.name for member in self.alive()]
        for member in self.alive():
            member.process.kill()
            member.process.join()
        if stuck:
            raise RuntimeError(f"still there after {timeout_s:g} s: {', '.join(stuck)}")

    def events(self) -> list[dict[str, Any]]:
        """Return the workers' events in the order of time, without the truncated line of a killed one."""
        entries = []
        for page in self._logs.iterdir():
            for line in page.read_text(encoding="utf-8").splitlines(keepends=True):
                if line.endswith("\n"):
                    entries.append({"worker": page.name, **json.loads(line)})
        return sorted(entries, key=lambda entry: float(entry["at"]))

    def deaths(self) -> list[str]:
        """Return the workers that failed without having been killed, with their errors.

        SIGTERM ends a process that is still importing, before it has handled any trial; that is no failure.
        """
        events = self.events()
        last_words = {entry["worker"]: entry["why"] for entry in events if entry["event"] == "died"}
        active = {entry["worker"] for entry in events}
        return [
            f"{member.name} ({member.process.exitcode}) {last_words.get(member.name, '')}".strip()
            for member in self.members.values()
            if not member.ended_well()
            and not (member.process.exitcode == -signal.SIGTERM and member.name not in active)
        ]


def _member(
    url: str, endpoint: str, retries: RetryPolicy, name: str, log: str, skew_s: float, gate: Any
) -> None:
    """Run `sweep worker`, on a machine whose clock may be wrong."""
    from sweeps.programs.signals import Stop
    from sweeps.worker.loop import work

    right = time.time
    time.time = lambda: right() + skew_s
    random.seed(name)
    stop = Stop()
    stop.listen()
    watcher = _EventLog(log)
    try:
        experiment = _Timed.open(open_at(url, endpoint, retries))
        if gate is not None:
            gate.wait()
        work(experiment, stop=stop, watcher=watcher, name=name)
    except Exception as error:
        watcher.write("died", why=f"{type(error).__name__}: {error}")
        sys.exit(1)


class _Timed(Experiment):
    """Experiment that records how long the last `ask` took, in seconds."""

    asked_s = 0.0

    def ask(self, worker: str, **options: Any) -> Trial | None:
        start = time.monotonic()
        record = super().ask(worker, **options)
        if record is not None:
            _Timed.asked_s = time.monotonic() - start
        return record


class _EventLog:
    """Watcher that appends a line for every event, in one write, so that a kill truncates at most one."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, event: str, **what: Any) -> None:
        line = json.dumps({"at": time.monotonic(), "event": event, **what}) + "\n"
        os.write(self._file, line.encode())

    def started(self, record: Trial) -> None:
        self.write("started", trial=record.trial, attempt=record.attempt, asked_s=_Timed.asked_s)

    def progressed(self, record: Trial, progress: Mapping[str, Value]) -> None: ...

    def ended(self, record: Trial) -> None:
        self.write(
            "ended",
            trial=record.trial,
            attempt=record.attempt,
            status=record.status,
            metrics=dict(record.metrics),
        )

    def dropped(self, record: Trial, why: str) -> None:
        self.write("dropped", trial=record.trial, attempt=record.attempt, why=why)

    def waiting(self, why: str) -> None: ...

    def closed(self, why: str) -> None:
        self.write("closed", why=why)
