"""Scenarios for `test_interleavings.py`: who runs at the same time, and the invariants that each checks."""

from __future__ import annotations

import functools
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from interleaving import FAULTS, Process, SimulatedStore, Simulation, Violation, simulated_time
from memory_store import MemoryStore

from sweeps.errors import InputError, StoreUnavailable, SweepClosed, SweepNotFound
from sweeps.experiment import Experiment
from sweeps.operations import lifetime
from sweeps.operations.confirming import plan_confirmation
from sweeps.operations.control import apply_to_all, report, set_state
from sweeps.programs.base import Program
from sweeps.programs.result import Completed, Failed, Outcome, Preempted
from sweeps.programs.signals import Stop
from sweeps.search import allocation
from sweeps.search.confirm import finalists, rounds
from sweeps.search.confirm.plan import Finalist, Plan, store_plan, stored_plan
from sweeps.search.grid import Grid
from sweeps.space.definition import Choice, Fixed, Lease, Objective, Search, Snapshots, Space, Stage
from sweeps.space.definition import Program as ProgramSpec
from sweeps.storage.keys import SWEEP_KEY
from sweeps.storage.run_files import manifest
from sweeps.transfer import removal as transfer
from sweeps.trials import amendments, control, lease, lifecycle
from sweeps.trials import record as trial_record
from sweeps.trials.record import Attempt, Trial
from sweeps.upkeep import diagnostics, removal, renaming
from sweeps.upkeep.inventory import survey
from sweeps.upkeep.repair import carry_out
from sweeps.worker import heartbeat, loop, trial_run

HEARTBEAT_S, EXPIRE_S = 10.0, 30.0


def space_of(trials: int = 3, *, values: int | None = None, **changes: Any) -> Space:
    return replace(
        Space(
            name="races",
            objectives=(Objective(metric="loss"),),
            parameters=(Choice(name="x", values=tuple(range(values or trials))), Fixed(name="seed", value=0)),
            program=ProgramSpec(kind="function", function="math:sqrt"),
            search=Search(method="grid"),
            run_cap=trials,
            lease=Lease(heartbeat_s=HEARTBEAT_S, expire_s=EXPIRE_S, max_attempts=5),
        ),
        **changes,
    )


class Nap(Program):
    """A program of one heartbeat and a half, whose result names the attempt."""

    case: Case

    def require_startable(self) -> None: ...

    def command_line(self, record: Trial, *, run_dir: str = "runs/best") -> str:
        raise NotImplementedError

    def run(
        self, record: Trial, folder: Path, *, stop: Stop, wants_stop: Callable[[], bool], **_: bool
    ) -> Outcome:
        until = self.case.simulation.now + 1.5 * HEARTBEAT_S
        with suppress(StoreUnavailable):  # as an upload of the run folder does
            self.case.store.create(f"{trial_record.run_prefix(record.trial, record.attempt)}/log.txt", b"")
        while self.case.simulation.now < until:
            self.case.simulation.sleep(5.0)
            self.case.compute(folder, record)
            if stop.requested or wants_stop():
                return Preempted(detail="asked to")
        return self.case.outcome(record)


class Noted(trial_run.Watcher):
    def __init__(self, case: Case) -> None:
        self._case = case

    def ended(self, record: Trial) -> None:
        if record.status == "completed":
            self._case.accepted.setdefault(record.trial, []).append(record)


