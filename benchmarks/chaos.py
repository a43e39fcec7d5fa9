"""Fault injection into sweeps, round after round: `python -m benchmarks.chaos --faults 1000 --seed 0`.

Rounds of a sweep in a fake bucket (`--scheme s3`: in a real S3 server), each with fresh trials, until the
number of faults is reached. Real worker processes are killed and replaced, stopped for longer than a lease
and resumed, sent SIGTERM, partitioned from the bucket; responses are lost, late, or 429 or 503; clocks of
workers and of the fake service are wrong by a minute or an hour. After each round every record is checked
against the workers' event logs, and by `sweep doctor`. Any problem is printed, and the exit status is 1. The
faults are drawn from the seed; their effects also depend on the machine's timing.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.fleet import Doors, Fault, Fleet, Remote, bucket, loss_of, nap_space, open_at, s3_bucket
from sweeps.experiment import Experiment
from sweeps.space.definition import Lease
from sweeps.storage.retries import RetryPolicy
from sweeps.text.counted import counted
from sweeps.trials.record import Trial
from sweeps.upkeep import diagnostics
from sweeps.upkeep.inventory import survey

LEASE = Lease(heartbeat_s=0.5, expire_s=3.0, max_attempts=1000)
# Retries outlast every partition below, as two minutes outlast the usual one.
RETRIES = RetryPolicy(total_s=20.0, attempt_s=1.0, first_wait_s=0.05, longest_wait_s=0.5)
SKEWS_S = (0.0, 60.0, -60.0, 3600.0, -3600.0)
NAP_S = (0.2, 2.0)
OF_S3 = ("put", "get", "list", "head")


@dataclass(kw_only=True)
class Report:
    """Counts of faults and outcomes over all rounds."""

    faults: Counter[str] = field(default_factory=Counter)
    trials: int = 0
    workers: int = 0
    takeovers: int = 0
    handed_back: int = 0
    dropped: int = 0
    problems: list[str] = field(default_factory=list)


def run(*, faults: int, seed: int, workers: int, trials: int, gap_s: float, scheme: str = "gs") -> Report:
    """Run rounds of `trials` trials over `workers` workers, with a fault about every `gap_s` seconds."""
    report, chance = Report(), random.Random(seed)
    fake = bucket(latency_s=0.01, one_write_per_second=False, seed=seed)
    with fake if scheme == "gs" else s3_bucket(seed=seed) as remote:
        while report.faults.total() < faults and not report.problems:
            if isinstance(remote, Remote):  # a real service has this machine's clock
                remote.set(clock_skew_s=chance.choice(SKEWS_S))
            url = f"{scheme}://bucket/chaos/{uuid.uuid4().hex}"
            store = open_at(url, remote.url)
            space = nap_space(name="chaos", trials=trials, seconds=NAP_S, lease=LEASE)
            experiment = Experiment.create(store, space)
            injector = FaultInjector(Fleet(remote, url, RETRIES), chance)
            injector.storm(experiment, workers, left=faults - report.faults.total(), gap_s=gap_s)
            report.faults += injector.faults
            account(report, experiment, injector.fleet)
    return report


class FaultInjector:
    """Faults for a fleet, and the repair of those that do not end by themselves."""

    def __init__(self, fleet: Fleet, chance: random.Random) -> None:
        self.fleet, self.faults, self._chance = fleet, Counter[str](), chance
        self._remote: Remote | Doors = fleet.remote
        self._due: list[tuple[float, Callable[[], object]]] = []
        self._kinds: dict[str, Callable[[], object]] = {
            "SIGKILL": self._kill,
            "SIGSTOP": self._stop,
            "SIGTERM": self._terminate,
            "partition": self._partition,
            "lost response": lambda: self._add_fault("lose_response"),
            "lost request": lambda: self._add_fault("lose_request"),
            "429": lambda: self._add_fault("status", status=429),
            "503": lambda: self._add_fault("status", status=503),
            "late answer": lambda: self._add_fault("delay", delay_s=1.5),
        }

    def storm(self, experiment: Experiment, workers: int, *, left: int, gap_s: float) -> None:
        """Inject faults until every trial has ended; then repair all, and wait for the workers to exit."""
        for _ in range(workers):
            self._reinforce()
        trials, deadline = experiment.space.run_cap, time.monotonic() + 600
        while sum(record.finished for record in experiment.trials()) != trials:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{experiment.store.url}: no end in sight after ten minutes")
            time.sleep(self._chance.uniform(0.5, 1.5) * gap_s)
            self._repair(time.monotonic())
            if self.faults.total() < left:
                kind = self._chance.choice(list(self._kinds))
                self.faults[kind] += 1
                self._kinds[kind]()
        self._repair(float("inf"))
        self.fleet.join(timeout_s=120)

    def _repair(self, now: float) -> None:
        for at, mend in list(self._due):
            if at <= now:
                self._due.remove((at, mend))
                mend()

    def _later(self, seconds: float, mend: Callable[[], object]) -> None:
        self._due.append((time.monotonic() + seconds, mend))

    def _reinforce(self) -> None:
        self.fleet.add(skew_s=self._chance.choice(SKEWS_S))

    def _victim(self) -> str:
        names = [member.name for member in self.fleet.alive()] or list(self.fleet.members)
        return self._chance.choice(names)

    def _kill(self) -> None:
        self.fleet.members[self._victim()].signal(signal.SIGKILL)
        self._reinforce()

    def _stop(self) -> None:
        victim = self.fleet.members[self._victim()]
        victim.signal(signal.SIGSTOP)
        self._later(self._chance.uniform(0.3, 2.0) * LEASE.expire_s, lambda: victim.signal(signal.SIGCONT))

    def _terminate(self) -> None:
        self.fleet.members[self._victim()].signal(signal.SIGTERM)
        self._reinforce()

    def _partition(self) -> None:
        action = self._chance.choice(("hang", "lose_request"))
        number = self._remote.add(Fault(action=action, door=self._victim(), times=None))
        self._later(self._chance.uniform(0.3, 2.0) * LEASE.expire_s, lambda: self._remote.remove(number))

    def _add_fault(self, action: str, **how: float) -> None:
        names = ("insert", "get", "list", "delete") if isinstance(self._remote, Remote) else OF_S3
        operation = self._chance.choice((None, *names))
        times = self._chance.randint(1, 4)
        self._remote.add(Fault(action=action, operation=operation, door=self._victim(), times=times, **how))


def account(report: Report, experiment: Experiment, fleet: Fleet) -> None:
    """Check a finished round, and add it to the report."""
    records, events = Experiment.open(experiment.store).trials(), fleet.events()
    report.trials += len(records)
    report.workers += len(fleet.members)
    report.dropped += sum(entry["event"] == "dropped" for entry in events)
    reasons = Counter(attempt.reason for record in records for attempt in record.history)
    report.takeovers += reasons["expired"]
    report.handed_back += reasons["released"]
    report.problems += [f"worker died: {death}" for death in fleet.deaths()]
    inventory = survey(experiment.store)
    findings = diagnostics.examine(experiment, inventory)
    report.problems += [f"doctor: {found.what}" for found in findings if found.level == "problem"]
    if [record.trial for record in records] != list(range(experiment.space.run_cap or 0)):
        report.problems.append(f"indices are {[record.trial for record in records]}")
    if len({record.parameters["seconds"] for record in records}) != len(records):
        report.problems.append("two trials have the same candidate")
    accepted = {record.trial: [e for e in events if _is_report(e, record)] for record in records}
    for record in records:
        report.problems += [
            f"trial {record.trial}: {what}" for what in problems_of(record, accepted[record.trial])
        ]


def _is_report(entry: dict[str, object], record: Trial) -> bool:
    return (entry["event"], entry.get("status"), entry.get("trial")) == ("ended", "completed", record.trial)


def problems_of(record: Trial, reports: list[dict[str, object]]) -> list[str]:
    """Return the problems of a finished trial, given the reports that workers saw accepted."""
    wrong = []
    if record.status != "completed" or dict(record.metrics) != {"loss": loss_of(record.parameters)}:
        wrong.append(f"{record.status} with {dict(record.metrics)} for {dict(record.parameters)}")
    if [attempt.attempt for attempt in record.history] != list(range(1, record.attempt + 1)):
        wrong.append(f"history has gaps: {record.history}")
    ends = [attempt.reason for attempt in record.history]
    if ends[-1:] != ["completed"] or not set(ends[:-1]) <= {"expired", "released"}:
        wrong.append(f"ended as {ends}")
    if len(reports) > 1:
        wrong.append(f"{len(reports)} reports were accepted: {reports}")
    for report in reports:
        last = record.history[-1]
        expected = (last.worker, last.attempt, dict(record.metrics))
        if (report["worker"], report["attempt"], report["metrics"]) != expected:
            wrong.append(f"an accepted report is not in the record: {report}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--trials", type=int, default=60, help="in each round")
    parser.add_argument("--gap-s", type=float, default=0.3, help="seconds between faults, on average")
    parser.add_argument("--scheme", choices=("gs", "s3"), default="gs", help="s3: a real server, SeaweedFS")
    args = parser.parse_args()
    start = time.monotonic()
    report = run(
        faults=args.faults,
        seed=args.seed,
        workers=args.workers,
        trials=args.trials,
        gap_s=args.gap_s,
        scheme=args.scheme,
    )
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(report.faults.items()))
    print(f"{report.faults.total()} faults in {time.monotonic() - start:.0f} s: {kinds}")
    print(
        f"{report.trials} trials by {report.workers} workers: {report.takeovers} takeovers, "
        f"{report.handed_back} handed back, {report.dropped} late reports dropped"
    )
    for problem in report.problems:
        print(f"PROBLEM {problem}")
    print(
        "every trial ended exactly once" if not report.problems else counted(len(report.problems), "problem")
    )
    sys.exit(1 if report.problems else 0)


if __name__ == "__main__":
    main()
