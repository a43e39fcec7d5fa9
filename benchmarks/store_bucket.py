"""Sweep in a fake bucket under faults, and the cost of requests; `benchmarks.store` calls it.

The bucket has a latency of 40 ms and accepts one write a second of each name. Some workers are killed and one
is stopped for longer than a lease. The ideal to compare with: the same trials on the same machines with the
same faults, and a store that takes no time, where a waiting worker learns of a lost trial as early as the
lease allows.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.fleet import Fault, Fleet, Remote, bucket, nap_space, open_at, premade, s3_bucket
from sweeps.experiment import Experiment
from sweeps.search.allocation import Allocator
from sweeps.space.definition import Lease, Value
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.retries import RetryPolicy
from sweeps.trials.record import Generator, Trial
from sweeps.trials.repository import Records

LATENCY_S = 0.04
IN_S3 = (
    Fault(action="status", status=429, times=None, chance=0.02),
    Fault(action="status", status=503, times=None, chance=0.02),
    Fault(action="lose_response", times=None, chance=0.01),
    Fault(action="delay", delay_s=LATENCY_S, times=None),
)
"""Faults of the S3 server in the storm; a request suffers from the first that matches it."""


@dataclass(frozen=True, kw_only=True)
class Outage:
    """Absence of a machine from `start` to `end`, in seconds after the start; infinite: for ever."""

    machine: int
    start: float
    end: float = float("inf")


@dataclass(frozen=True, kw_only=True)
class Storm:
    """Measurements of the sweep under faults, in seconds.

    Args:
        first_claim_s: the slowest first claim; it reads every record, on a machine that all workers share.
        claim_p50_s: median of the later claims.
        claim_p99_s: 99th percentile of the later claims.
        spurious: takeovers of trials whose worker was alive.
        requests: by billing class, with dollars for them; None for S3.
        refused: responses of 429.
    """

    trials: int
    total_s: float
    ideal_s: float
    first_claim_s: float
    claim_p50_s: float
    claim_p99_s: float
    takeovers: int
    spurious: int
    deaths: list[str]
    requests: dict[str, float] | None
    refused: int
    complete: bool


def ideal_s(naps: Sequence[float], workers: int, outages: Sequence[Outage], back_after_s: float) -> float:
    """Return when the last trial ends if nothing but the trials and the outages takes time."""
    ready = [(0.0, nap) for nap in naps]
    free = [(0.0, machine) for machine in range(workers)]
    finish = 0.0
    while ready:
        now, machine = heapq.heappop(free)
        available, nap = ready[0]
        away = next((o for o in outages if o.machine == machine and o.end > now), None)
        if away is not None and away.start <= now:
            heapq.heappush(free, (away.end, machine))
        elif available > now:
            heapq.heappush(free, (available, machine))
        elif away is not None and away.start < now + nap:
            heapq.heapreplace(ready, (away.start + back_after_s, nap))
            heapq.heappush(free, (away.end, machine))
        else:
            heapq.heappop(ready)
            heapq.heappush(free, (now + nap, machine))
            finish = max(finish, now + nap)
    return finish


def storm(
    *, workers: int, trials: int, nap_s: tuple[float, float], kills: int, seed: int, scheme: str = "gs"
) -> Storm:
    """Run `trials` naps, kill `kills` workers and stop one, four seconds apart.

    Args:
        scheme: `s3` for a real server of S3, whose answers are as late as the fake bucket's; and 2 % of them
            are 429, 2 % are 503, and 1 % are lost.
    """
    lease = Lease(heartbeat_s=4.0, expire_s=12.0)
    naps = [nap_s[0] + (nap_s[1] - nap_s[0]) * (i + 0.5) / trials for i in range(trials)]
    random.Random(seed).shuffle(naps)
    with bucket(latency_s=LATENCY_S, seed=seed) if scheme == "gs" else s3_bucket(seed=seed) as remote:
        url = f"{scheme}://bucket/benchmark/{uuid.uuid4().hex}"
        store = open_at(url, remote.url)
        Experiment.create(store, nap_space(name="storm", trials=trials, seconds=nap_s, lease=lease))
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(lambda i: premade(store, i, naps[i]), range(trials)))
        time.sleep(1.0)  # creating the trials must not count against the rate limit
        fleet = Fleet(remote, url, RetryPolicy())
        fleet.start(workers)
        if isinstance(remote, Remote):
            remote.clear_journal()
        else:
            remote.entries.clear()
            for fault in IN_S3:
                remote.add(fault)
        start = time.monotonic()
        outages = _inject(fleet, start, kills, stop_s=1.5 * lease.expire_s)
        fleet.join(timeout_s=600)
        back_after_s = lease.expire_s - lease.heartbeat_s  # the last heartbeat may have been that long ago
        ideal = ideal_s(naps, workers, outages, back_after_s)
        if isinstance(remote, Remote):
            requests, statuses = remote.bill(), [entry.status for entry in remote.entries()]
        else:
            requests, statuses = None, [entry.status for entry in remote.entries]
            remote.reset()
        return _account(fleet, requests, statuses, Experiment.open(store), start, ideal)


def _inject(fleet: Fleet, start: float, kills: int, stop_s: float) -> list[Outage]:
    """Kill the first workers one after another, stop the next one and resume it; return the outages."""
    members = list(fleet.members.values())
    outages = []
    for turn, member in enumerate(members[: kills + 1]):
        time.sleep(max(0.0, start + 4.0 * (turn + 1) - time.monotonic()))
        at = time.monotonic() - start
        member.signal(signal.SIGSTOP if turn == kills else signal.SIGKILL)
        outages.append(Outage(machine=turn, start=at, end=at + stop_s if turn == kills else float("inf")))
    time.sleep(stop_s)
    members[kills].signal(signal.SIGCONT)
    return outages


def _account(
    fleet: Fleet,
    requests: dict[str, float] | None,
    statuses: Sequence[int],
    experiment: Experiment,
    start: float,
    ideal: float,
) -> Storm:
    events = fleet.events()
    claims: dict[str, list[float]] = defaultdict(list)
    for entry in events:
        if entry["event"] == "started":
            claims[entry["worker"]].append(entry["asked_s"])
    later = sorted(seconds for asked in claims.values() for seconds in asked[1:])
    hurt = {member.name for member in fleet.members.values() if member.hurt}
    records = experiment.trials()
    lost = [a for record in records for a in record.history if a.reason == "expired"]
    return Storm(
        trials=len(records),
        total_s=max(entry["at"] for entry in events if entry["event"] == "ended") - start,
        ideal_s=ideal,
        first_claim_s=max(asked[0] for asked in claims.values()),
        claim_p50_s=statistics.median(later),
        claim_p99_s=later[int(0.99 * len(later))],
        takeovers=len(lost),
        spurious=sum(attempt.worker not in hurt for attempt in lost),
        deaths=fleet.deaths(),
        requests=requests,
        refused=Counter(statuses)[429],
        complete={record.status for record in records} == {"completed"},
    )


# ---- a fleet that starts at once, what waiting costs, and a sweep of a thousand trials


@dataclass(frozen=True, kw_only=True)
class Fresh:
    """Seconds until the first, half of the workers and the last had a trial, and requests until then."""

    first_s: float
    half_s: float
    last_s: float
    trials: int
    requests: dict[str, float]


def fresh(workers: int, *, limit_s: float = 120.0) -> Fresh:
    """Start all workers at once over an empty sweep, whose every trial is generated under `ask.lock`."""
    lease = Lease(heartbeat_s=30.0, expire_s=150.0)
    with bucket(latency_s=LATENCY_S) as remote:
        url = f"gs://bucket/benchmark/{uuid.uuid4().hex}"
        space = nap_space(name="fresh", trials=10 * workers, seconds=(limit_s, 2 * limit_s), lease=lease)
        experiment = Experiment.create(GcsStore(url, endpoint=remote.url), space)
        fleet = Fleet(remote, url, RetryPolicy())
        start = fleet.start(workers)
        remote.clear_journal()
        has_trial: list[float] = []
        while len(has_trial) < workers and time.monotonic() < start + limit_s:
            time.sleep(0.2)
            has_trial = [entry["at"] - start for entry in fleet.events() if entry["event"] == "started"]
        requests = remote.bill()
        for member in fleet.members.values():
            member.signal(signal.SIGKILL)
        fleet.join(timeout_s=60)
        assert len(has_trial) == workers, f"only {len(has_trial)} have a trial after {limit_s:g} s"
        return Fresh(
            first_s=has_trial[0],
            half_s=has_trial[workers // 2 - 1],
            last_s=has_trial[-1],
            trials=len(experiment.trials()),
            requests=requests,
        )


def idle_hour(*, seconds: float) -> dict[str, float]:
    """Return requests by class, and dollars, of one worker that waits an hour for another's trial."""
    lease = Lease(heartbeat_s=30.0, expire_s=150.0)
    with bucket(latency_s=LATENCY_S) as remote:
        url = f"gs://bucket/benchmark/{uuid.uuid4().hex}"
        store = GcsStore(url, endpoint=remote.url)
        experiment = Experiment.create(
            store, nap_space(name="idle", trials=1, seconds=(1.0, 2.0), lease=lease)
        )
        premade(store, 0, 1.5)
        experiment.ask("somebody else")
        fleet = Fleet(remote, url, RetryPolicy())
        fleet.start(1)
        time.sleep(2.0)
        before = remote.bill()
        time.sleep(seconds)
        after = remote.bill()
        fleet.members["worker-0"].signal(signal.SIGTERM)
        fleet.join(timeout_s=60)
    return {name: (after[name] - before[name]) * 3600 / seconds for name in after}


