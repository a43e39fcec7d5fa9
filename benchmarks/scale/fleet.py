"""Fleet of simulated machines, each of which runs the real `work` of a worker; faults, and what is counted.

Real are the worker's loop, asking, leases, records, heartbeats, takeovers, the handling of signals, and the
draws of the Sobol sequence. Simulated are the bucket, the machines, the clock and the trainer's program. Run
folders are not uploaded: checkpoints are taken to be stored as soon as they are written.
"""

from __future__ import annotations

import functools
import logging
import math
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import simpy

from benchmarks.chaos import problems_of
from benchmarks.fleet import loss_of
from benchmarks.scale.bucket import EPOCH, SERVICES, Bucket, SimulatedStore
from benchmarks.scale.engine import Flag, Machine, Simulation, simulated_time
from sweeps.errors import Interrupted, SweepError
from sweeps.experiment import Experiment
from sweeps.programs.base import Program
from sweeps.programs.result import Completed, Outcome, Preempted
from sweeps.programs.signals import Stop
from sweeps.search import allocation
from sweeps.search.optimizer import Optimizer
from sweeps.space.definition import Lease, Objective, Range, Search, Space, Value
from sweeps.space.definition import Program as ProgramSpec
from sweeps.trials import record as trial_record
from sweeps.trials.record import Generator, Trial
from sweeps.worker import heartbeat, loop, trial_run

NOTICE_S = 30.0
REPLACEMENT_S = (60.0, 600.0)
"""A lost machine's successor starts after so long."""
CRASHED_S = 30.0
"""An engine starts a worker again so long after it exited with an error."""
IMPORT_S = 4.0
"""To import Ax: measured."""
CHECKPOINT_S, WRITE_CHECKPOINT_S = 600.0, 5.0
POLL_S = 30.0
"""The program's look at whether it should stop, but for notices, which it sees at once."""
SOBOL_S = 0.005
"""Measured: 2.5 to 4 ms."""
SURROGATE_S = ((0, 0.1), (30, 0.43), (100, 0.43), (300, 0.95), (1000, 12.0))
"""CPU seconds of a surrogate's candidate by results, from RESULTS.md; held at 1,000, beyond not measured.

That at 1,000 is from before the fit's tolerance grew with the results: it is 6 s since."""
FIRST_TRIALS = 6
REGIONS = 4


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Scenario to simulate.

    Args:
        trials: in all; the run cap.
        search: `sobol`: random search; `modelled`: its points, under the surrogate's name and taking its
            measured time; `botorch`: the real surrogate, whose CPU time is simulated time.
        start_s: the machines' workers start within so many seconds.
        trial_s: shortest and longest trial; its length is log-uniform.
        notice_h, kill_h: mean hours of a machine until it is preempted with a notice, or without; 0: never.
        outage_at_s: when a quarter of the machines loses the bucket for `outage_s`; 0: never.
        until_s: end of the simulation, whatever is left then; 0: that of the sweep.
    """

    workers: int
    trials: int
    service: str = "gs"
    search: str = "sobol"
    seed: int = 0
    start_s: float = 60.0
    trial_s: tuple[float, float] = (600.0, 36_000.0)
    notice_h: float = 24.0
    kill_h: float = 72.0
    outage_at_s: float = 7200.0
    outage_s: float = 3600.0
    until_s: float = 0.0


@dataclass
class Report:
    """Measurements of a simulated scenario.

    Attributes:
        alive_s: seconds of all workers; `asking_s` of them before a program ran, `reporting_s` after it, and
            `leaving_s` after the last trial had begun.
        redone_s: seconds of programs that were lost with their machines.
        stale_results, unknown_trials: at each candidate's storing, results that had ended and trials that
            existed, of which the search did not know.
        takeovers: seconds from a machine's end to the next attempt, by how it ended.
        waits_s: seconds of each wait for a trial, until its program ran.
    """

    scenario: Scenario
    hours: float = 0.0
    cpu_s: float = 0.0
    first_trial_s: list[float] = field(default_factory=list)
    alive_s: float = 0.0
    asking_s: float = 0.0
    reporting_s: float = 0.0
    leaving_s: float = 0.0
    running_s: float = 0.0
    redone_s: float = 0.0
    waits_s: list[float] = field(default_factory=list)
    stale_results: list[int] = field(default_factory=list)
    unknown_trials: list[int] = field(default_factory=list)
    takeovers: dict[str, list[float]] = field(default_factory=lambda: {"notice": [], "kill": []})
    events: Counter[str] = field(default_factory=Counter)
    trials: int = 0
    completed: int = 0
    lost_most: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    peak: dict[str, int] = field(default_factory=dict)
    usd: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def coordination(self) -> float:
        """Return the share of the workers' time for asking and reporting, without the sweep's end."""
        return (self.asking_s + self.reporting_s) / max(1.0, self.alive_s - self.leaving_s)


class Member(Machine):
    """Machine with one worker, who watches it."""

    def __init__(self, fleet: Fleet, slot: int, number: int) -> None:
        super().__init__(f"worker-{slot}-{number}")
        self.fleet, self.region = fleet, f"region-{slot % REGIONS}"
        self.stop, self.noticed = Stop(), Flag(fleet.simulation)
        self.began = self.since = fleet.now()
        self.running: int | None = None
        self.over = fleet.simulation.env.event()

    # ---- a `Watcher`

    def started(self, record: Trial) -> None:
        self.fleet.begin(self, record)

    def ended(self, record: Trial) -> None:
        fleet = self.fleet
        fleet.report.reporting_s += fleet.now() - self.since
        self.since = fleet.now()
        report = {"worker": self.name, "attempt": record.attempt, "metrics": dict(record.metrics)}
        if record.status == "completed":
            fleet.accepted.setdefault(record.trial, []).append(report)

    def dropped(self, record: Trial, why: str) -> None:
        self.fleet.report.events["dropped"] += 1
        self.since = self.fleet.now()

    def progressed(self, record: Trial, progress: Mapping[str, Value]) -> None: ...
    def waiting(self, why: str) -> None: ...
    def closed(self, why: str) -> None: ...


class Nap(Program):
    """The trainer's program in simulated time, with a checkpoint every ten minutes."""

    def __init__(self, fleet: Fleet, space: Space) -> None:
        super().__init__(space)
        self._fleet = fleet

    def require_startable(self) -> None: ...

    def command_line(self, record: Trial, *, run_dir: str = "runs/best") -> str:
        raise NotImplementedError  # only a person's question asks for it

    def run(
        self, record: Trial, folder: Path, *, stop: Stop, wants_stop: Callable[[], bool], **_: bool
    ) -> Outcome:
        fleet, index = self._fleet, record.trial
        member = fleet.simulation.current().machine
        assert isinstance(member, Member)
        began, first = fleet.now(), fleet.saved.get(index, 0.0)
        full = float(record.parameters["seconds"])
        member.running, fleet.done[member.name] = index, first
        try:
            while True:
                done = fleet.done[member.name] = min(full, first + fleet.now() - began)
                if done - fleet.saved.get(index, 0.0) >= CHECKPOINT_S and not fleet.is_cut(member):
                    fleet.saved[index] = done
                if done > full - 1e-3:  # a shorter wait might not move the clock
                    fleet.with_result.add(index)
                    return Completed(metrics={"loss": loss_of(record.parameters)})
                if stop.requested or wants_stop():
                    if not wants_stop():
                        fleet.simulation.sleep(WRITE_CHECKPOINT_S)
                        fleet.saved[index] = max(done, fleet.saved.get(index, 0.0))
                    return Preempted(detail="")
                member.noticed.wait(min(POLL_S, full - done))
        finally:
            fleet.report.running_s += fleet.now() - began
            if not member.dead:
                member.running, member.since = None, fleet.now()


