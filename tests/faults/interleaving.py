"""Controlled scheduler: real code of workers and of people's commands, in one process, in an order that a test chooses.

Each thread is a greenlet that stops before every operation on the store, where it sleeps, and where it waits. One goes on until it waits,
then the next one that can: that is the first schedule. Time passes only while all wait. Any other schedule has a few deviations from it, each
at one of its steps:

    31:w2       at step 31 another process goes on, here w2
    31:freeze   the process stands still for longer than a lease, then does what it was about to do
    31:kill     the process is gone
    31:lose     the operation is done, and its answer is lost: the store cannot be reached
    31:fail     the operation is not done: the store cannot be reached

A schedule is such a text, and `Simulation(schedule)` repeats it. `one_by_one` yields all with one deviation, `drawn` some with more, by seeds.
Few deviations from one order find most faults: Musuvathi and Qadeer (2007) for preemptions, Emmi, Qadeer and Rakamaric (2011) for delays.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from greenlet import getcurrent, greenlet
from memory_store import MemoryStore

from benchmarks.scale.engine import MODULES as MODULES_THAT_WAIT
from benchmarks.scale.engine import Killed, replace_modules
from sweeps.errors import StoreUnavailable
from sweeps.storage.base import Entry, NotFound

MODULES = (*MODULES_THAT_WAIT, "sweeps.storage.run_files.exchange", "sweeps.transfer.fetching")
MOST_STEPS = 4000
"""A schedule with more steps counts as a livelock."""
FAULTS = ("freeze", "kill", "lose", "fail")


class Violation(AssertionError):
    """A promise of the protocol that a schedule has broken."""


@dataclass(eq=False)
class Process:
    """Process of a simulation; `error` ended it."""

    name: str
    faults: tuple[str, ...] = FAULTS
    dead: bool = False
    frozen_until: float = 0.0
    error: BaseException | None = None
    threads: list[Thread] = field(default_factory=list)


class Thread(greenlet):
    """Thread of a process; ready when the clock is at `wake_at`, or when `is_ready` says so."""

    def __init__(self, simulation: Simulation, process: Process, act: Callable[[], object]) -> None:
        super().__init__(parent=simulation.hub)
        self.process, self._act = process, act
        self.wake_at = simulation.now
        self.is_ready: Callable[[], bool] = lambda: False
        self.over = False

    def run(self) -> None:
        try:
            self._act()
        except Killed:
            pass
        except BaseException as error:
            self.process.error = self.process.error or error
        finally:
            self.over = True


class Simulation:
    """One schedule.

    Args:
        schedule: the deviations, as text.

    Attributes:
        options: what else could have been done at each step.
        steps: number, seconds, process and operation of each.
        broken: the first promise that was broken; raised in a thread, it might be taken for an error of the store.
    """

    def __init__(self, schedule: str = "", *, freeze_s: float = 45.0) -> None:
        self.hub, self.now = getcurrent(), 4e9  # later than the files that are made meanwhile
        self.began = self.now
        self.freeze_s = freeze_s
        self.schedule = schedule
        self._deviations = {int(step): what for step, _, what in (d.partition(":") for d in schedule.split())}
        self.processes: dict[str, Process] = {}
        self.threads: list[Thread] = []
        self.options: list[tuple[str, ...]] = []
        self.steps: list[str] = []
        self.broken: Violation | None = None
        self._next: Thread | None = None  # the one that goes on

    # ---- from outside

    def start(self, name: str, act: Callable[[], object], faults: tuple[str, ...] = FAULTS) -> Process:
        """Add a process; `faults` are those that it may have."""
        process = self.processes[name] = Process(name, faults)
        self._spawn(process, act)
        return process

    def run(self) -> None:
        """Run until no thread is left. Raises `Violation` for a livelock or a deadlock."""
        while True:
            alive = [thread for thread in self.threads if not thread.over and not thread.process.dead]
            if not alive:
                return
            ready = [thread for thread in alive if self._is_ready(thread)]
            if not ready:
                self.now = min(self._due(thread) for thread in alive)
                if self.now == float("inf"):
                    raise Violation("all wait for ever: " + ", ".join(t.process.name for t in alive))
                continue
            chosen = self._next if self._next in ready else ready[0]
            self._next = chosen
            chosen.switch()
            if self.broken is not None:
                raise self.broken

    def end(self) -> None:
        """Throw away what is left of all threads."""
        for process in self.processes.values():
            process.dead = True
        for thread in self.threads:
            if thread and not thread.over:
                thread.throw(Killed())

    # ---- from threads

    @property
    def process(self) -> Process:
        return self.current.process

    @property
    def current(self) -> Thread:
        thread = getcurrent()
        assert isinstance(thread, Thread), "only threads of the simulation may wait"
        return thread

    def spawn(self, act: Callable[[], object]) -> Thread:
        return self._spawn(self.process, act)

    def sleep(self, seconds: float) -> None:
        self.wait(lambda: False, seconds)

    def wait(self, is_ready: Callable[[], bool], timeout: float | None = None) -> None:
        thread = self.current
        if thread.process.dead:
            raise Killed
        thread.is_ready = is_ready
        thread.wake_at = float("inf") if timeout is None else self.now + max(0.0, timeout)
        self._next = None
        self.hub.switch()
        if thread.process.dead:
            raise Killed

    def step(self, what: str, *, kinds: tuple[str, ...]) -> str:
        """Stop before an operation of the current thread; return the fault that it is to have, or ""."""
        thread = self.current
        process = thread.process
        if process.dead:
            raise Killed
        number = len(self.steps)
        if number > MOST_STEPS and self.broken is None:
            self.broken = Violation(f"more than {MOST_STEPS} steps: a livelock")
        if self.broken is not None:
            process.dead = True
            self.hub.switch()
            raise Killed
        self.steps.append(f"{number:4} {self.now - self.began:7.1f} {process.name:4} {what}")
        others = [each.process.name for each in self.threads if self._may_go_on(each) and each is not thread]
        if kinds == ("freeze",):  # its order among the others' operations does not matter
            others = []
        self.options.append((*dict.fromkeys(others), *(fault for fault in process.faults if fault in kinds)))
        deviation = self._deviations.get(number, "")
        if deviation not in self.options[-1]:
            return ""
        self.steps[-1] += f"   <- {deviation}"
        if deviation in ("lose", "fail"):
            return deviation
        if deviation == "kill":
            process.dead = True
        elif deviation == "freeze":
            process.frozen_until = self.now + self.freeze_s
        thread.wake_at, thread.is_ready = self.now, lambda: False
        self._next = next(
            (
                each
                for each in self.threads
                if each.process.name == deviation and self._may_go_on(each) and each is not thread
            ),
            None,
        )
        self.hub.switch()
        if process.dead:
            raise Killed
        return ""

    # ---- inside

    def _spawn(self, process: Process, act: Callable[[], object]) -> Thread:
        thread = Thread(self, process, act)
        process.threads.append(thread)
        self.threads.append(thread)
        return thread

    def _may_go_on(self, thread: Thread) -> bool:
        return not thread.over and not thread.process.dead and self._is_ready(thread)

    def _is_ready(self, thread: Thread) -> bool:
        if thread.process.frozen_until > self.now:
            return False
        return thread.wake_at <= self.now or thread.is_ready()

    def _due(self, thread: Thread) -> float:
        at = self.now if thread.is_ready() else thread.wake_at
        return max(at, thread.process.frozen_until)


class SimulatedStore(MemoryStore):
    """`MemoryStore` whose callers stop before each operation.

    Args:
        check: called after each write with its key, the bytes there before and the new ones (None: no object).
    """

    def __init__(
        self, simulation: Simulation, check: Callable[[str, bytes | None, bytes | None], None]
    ) -> None:
        super().__init__(clock=lambda: simulation.now)
        self._simulation, self._check = simulation, check

    @property
    def objects(self) -> dict[str, tuple[bytes, str, float]]:
        """Return what is stored, at no step."""
        return self._objects

    def read(self, key: str) -> tuple[bytes, str]:
        return self._do("read", key, lambda: super(SimulatedStore, self).read(key))

    def read_many(self, keys):
        read = super().read

        def each(key):
            try:
                return read(key)
            except NotFound:
                return None

        return self._do("read_many", " ".join(keys), lambda: [each(key) for key in keys])

    def create(self, key: str, data: bytes) -> str:
        return self._do("create", key, lambda: super(SimulatedStore, self).create(key, data), writes=True)

    def replace(self, key: str, data: bytes, expected: str) -> str:
        return self._do(
            "replace", key, lambda: super(SimulatedStore, self).replace(key, data, expected), writes=True
        )

    def delete(self, key: str, expected: str) -> None:
        def delete() -> None:
            super(SimulatedStore, self).delete(key, expected)

        return self._do("delete", key, delete, writes=True)

    def list(self, prefix: str) -> list[Entry]:
        return self._do("list", prefix, lambda: super(SimulatedStore, self).list(prefix))

    def now(self) -> float:
        if isinstance(getcurrent(), Thread):
            self._simulation.step("now", kinds=("freeze",))
        return super().now()

    def folder(self, prefix: str) -> Path:
        if isinstance(getcurrent(), Thread) and prefix.startswith("stages"):
            self._simulation.step(f"folder {prefix}", kinds=("freeze", "kill"))
        return super().folder(prefix)

    def _do(self, operation: str, key: str, act: Callable[[], Any], *, writes: bool = False) -> Any:
        if not isinstance(getcurrent(), Thread):
            return act()
        fault = self._simulation.step(
            f"{operation} {key}", kinds=FAULTS if writes else ("freeze", "kill", "fail")
        )
        if fault == "fail":
            raise StoreUnavailable("the store is out of reach")
        before = self._objects.get(key, (None,))[0]
        done = act()
        after = self._objects.get(key, (None,))[0]
        if writes and before != after:
            self._check(key, before, after)
        if fault == "lose":
            raise StoreUnavailable("the store is out of reach")
        return done


@contextmanager
def simulated_time(simulation: Simulation) -> Iterator[None]:
    """Give the worker's modules the clock and the threads of a simulation."""

    class Time:
        sleep = staticmethod(simulation.sleep)

        @staticmethod
        def monotonic() -> float:
            return simulation.now

        time = monotonic

    class Event:
        def __init__(self) -> None:
            self._set = False

        def is_set(self) -> bool:
            return self._set

        def set(self) -> None:
            self._set = True

        def wait(self, timeout: float | None = None) -> bool:
            if not self._set:
                simulation.wait(self.is_set, timeout)
            return self._set

    class Blocking:
        def __init__(self, *, target: Callable[..., object], args: tuple[Any, ...] = (), **_: object) -> None:
            self._act = lambda: target(*args)
            self._thread: Thread | None = None

        def start(self) -> None:
            self._thread = simulation.spawn(self._act)

        def is_alive(self) -> bool:
            return self._thread is not None and not self._thread.over

        def join(self, timeout: float | None = None) -> None:
            if self.is_alive():
                simulation.wait(lambda: not self.is_alive(), timeout)

    class Threading:
        pass

    Threading.Thread, Threading.Event = Blocking, Event
    with replace_modules(MODULES, time=Time, threading=Threading):
        yield


def one_by_one(options: list[tuple[str, ...]]) -> Iterator[str]:
    """Yield every schedule with one deviation from that which had these options."""
    for step, others in enumerate(options):
        for other in others:
            yield f"{step}:{other}"


def drawn(options: list[tuple[str, ...]], deviations: int, seed: int) -> str:
    """Return a schedule with so many deviations, drawn by a seed; the later ones may find another process at their step."""
    chance = random.Random(seed)
    steps = chance.sample([step for step, others in enumerate(options) if others], deviations)
    return " ".join(f"{step}:{chance.choice(options[step])}" for step in sorted(steps))