@dataclass
class Case:
    """Some processes that share a sweep, under one schedule; then one more worker ends what they have left."""

    schedule: str = ""
    space: Space = field(default_factory=space_of)
    remote = False
    freeze_s = 45.0

    def __post_init__(self) -> None:
        self.simulation = Simulation(self.schedule, freeze_s=self.freeze_s)
        self.accepted: dict[int, list[Trial]] = {}
        self.caps = [self.space.run_cap]
        self.store = SimulatedStore(self.simulation, self.check_write)
        self.store.is_remote = self.remote
        self.people: dict[str, list[str]] = {}  # what became of the command of each

    # ---- to be changed by cases

    def prepare(self, experiment: Experiment) -> None: ...

    def start(self) -> None:
        self.worker("w1")
        self.worker("w2")

    def outcome(self, record: Trial) -> Outcome:
        return Completed(metrics={"loss": loss_of(record)})

    def compute(self, folder: Path, record: Trial) -> None: ...

    def check_end(self, records: list[Trial]) -> None:
        self.check_all_done(records)

    # ---- for cases

    def worker(
        self, name: str, faults: tuple[str, ...] = FAULTS, limits: loop.Limits | None = None
    ) -> Process:
        def act() -> None:
            for restart in range(3):  # an engine restarts it
                try:
                    loop.work(
                        Experiment.open(self.store),
                        stop=Stop(),
                        watcher=Noted(self),
                        name=f"{name}-{restart}",
                        limits=limits,
                    )
                except StoreUnavailable:
                    self.simulation.sleep(1.0)
                else:
                    return

        return self.simulation.start(name, act, faults)

    def person(
        self, name: str, act: Callable[[Experiment], object], faults: tuple[str, ...] = FAULTS
    ) -> Process:
        self.people[name] = []

        def do() -> None:
            try:
                act(Experiment.open(self.store))
                self.people[name].append("done")
            except (InputError, StoreUnavailable, SweepClosed) as error:
                self.people[name].append(f"{type(error).__name__}: {error}")

        return self.simulation.start(name, do, faults)

    # ---- what must hold

    def run(self) -> Case:
        random.seed(0)
        logging.disable(logging.CRITICAL)
        with substitutes(self), simulated_time(self.simulation):
            try:
                self.prepare(Experiment.create(self.store, self.space))
                self.start()
                self.simulation.run()
                self.require_no_errors()
                if any(deviation.partition(":")[2] in FAULTS for deviation in self.schedule.split()):
                    self.simulation.now += 10 * EXPIRE_S  # whoever comes later finds the sweep so
                self.finish()
                self.simulation.run()
                self.require_no_errors()
                self.check_records()
                self.check_end(self.records())
                if self.simulation.broken is not None:
                    raise self.simulation.broken
            except Violation as violation:
                raise Violation(
                    f"{violation}\nschedule: {self.schedule!r}\n" + "\n".join(self.simulation.steps)
                ) from violation.__cause__
            finally:
                self.simulation.end()
                logging.disable(logging.NOTSET)
        return self

    def finish(self) -> None:
        self.worker("last", ())

    def require_no_errors(self) -> None:
        for process in self.simulation.processes.values():
            if process.error is not None:
                raise Violation(f"{process.name}: {process.error!r}") from process.error

    def records(self) -> list[Trial]:
        return [
            trial_record.decode(data)
            for key, (data, *_) in sorted(self.store.objects.items())
            if key.startswith(trial_record.PREFIX)
        ]

    def require(self, holds: bool, promise: str, *of: object) -> None:
        if not holds and self.simulation.broken is None:
            self.simulation.broken = Violation(": ".join([promise, *map(repr, of)]))

    def check_write(self, key: str, before: bytes | None, after: bytes | None) -> None:
        if key.startswith(amendments.PREFIX):
            self.require(before is None, "an amendment never changes", key)
            self.caps.append(json.loads(after)["changes"].get("run_cap", self.caps[-1]))
        if not key.startswith(trial_record.PREFIX) or after is None:
            return
        new = trial_record.decode(after)
        if before is None:
            self.check_creation(new)
            return
        old = trial_record.decode(before)
        same = (old.parameters, old.generator, old.created) == (new.parameters, new.generator, new.created)
        self.require(same, "parameters never change", old, new)
        if old.status == "completed":
            kept = [replace(r, stages=(), points=(), write="") for r in (old, new)]
            self.require(kept[0] == kept[1], "a completed trial stays as it is", old, new)
        claims = new.attempt - old.attempt
        self.require(claims in (0, 1), "attempts are counted one by one", old, new)
        by = self.simulation.process.name
        if old.status == "running" and by not in self.people:
            mine = (old.worker or "").startswith(f"{by}-")
            silent = old.heartbeat is not None and self.simulation.now - old.heartbeat > EXPIRE_S
            self.require(mine or silent, f"only the holder changes a trial that lives, not {by}", old, new)
        if claims:
            self.require(new.status == "running", "only a claim begins an attempt", old, new)
            self.require(
                (new.worker or "").startswith(f"{by}-") or by in self.people, "who claims, holds", new
            )
        ended = len(new.history) - len(old.history)
        self.require(
            ended == (1 if old.status == "running" and (claims or new.status != "running") else 0),
            "history has each ended attempt",
            old,
            new,
        )
        self.require(new.history[: len(old.history) - 1] == old.history[:-1], "history grows only", old, new)

    def check_creation(self, new: Trial) -> None:
        count = len(self.records())
        self.require(new.trial == count - 1, "indices have no gaps", new.trial, count)
        others = [r for r in self.records() if r.trial != new.trial]
        if new.generator != "enqueued":
            same = [
                r.trial
                for r in others
                if dict(r.parameters) == dict(new.parameters) and r.generator == new.generator
            ]
            self.require(not same, "no two candidates are equal", new.trial, same)
        own = [r for r in self.records() if r.generator in ("grid", "sobol", "enqueued", "baseline")]
        if new in own or new.generator != "confirm":
            cap = max(c for c in self.caps) if all(self.caps) else None
            self.require(cap is None or len(own) <= cap, "the run cap holds", len(own), cap)
        if new.generator == "grid":
            due = Grid(self.space).in_order(others)[0]
            self.require(dict(new.parameters) == due, "the same records give the same candidate", new, due)

    def check_records(self) -> None:
        for record in self.records():
            attempts = [attempt.attempt for attempt in record.history]
            expected = range(1, record.attempt + (record.status != "running"))
            self.require(attempts == [*expected], "history has every attempt", record)
            ends = [attempt.reason for attempt in record.history if attempt.reason == "completed"]
            self.require(len(ends) == (record.status == "completed"), "it completes once", record)
            accepted = {str(r.metrics) for r in self.accepted.get(record.trial, [])}
            self.require(len(accepted) <= 1, "one report is accepted", record)
            if record.status == "completed":
                self.require(
                    record.metrics["loss"] == loss_of(record), "the result is that of the attempt", record
                )
                self.require(
                    accepted <= {str(record.metrics)}, "the accepted report is stored", record, accepted
                )
        locks = [key for key in self.store.objects if key == allocation.ASK_KEY]
        gone = any(deviation in self.schedule for deviation in FAULTS)
        self.require(gone or not locks, "the ask lease is free at the end", locks)

    def check_all_done(self, records: list[Trial]) -> None:
        states = Counter(record.status for record in records)
        self.require(states == {"completed": self.space.run_cap}, "all trials are completed", states)