class Fleet:
    """Workers of one scenario, each replaced when its machine is lost."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.report = scenario, Report(scenario=scenario)
        self.simulation = Simulation()
        self.chance = random.Random(scenario.seed)
        self.bucket = Bucket(
            self.simulation, SERVICES[scenario.service], np.random.default_rng(scenario.seed)
        )
        self.space = Space(
            name="scale",
            objectives=(Objective(metric="loss"),),
            parameters=(
                Range(
                    name="seconds",
                    min=scenario.trial_s[0],
                    max=scenario.trial_s[1],
                    kind="float",
                    log=True,
                ),
            ),
            program=ProgramSpec(kind="function", function="benchmarks.fleet:nap"),
            search=Search(method="bayes" if scenario.search == "botorch" else "random", seed=scenario.seed),
            run_cap=scenario.trials,
            lease=Lease(max_attempts=20),
        )
        self.optimizer = Optimizer(self.space)
        self.saved: dict[int, float] = {}  # seconds of each trial in its last checkpoint
        self.done: dict[str, float] = {}  # by worker, of its trial
        self.with_result: set[int] = set()  # trials whose program has completed
        self.accepted: dict[int, list[dict[str, object]]] = {}
        self.gone: dict[str, tuple[str, float]] = {}  # worker → how and when its machine was lost
        self.full_at = math.inf  # when the last trial was made
        self.folder = Path()  # for run folders

    def now(self) -> float:
        return float(self.simulation.env.now)

    def is_cut(self, member: Member) -> bool:
        return member.region in self.bucket.cut

    def run(self) -> Report:
        """Run the scenario to its end. Raises an error that ended a thread, but not those of the store."""
        report, env, cpu = self.report, self.simulation.env, time.process_time()
        random.seed(self.scenario.seed)
        founder = Member(self, 0, -1)
        store = self._store(founder)
        self.simulation.spawn(founder, lambda: Experiment.create(store, self.space))
        self.simulation.run(founder.threads[0].ended)
        slots = [env.process(self._slot(slot)) for slot in range(self.scenario.workers)]
        if self.scenario.outage_at_s:
            env.process(self._outage())
        until: float | simpy.Event = env.all_of(slots)
        if self.scenario.until_s:
            until = env.any_of([until, env.timeout(self.scenario.until_s)])
        self.simulation.run(until)
        report.hours = self.now() / 3600
        for member in self.simulation.machines:
            if isinstance(member, Member):
                report.alive_s += self.now() - member.began
                report.asking_s += self.now() - member.since if member.running is None else 0.0
        bucket = self.bucket
        report.requests, report.refused = bucket.requests.copy(), bucket.refused.copy()
        report.usd = bucket.usd()
        report.peak = {kind: rate.peak for kind, rate in bucket.rates.items()}
        report.cpu_s = time.process_time() - cpu
        self._account()
        return report

    # ---- machines

    def _store(self, member: Member) -> SimulatedStore:
        return SimulatedStore(self.bucket, member, member.region, self.folder)

    def _slot(self, slot: int) -> Iterator[simpy.Event]:
        """Keep one worker running until one finds nothing left to do."""
        env, chance = self.simulation.env, self.chance
        yield env.timeout(chance.uniform(0.0, self.scenario.start_s))
        for number in range(1_000_000):
            member = Member(self, slot, number)
            self.simulation.spawn(member, lambda member=member: self._work(member))
            for mean_h, lose in ((self.scenario.notice_h, self._notify), (self.scenario.kill_h, self._kill)):
                if mean_h:
                    due = env.timeout(chance.expovariate(1 / (mean_h * 3600)))
                    due.callbacks.append(lambda _, member=member, lose=lose: lose(member))
            how = yield member.over
            if how == "finished":
                return
            yield env.timeout(CRASHED_S if how == "crashed" else chance.uniform(*REPLACEMENT_S))

    def _work(self, member: Member) -> None:
        how = "lost"
        try:
            tally = loop.work(
                Experiment.open(self._store(member)), stop=member.stop, watcher=member, name=member.name
            )
            how = "preempted" if tally.preempted_by else "finished"
            if how == "finished":
                self.report.leaving_s += self.now() - member.since
        except SweepError as error:
            how = "crashed"
            self.report.asking_s += self.now() - member.since
            self.report.events[type(error).__name__] += 1
        except Exception as error:  # whatever ends a worker is a finding
            self.report.problems.append(f"{member.name} died: {error!r}")
        finally:
            self.report.alive_s += self.now() - member.began
            member.over.succeed(how)

    def _notify(self, member: Member) -> None:
        """Send SIGTERM; the machine goes 30 s later, whether its worker has left or not."""
        if member.over.triggered:
            return
        self.report.events["notice"] += 1
        self.gone[member.name] = ("notice", self.now())
        worker = member.threads[0]
        try:
            member.stop._handle(signal.SIGTERM, None)
        except Interrupted as interrupted:
            self.simulation.interrupt(worker, interrupted)
        member.noticed.set()
        last = self.simulation.env.timeout(NOTICE_S)
        assert last.callbacks is not None
        last.callbacks.append(lambda _: self._lose(member))

    def _kill(self, member: Member) -> None:
        if not member.over.triggered:
            self.report.events["kill"] += 1
            self.gone.setdefault(member.name, ("kill", self.now()))
            self._lose(member)

    def _lose(self, member: Member) -> None:
        if member.over.triggered:
            return
        if member.running is not None:
            self.report.redone_s += self.done[member.name] - self.saved.get(member.running, 0.0)
        self.simulation.kill(member)

    def _outage(self) -> Iterator[simpy.Event]:
        yield self.simulation.env.timeout(self.scenario.outage_at_s)
        self.bucket.cut.add("region-0")
        yield self.simulation.env.timeout(self.scenario.outage_s)
        self.bucket.cut.clear()

    def begin(self, member: Member, record: Trial) -> None:
        report, waited_s = self.report, self.now() - member.since
        if member.began == member.since and member.name.endswith("-0"):
            report.first_trial_s.append(waited_s)
        if member.since > self.full_at:  # it stayed for trials that others might lose
            report.leaving_s += waited_s
        else:
            report.waits_s.append(waited_s)
            report.asking_s += waited_s

    # ---- at the end

    def _account(self) -> None:
        """Check the records, and add what they tell to the report."""
        report = self.report
        records = [
            trial_record.decode(data)
            for entry in self.bucket.list(trial_record.PREFIX)
            if (found := self.bucket.read(entry.key)) is not None and (data := found[0])
        ]
        if [record.trial for record in records] != list(range(len(records))):
            report.problems.append("indices have gaps")
        if not self.scenario.until_s and len(records) != self.scenario.trials:
            report.problems.append(f"{len(records)} trials of {self.scenario.trials}")
        if len({record.parameters["seconds"] for record in records}) != len(records):
            report.problems.append("two trials have the same candidate")
        report.trials = len(records)
        for record in records:
            accepted = self.accepted.get(record.trial, [])
            if record.finished or not self.scenario.until_s:
                report.problems += [f"trial {record.trial}: {what}" for what in problems_of(record, accepted)]
            elif accepted:
                report.problems.append(f"trial {record.trial}: its report is lost")
            starts = [*(attempt.start for attempt in record.history[1:]), record.started]
            if record.status == "pending":
                starts.pop()
            for attempt, following in zip(record.history, starts, strict=False):
                if attempt.reason not in ("expired", "released") or following is None:
                    continue
                how, at = self.gone.get(attempt.worker, ("cut", math.inf))
                if EPOCH + at > following:  # an expired attempt ends at its last heartbeat
                    report.events["taken from the living"] += 1
                else:
                    report.takeovers[how].append(following - EPOCH - at)
            lost = sum(attempt.reason == "expired" for attempt in record.history)
            report.lost_most = max(report.lost_most, lost)
            report.completed += record.status == "completed"


@contextmanager
def _substitutes(fleet: Fleet) -> Iterator[None]:
    """Let workers run naps, share one optimizer, and take as long to ask as it was measured."""
    scenario, simulation = fleet.scenario, fleet.simulation
    real, asked = allocation.Allocator.candidate, allocation.Allocator._ax
    random_search = allocation.Allocator._random
    imported: set[str] = set()

    def optimizer(self: allocation.Allocator) -> Optimizer:
        # The same records give the same candidate, by whichever optimizer: a thousand of them would fill the
        # memory.
        name = simulation.current().machine.name
        if name not in imported:
            imported.add(name)
            simulation.sleep(IMPORT_S)
        return fleet.optimizer

    def candidate(self: allocation.Allocator, records: list[Trial]) -> tuple[dict[str, Value], Generator]:
        began = time.process_time()
        parameters, generator = real(self, records)
        seconds = SOBOL_S
        if scenario.search == "botorch":
            seconds = time.process_time() - began
        elif scenario.search == "modelled" and len(records) >= FIRST_TRIALS:
            results = sum(record.status == "completed" for record in records)
            seconds, generator = float(np.interp(results, *zip(*SURROGATE_S, strict=True))), "botorch"
        simulation.sleep(seconds)
        if len(records) + 1 >= scenario.trials:
            fleet.full_at = fleet.now()
        known = sum(record.status == "completed" for record in records)
        fleet.report.stale_results.append(len(fleet.with_result) - known)
        fleet.report.unknown_trials.append(fleet.bucket.count(trial_record.PREFIX) - len(records))
        return parameters, generator

    old: list[tuple[Any, str, object]] = [
        (allocation.Allocator, "_ax", asked),
        (allocation.Allocator, "candidate", real),
        (allocation.Allocator, "_random", random_search),
        (loop, "program_of", loop.program_of),
        (heartbeat, "POLL_S", heartbeat.POLL_S),
        (trial_record, "decode", trial_record.decode),
        (trial_run, "hold", trial_run.hold),
    ]
    new = (
        optimizer,
        candidate,
        None if scenario.search == "modelled" else random_search,  # the surrogate's workers import Ax
        lambda space, function=None: Nap(fleet, space),
        math.inf,  # nothing logs progress: once per half heartbeat will do
        functools.lru_cache(maxsize=200_000)(trial_record.decode),  # pure; a thousand read the same bytes
        lambda folder: None,  # the folder is that of all, and nothing is written there
    )
    logging.disable(logging.CRITICAL)
    try:
        for (where, name, _), value in zip(old, new, strict=True):
            setattr(where, name, value)
        with simulated_time(simulation):
            yield
            for machine in list(simulation.machines):  # what still waits must not go on by the real clock
                simulation.kill(machine)
    finally:
        for where, name, value in old:
            setattr(where, name, value)
        logging.disable(logging.NOTSET)


def simulate(scenario: Scenario) -> Report:
    """Run a scenario and return what came of it."""
    fleet = Fleet(scenario)
    with tempfile.TemporaryDirectory(prefix="scale-") as folder, _substitutes(fleet):
        fleet.folder = Path(folder)
        return fleet.run()
