"""Simulated time for blocking code: each thread is a greenlet that yields to SimPy where it would wait.

The code under simulation is not changed. While `simulated_time` is active, its modules' `time` and
`threading` are those of the simulation, as gevent does it; nothing else in it waits. One greenlet runs at a
time and yields only inside `Simulation.wait`, so that a run depends on its seed alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import simpy
from greenlet import getcurrent, greenlet
from simpy.core import SimTime

MODULES = (
    "sweeps.experiment",
    "sweeps.programs.signals",
    "sweeps.search.allocation",
    "sweeps.trials.lease",
    "sweeps.trials.repository",
    "sweeps.transfer.attempt",
    "sweeps.transfer.publishing",
    "sweeps.worker.heartbeat",
    "sweeps.worker.loop",
    "sweeps.worker.trial_run",
)
"""Modules of a worker that wait, or read a clock."""


class Killed(BaseException):
    """Raised in every thread of a machine that has gone: whatever it tries to do then has no effect."""


class Machine:
    """Machine with threads of its own; once `dead`, none of them does anything more."""

    def __init__(self, name: str) -> None:
        self.name, self.dead = name, False
        self.threads: list[Thread] = []


class Thread(greenlet):
    """Thread of a machine.

    Args:
        ended: triggered when it has returned.
    """

    def __init__(self, simulation: Simulation, machine: Machine, act: Callable[[], object]) -> None:
        super().__init__(parent=simulation.hub)
        self._simulation, self.machine, self._act = simulation, machine, act
        self.ended = simulation.env.event()
        self.ticket = 0  # of the wait that it is in; any other wake-up is outdated

    def run(self) -> None:
        try:
            self._act()
        except Killed:
            pass
        except BaseException as error:
            self._simulation.errors.append(error)
        finally:
            self.machine.threads.remove(self)
            if not self.machine.threads:
                self._simulation.machines.pop(self.machine, None)
            self.ended.succeed()


class Simulation:
    """SimPy's environment, with threads that block in it."""

    def __init__(self) -> None:
        self.env, self.hub = simpy.Environment(), getcurrent()
        self.errors: list[BaseException] = []  # of threads that raised; there must be none
        self.machines: dict[Machine, None] = {}  # with threads

    def run(self, until: SimTime | simpy.Event) -> None:
        """Run until a time or an event. Raises the first error of any thread."""
        self.env.run(until)
        if self.errors:
            raise self.errors[0]

    def spawn(self, machine: Machine, act: Callable[[], object]) -> Thread:
        thread = Thread(self, machine, act)
        machine.threads.append(thread)
        self.machines[machine] = None
        self._wake(thread, self.env.timeout(0))
        return thread

    def wait(self, *events: simpy.Event) -> None:
        """Let others run until one of the events is triggered."""
        thread = self.current()
        if thread.machine.dead:
            raise Killed
        for event in events:
            self._wake(thread, event)
        self.hub.switch()

    def sleep(self, seconds: float) -> None:
        self.wait(self.env.timeout(max(0.0, seconds)))

    def current(self) -> Thread:
        thread = getcurrent()
        assert isinstance(thread, Thread), "only threads of the simulation may wait"
        return thread

    def interrupt(self, thread: Thread, error: BaseException) -> None:
        """Raise an error in a thread that waits; to be called by no thread."""
        thread.ticket += 1
        if thread:  # it has begun, and not ended
            thread.throw(error)

    def kill(self, machine: Machine) -> None:
        """End a machine at this instant: what its threads were waiting for never comes."""
        machine.dead = True
        for thread in list(machine.threads):
            self.interrupt(thread, Killed())

    def _wake(self, thread: Thread, event: simpy.Event) -> None:
        ticket = thread.ticket

        def resume(_: simpy.Event) -> None:
            if thread.ticket == ticket and not thread.dead:
                thread.ticket += 1
                thread.switch()

        assert event.callbacks is not None, "the event is over"
        event.callbacks.append(resume)


class Flag:
    """`threading.Event` in simulated time."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self._set = simulation, False
        self._waiting: list[simpy.Event] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        if not self._set:
            self._set = True
            for event in self._waiting:
                event.succeed()

    def wait(self, timeout: float) -> bool:
        if self._set:
            return True
        env = self._simulation.env
        changed = env.event()
        self._waiting.append(changed)
        try:
            self._simulation.wait(changed, env.timeout(max(0.0, timeout)))
        finally:
            self._waiting.remove(changed)
        return self._set


@contextmanager
def simulated_time(simulation: Simulation) -> Iterator[None]:
    """Give the worker's modules the clock and the threads of a simulation."""

    class Time:
        sleep = staticmethod(simulation.sleep)

        @staticmethod
        def monotonic() -> float:
            return float(simulation.env.now)

    class Blocking:
        """`threading.Thread` in simulated time, on the machine of whoever starts it."""

        def __init__(self, *, target: Callable[..., object], args: tuple[Any, ...] = (), **_: object) -> None:
            self._act = lambda: target(*args)
            self._thread: Thread | None = None

        def start(self) -> None:
            self._thread = simulation.spawn(simulation.current().machine, self._act)

        def join(self) -> None:
            if self._thread is not None and not self._thread.ended.triggered:
                simulation.wait(self._thread.ended)

    class Threading:
        Thread = Blocking

        @staticmethod
        def Event() -> Flag:
            return Flag(simulation)

    with replace_modules(MODULES, time=Time, threading=Threading):
        yield


@contextmanager
def replace_modules(users: Sequence[str], **replacements: object) -> Iterator[None]:
    """Replace modules, such as `time`, in each of the modules `users` that imports them."""
    with ExitStack() as stack:
        for user in map(importlib.import_module, users):
            for name, replacement in replacements.items():
                if hasattr(user, name):
                    stack.enter_context(mock.patch.object(user, name, replacement))
        yield