DECODE = functools.lru_cache(maxsize=10_000)(trial_record.decode)


class OneByOne:
    """`ThreadPoolExecutor` without threads."""

    def __init__(self, workers: int) -> None: ...
    def __enter__(self) -> OneByOne:
        return self

    def __exit__(self, *error: object) -> None: ...
    def map(self, act: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
        return [act(value) for value in values]


def loss_of(record: Trial) -> float:
    return float(record.parameters["x"]) + 100.0 * record.attempt


@contextmanager
def substitutes(case: Case) -> Iterator[None]:
    def program_of(space: Space, function: object = None) -> Nap:
        program = Nap(space)
        program.case = case
        return program

    old: list[tuple[Any, str, object]] = [
        (loop, "program_of", loop.program_of),
        (trial_run, "hold", trial_run.hold),
        (loop, "remove_leftovers", loop.remove_leftovers),
        (heartbeat, "POLL_S", heartbeat.POLL_S),
        (allocation, "_POLL_S", allocation._POLL_S),
        (lease, "_POLL_S", lease._POLL_S),
        (lifetime, "latest_name", lifetime.latest_name),
        (removal, "ThreadPoolExecutor", removal.ThreadPoolExecutor),
        (renaming, "ThreadPoolExecutor", renaming.ThreadPoolExecutor),
        (renaming, "open_store", renaming.open_store),
        (trial_record, "decode", trial_record.decode),
    ]
    new = (
        program_of,
        lambda folder: None,
        lambda experiment: None,
        5.0,
        (1.0, 2.0),
        (1.0, 2.0),
        lambda url: "",
        OneByOne,
        OneByOne,
        lambda url: case.new,
        DECODE,
    )
    try:
        for (where, name, _), value in zip(old, new, strict=True):
            setattr(where, name, value)
        yield
    finally:
        for where, name, value in old:
            setattr(where, name, value)


class TwoWorkers(Case):
    """Two workers share the trials of a grid."""


class Enqueued(Case):
    """A person enqueues two trials, for which there is room only if the workers have made fewer than two."""

    freeze_s = 150.0

    def __init__(self, schedule: str = "") -> None:
        super().__init__(schedule, space_of(4, values=6))

    def start(self) -> None:
        self.person("ada", lambda e: e.enqueue([{"x": 4, "seed": 0}, {"x": 5, "seed": 0}], "ada-0"))
        self.worker("w1")

    def check_end(self, records: list[Trial]) -> None:
        self.check_all_done(records)
        own = [r for r in records if r.generator == "enqueued"]
        said = self.people["ada"]
        if said == ["done"]:
            self.require(len(own) == 2, "what was enqueued is there", own)
        elif said and "are enqueued already" in said[0]:
            self.require(len(own) == 1, "some were enqueued before the lease was lost", own, said)
        elif said and said[0].startswith("InputError"):
            self.require(not own, "all or none is enqueued", own, said)


class Extended(Case):
    """Two people extend the sweep at once, beside a worker."""

    def __init__(self, schedule: str = "") -> None:
        super().__init__(schedule, space_of(1, values=4))

    def start(self) -> None:
        self.person("ada", lambda e: e.extend({"run_cap": 2}, by="ada"))
        self.person("bob", lambda e: e.extend({"run_cap": 3}, by="bob"))
        self.worker("w1")

    def check_end(self, records: list[Trial]) -> None:
        made = [key for key in sorted(self.store.objects) if key.startswith(amendments.PREFIX)]
        done = sum(said == ["done"] for said in self.people.values())
        self.require(
            made == [amendments.key(i + 1) for i in range(len(made))] and len(made) >= done,
            "amendments follow one another",
            made,
        )
        states = Counter(record.status for record in records)
        cap = self.caps[-1]
        self.require(
            set(states) == {"completed"} and cap <= states["completed"] <= max(self.caps),
            "the last cap is filled",
            states,
            cap,
        )


class Switched(Case):
    """One person stops the sweep, another resumes it."""

    def start(self) -> None:
        self.person("ada", lambda e: set_state(e.store, "stopped", "ada"))
        self.person("bob", lambda e: set_state(e.store, "paused", "bob"))
        self.worker("w1", limits=loop.Limits(leave_when_idle=True))
        self.worker("w2", limits=loop.Limits(leave_when_idle=True))

    def finish(self) -> None:
        said = [name for name, said in self.people.items() if said == ["done"]]
        if said == ["ada", "bob"]:
            self.require(control.read(self.store) in ("stopped", "paused"), "one of them holds")
            notes = [key for key in self.store.objects if key.startswith("actions/")]
            if not self.simulation.schedule:
                self.require(len(notes) == 2, "history has both", notes)
        open_ = [
            r
            for r in self.records()
            if r.status == "running" and r.heartbeat and self.simulation.now - r.heartbeat < EXPIRE_S
        ]
        self.require(not open_, "nobody runs a trial any more", open_)
        self.person("eve", lambda e: set_state(e.store, "running", "eve"), ())
        self.simulation.run()
        super().finish()


class GivenUp(Case):
    """People abandon and retry trials that workers run."""

    def start(self) -> None:
        self.worker("w1")
        self.worker("w2")

        def abandon(experiment: Experiment) -> None:
            self.simulation.sleep(5.0)
            apply_to_all(experiment, [0], lifecycle.Abandon, "ada")

        def retry(experiment: Experiment) -> None:
            self.simulation.sleep(6.0)
            apply_to_all(experiment, [0], lifecycle.Retry, "bob")

        self.person("ada", abandon)
        self.person("bob", retry)

    def check_end(self, records: list[Trial]) -> None:
        states = Counter(record.status for record in records)
        self.require(
            states["completed"] + states["abandoned"] == 3 and states["abandoned"] <= 1,
            "all have ended",
            states,
        )


class Failing(Case):
    """Programs crash once, for good, or end by themselves."""

    def __init__(self, schedule: str = "") -> None:
        space = space_of(3)
        super().__init__(schedule, replace(space, lease=replace(space.lease, max_attempts=2)))

    def outcome(self, record: Trial) -> Outcome:
        match record.parameters["x"]:
            case 0 if record.attempt == 1:
                return Failed(error="lost", failure="crashed", retryable=True)
            case 1:
                return Failed(error="bad", failure="crashed")
        return super().outcome(record)

    def check_end(self, records: list[Trial]) -> None:
        faults = sum(fault in self.schedule for fault in FAULTS)
        for record in records:
            self.require(record.finished, "all have ended", record)
            lost = sum(a.reason in ("expired", "crashed", "given_up") for a in record.history)
            self.require(lost <= 2, "lost at most max_attempts times", record)
            if not faults:
                self.require(
                    record.status == ("failed" if record.parameters["x"] == 1 else "completed"),
                    "as the program says",
                    record,
                )


class ToldToGo(Case):
    """A worker is told to go while it runs a trial; another one goes on."""

    def start(self) -> None:
        stop = Stop()

        def act() -> None:
            with suppress(StoreUnavailable):
                loop.work(Experiment.open(self.store), stop=stop, watcher=Noted(self), name="w1-0")

        def signal() -> None:
            self.simulation.sleep(5.0)
            for _ in range(4):
                self.simulation.step("signal", kinds=("freeze",))
            stop.request("SIGTERM")

        self.simulation.start("w1", act)
        self.simulation.start("sig", signal, ())
        self.worker("w2")


class Asked(Case):
    """A person asks for a trial and reports it, beside a worker."""

    def start(self) -> None:
        self.worker("w1")

        def ask(experiment: Experiment) -> None:
            record = experiment.ask("ada-0", leased=False, wait=self.simulation.sleep)
            if record is None:
                return
            for _ in range(2):
                report(experiment, record.trial, {"metrics": {"loss": loss_of(record)}}, "here")

        self.person("ada", ask, ("freeze", "lose"))

    def check_end(self, records: list[Trial]) -> None:
        mine = [r for r in records if r.status == "running"]
        self.require(all(r.worker == "ada-0" for r in mine), "only what was asked for is open", mine)
        self.require(
            not mine or self.people["ada"] != ["done"], "what she reported is there", mine, self.people
        )
        self.require(len(records) == 3, "all are made", records)


class Confirmed(Case):
    """Two workers run the repeats of a plan."""

    def __init__(self, schedule: str = "") -> None:
        super().__init__(schedule, space_of(2))

    def prepare(self, experiment: Experiment) -> None:
        for index in range(2):
            record = Trial(
                trial=index,
                status="completed",
                parameters={"x": index, "seed": 0},
                generator="grid",
                metrics={"loss": 100.0 + index},
                attempt=1,
                history=(Attempt(attempt=1, worker="w0", start=1.0, end=2.0, reason="completed"),),
            )
            experiment._records.create(record)
        finalists = tuple(Finalist(trial=i, parameters={"x": i, "seed": 0}, first=1.0) for i in range(2))
        self.plan = Plan(
            metric="loss", goal="minimize", finalists=finalists, seed_name="seed", seeds=(11, 12), top=2
        )
        store_plan(self.store, self.plan, None)

    def check_end(self, records: list[Trial]) -> None:
        repeats = Counter(
            (r.parameters["x"], r.parameters["seed"]) for r in records if r.generator == "confirm"
        )
        self.require(
            repeats == Counter([(x, s) for x in (0, 1) for s in (11, 12)]),
            "each repeat is made once",
            repeats,
        )
        self.require(all(r.status == "completed" for r in records), "all are completed", records)
        found = rounds.of_store(self.store, Experiment.open(self.store).space, records)
        self.require(found is not None and found[1].finished, "the confirmation is finished", found)


class PlannedTwice(Confirmed):
    """Two people plan a confirmation at once; a worker runs it."""

    def prepare(self, experiment: Experiment) -> None:
        super().prepare(experiment)
        del self.store.objects["confirm.json"]

    def start(self) -> None:
        def plan(experiment: Experiment) -> None:
            options = dict.fromkeys(("top", "budget", "objective", "bounds", "seed_name")) | {
                "seeds": 2,
                "bounds": (),
            }
            with mock.patch.object(finalists, "_predictions", return_value=({}, "not here")):
                self.plans.append(
                    plan_confirmation(
                        experiment,
                        options,
                        again=False,
                        own_program=True,
                        by="x",
                        on_notice=lambda line: None,
                    )
                )
            loop.work(
                experiment,
                stop=Stop(),
                watcher=Noted(self),
                name=f"{self.simulation.process.name}-0",
                limits=loop.Limits(confirming=True),
            )

        self.plans: list[Plan] = []
        self.simulation.start("p1", lambda: self.attempt(plan))
        self.simulation.start("p2", lambda: self.attempt(plan))

    def attempt(self, act: Callable[[Experiment], object]) -> None:
        with suppress(StoreUnavailable):
            act(Experiment.open(self.store))

    def check_end(self, records: list[Trial]) -> None:
        self.require(all(p == self.plans[0] for p in self.plans), "one plan holds for both", self.plans)
        repeats = Counter(
            (r.parameters["x"], r.parameters["seed"]) for r in records if r.generator == "confirm"
        )
        self.require(set(repeats.values()) <= {1}, "each repeat is made once", repeats)
        stored = stored_plan(self.store)
        if stored:
            self.require(len(repeats) == 4, "each repeat is made", repeats)


class InBucket(Case):
    """Three workers share a bucket, where whoever waits for the lease makes trials for others, too."""

    remote = True

    def __init__(self, schedule: str = "") -> None:
        super().__init__(schedule, space_of(4))
        self.store.write_interval_s = 1.0

    def start(self) -> None:
        for name in ("w1", "w2", "w3"):
            self.worker(name)


class Shared(Case):
    """Three trials share the end of their first stage in pairs; one snapshot may stay, and workers remove the others."""

    keep = 1

    def __init__(self, schedule: str = "") -> None:
        space = space_of(4)
        names = Choice(name="x", values=(0, 1)), Choice(name="y", values=(0, 1)), Fixed(name="seed", value=0)
        stages = (
            Stage(name="first", parameters=("x", "seed"), cost="200"),
            Stage(name="second", parameters=("y",), cost="100"),
        )
        space = replace(space, parameters=names, stages=stages, snapshots=Snapshots(keep=self.keep))
        super().__init__(schedule, space)

    def compute(self, folder: Path, record: Trial) -> None:
        ended = folder / "snapshots" / "first"
        if not ended.is_dir():
            draft = folder / "snapshots" / "first.tmp"
            draft.mkdir(parents=True)
            (draft / "weights").write_text(str(record.parameters["x"]))
            draft.rename(ended)
        self.require(
            (ended / "weights").read_text() == str(record.parameters["x"]),
            "a trial starts from what it shares",
        )

    def check_write(self, key: str, before: bytes | None, after: bytes | None) -> None:
        super().check_write(key, before, after)
        for record in self.records():
            for run in record.snapshots:
                self.require(self.is_complete(run.key), "what a record calls stored is stored", record, run)

    def is_complete(self, key: str) -> bool:
        content = self.store.objects.get(f"stages/{key}/manifest.json")
        folder = MemoryStore.folder(self.store, f"stages/{key}")
        return content is not None and all(
            (folder / file.object).is_file() for file in manifest.decode(content[0]).values()
        )

    def finish(self) -> None:
        super().finish()
        self.simulation.run()
        self.person(
            "ada", transfer.collect, ()
        )  # as `sweep snapshots --prune`: the last worker may have died before it did

    def check_end(self, records: list[Trial]) -> None:
        super().check_end(records)
        stored = {run.key for record in records for run in record.snapshots}
        self.require(len(stored) <= self.keep, "no more stay than may", stored)
        there = {key.split("/")[1] for key in self.store.objects if key.startswith("stages/")}
        if not self.simulation.schedule:
            self.require(there == stored, "nothing is left over", there, stored)
        self.simulation.now += 7200
        self.mend()
        there = {key.split("/")[1] for key in self.store.objects if key.startswith("stages/")}
        root = MemoryStore.folder(self.store, "stages")
        files = {path.relative_to(root).parts[0] for path in root.rglob("*") if path.is_file()}
        self.require(there == stored and files == stored, "repair leaves nothing over", there, stored, files)

    def mend(self) -> None:
        steps = diagnostics.plan(Experiment.open(self.store), survey(self.store))
        states = [(step.kind, carry_out(step).state) for step in steps]
        self.require(all(state == "done" for _, state in states), "repair is done", states)


class Deleted(Case):
    """A person deletes the sweep and makes another of its name, beside a worker that waits or works."""

    def start(self) -> None:
        self.other = replace(
            space_of(2), parameters=(Choice(name="x", values=(7, 8)), Fixed(name="seed", value=0))
        )
        self.worker("w1", limits=loop.Limits(max_trials=2), faults=("kill", "lose", "fail"))

        def again(experiment: Experiment) -> None:
            while True:
                with suppress(InputError):
                    lifetime.delete(experiment, "ada")
                    break
                self.simulation.sleep(5.0)
            self.space, self.caps = self.other, [2]
            Experiment.create(self.store, self.other)

        self.person("ada", again, ("freeze",))

    def finish(self) -> None:
        self.space, self.caps = self.other, [2]
        self.accepted.clear()
        strange = [record for record in self.records() if record.parameters["x"] not in (7, 8)]
        self.require(not strange, "the new sweep has no trial of the old one", strange)
        super().finish()


class BucketView(SimulatedStore):
    """What `sweep rename` needs of a bucket, over a store's own objects."""

    def __init__(self, store: SimulatedStore, target: SimulatedStore) -> None:
        self.__dict__ = store.__dict__
        self._target = target

    def sizes(self, prefix: str) -> dict[str, int]:
        return {}

    def clear(self, kept: Sequence[str]) -> None: ...

    def copy(self, key: str, target: str) -> None:
        self._do("copy", key, lambda: self._target._put(key, MemoryStore.read(self, key)[0]))


class Renamed(Case):
    """A person renames the sweep in a bucket, where another worker comes amid that, and another person resumes it."""

    remote = True

    def __init__(self, schedule: str = "") -> None:
        super().__init__(schedule, space_of(3))
        self.old = self.store
        self.new = SimulatedStore(self.simulation, lambda key, before, after: None)
        self.old.url, self.new.url = "gs://bucket/races", "gs://bucket/renamed"
        self.new.is_remote, self.resumed_amid_removal = True, False

    def start(self) -> None:
        def ended() -> bool:
            return bool(self.people["ada"]) or ada.dead

        def begun() -> bool:
            return renaming.KEY in self.old.objects or ended()

        limits = loop.Limits(max_trials=1)

        def work() -> None:
            with suppress(StoreUnavailable, SweepNotFound):
                name = f"{self.simulation.process.name}-0"
                there = Experiment.open(self.old)
                loop.work(there, stop=Stop(), watcher=Noted(self), name=name, limits=limits)

        def again(_: Experiment) -> None:
            self.simulation.wait(ended)
            if SWEEP_KEY in self.old.objects:
                self.rename()

        self.simulation.start("w1", work, ("kill", "lose", "fail"))
        self.late("w2", begun, work, ("kill", "lose", "fail"))
        self.late("bob", begun, self.resume, ())
        ada = self.person("ada", lambda _: self.rename(), ("freeze", "kill", "fail"))
        self.person("eve", again, ())

    def late(
        self, name: str, begun: Callable[[], bool], act: Callable[[], None], faults: tuple[str, ...]
    ) -> None:
        """Start a process that begins once the rename has."""

        def wait() -> None:
            self.simulation.wait(begun)
            act()

        self.simulation.start(name, wait, faults)

    def resume(self) -> None:
        control.write(self.old, "running", "bob")
        self.resumed_amid_removal = SWEEP_KEY in self.new.objects

    def rename(self) -> None:
        view = BucketView(self.old, self.new)
        while True:
            try:
                lifetime.rename(Experiment.open(view), "renamed", "ada")
            except InputError as error:
                if "still at work" not in str(error):
                    raise
            else:
                return
            self.simulation.sleep(5.0)

    def finish(self) -> None:
        self.store = self.new
        super().finish()

    def check_end(self, records: list[Trial]) -> None:
        self.check_all_done(records)
        said = [line for name in ("ada", "eve") for line in self.people[name]]
        if SWEEP_KEY in self.old.objects:
            refused = any("written after it had been copied" in line for line in said)
            self.require(refused, "what is left was not copied", [*self.old.objects], said)
            return
        if not self.resumed_amid_removal:  # else a worker may begin trials in the emptied place: protocol.md
            left = self.old.objects.keys() - {control.KEY, renaming.KEY}
            self.require(not left, "all is removed", left, said)
            for index, ended in self.accepted.items():
                workers = {record.history[-1].worker for record in ended}
                self.require(len(workers) == 1, "no completed trial is run again", index, workers)
        if not any(fault in self.schedule for fault in FAULTS):
            reasons = {attempt.reason for record in records for attempt in record.history}
            self.require(reasons == {"completed"}, "no attempt is lost by a rename", reasons)