@dataclass(frozen=True, kw_only=True)
class Thousand:
    """Seconds at `trials` finished trials, and requests of class B: `sweep status` as a command, and asks.

    Args:
        asks: of a worker, the first and the next, without the share of the optimizer.
        pack_s: to write all packs at once; workers write them one by one as trials end.
    """

    trials: int
    status: tuple[float, float]
    asks: tuple[float, float]
    pack_s: float
    packed_status: tuple[float, float]
    packed_asks: tuple[float, float]


def thousand(trials: int) -> Thousand:
    """Measure in a bucket without packs, then with them."""
    lease = Lease(heartbeat_s=30.0, expire_s=150.0)
    with bucket(latency_s=LATENCY_S) as remote:
        url = f"gs://bucket/benchmark/{uuid.uuid4().hex}"
        store = GcsStore(url, endpoint=remote.url)
        Experiment.create(store, nap_space(name="many", trials=trials + 4, seconds=(1.0, 2.0), lease=lease))
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(lambda i: premade(store, i, 1 + (i + 0.5) / trials, done=True), range(trials)))

        def status() -> tuple[float, float]:
            command = [sys.executable, "-m", "sweeps", "status", "--storage", url, "--format", "json"]
            before, start = remote.bill()["B"], time.monotonic()
            found = subprocess.run(
                command,
                env={**os.environ, "STORAGE_EMULATOR_HOST": remote.url},
                check=True,
                capture_output=True,
            )
            took = time.monotonic() - start
            assert json.loads(found.stdout)["trials"]["completed"] >= trials
            return took, remote.bill()["B"] - before

        def asks() -> tuple[float, float]:
            opened = Experiment.open(store)
            asking = _WithoutOptimizer(store, opened.space, Records(store), opened.amendments)
            first = asking.own_share()
            time.sleep(2.5)  # the trial
            following = asking.own_share()
            asking.lease.settle()
            return first, following

        plain = status(), asks()
        start = time.monotonic()
        Experiment.open(store).pack_records()
        pack_s = time.monotonic() - start
        packed = status(), asks()
    return Thousand(
        trials=trials,
        status=plain[0],
        asks=plain[1],
        pack_s=pack_s,
        packed_status=packed[0],
        packed_asks=packed[1],
    )


class _WithoutOptimizer(Allocator):
    """Allocation that measures the time of `ask` outside of the optimizer."""

    generating_s = 0.0

    def own_share(self) -> float:
        self.generating_s, start = 0.0, time.monotonic()
        assert self.ask("benchmark", leased=True, make=True, wait=time.sleep) is not None
        return time.monotonic() - start - self.generating_s

    def candidate(self, records: list[Trial]) -> tuple[dict[str, Value], Generator]:
        start = time.monotonic()
        try:
            # A model of a thousand trials takes longer than this; meanwhile the second of `ask.lock` passes.
            time.sleep(2.5)
            return super().candidate(records)
        finally:
            self.generating_s += time.monotonic() - start
