"""Simulated bucket: published limits and prices, latencies with a tail, and the client's retries.

Sources (read on 2026-11-26):

- Google: 1 change a second per name, 1,000 writes and 5,000 reads a second per bucket at first, listings
  being reads; capacity follows the load, which may double every 20 minutes.
  https://cloud.google.com/storage/quotas, https://cloud.google.com/storage/docs/request-rate
- S3: at least 3,500 writes and 5,500 reads a second per partitioned prefix, 503 above; partitions are split
  after 30 to 60 minutes of load, which is left out here.
  https://repost.aws/knowledge-center/s3-object-key-naming-pattern
- Prices: $0.005 per 1,000 writes or listings, $0.0004 per 1,000 reads, at both; Google deletes for free.
  https://cloud.google.com/storage/pricing-examples, https://aws.amazon.com/s3/pricing
- Latencies: AWS states 100 to 200 ms for a small object's first byte; nobody publishes a distribution. Those
  here are an assumption, with that in their tail.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from benchmarks.scale.engine import Machine, Simulation
from sweeps.errors import AlreadyExists, Conflict, StoreUnavailable
from sweeps.storage.base import Entry, NotFound
from sweeps.storage.retries import RetryPolicy

T = TypeVar("T")
Kind = Literal["read", "write", "list", "delete"]

EPOCH = 1.8e9
AT_ONCE = 100
"""Reads that a client sends concurrently."""
CHUNK = 500
"""Reads of one call after which the bucket's rate is looked at again."""
DECODE_S = 1e-4
"""Time to parse a record: 0.06 to 0.09 ms measured, the listing's part beside."""
NAMES = 1000
"""Names in one answer to a listing."""

RETRIES = RetryPolicy()


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Log-normal distribution by its median and its 99th percentile, in seconds."""

    median: float
    p99: float

    def draw(self, chance: np.random.Generator, count: int = 1) -> np.ndarray:
        return chance.lognormal(math.log(self.median), math.log(self.p99 / self.median) / 2.326, count)


@dataclass(frozen=True, kw_only=True)
class Service:
    """A kind of bucket.

    Args:
        writes_s, reads_s: requests a second that a new bucket serves.
        name_interval_s: the least seconds between two changes of one name.
        doubles_after_s: seconds of full load after which it serves twice as much; None: never.
        clock_s: seconds for which a client's clock is good before it asks the server again by a read; None:
            every answer tells the time.
        tombstones: whether a record is deleted by a write.
    """

    name: str
    writes_s: float
    reads_s: float
    name_interval_s: float = 0.0
    doubles_after_s: float | None = None
    clock_s: float | None = None
    tombstones: bool = False
    read: Latency = Latency(median=0.03, p99=0.2)
    write: Latency = Latency(median=0.06, p99=0.4)
    list: Latency = Latency(median=0.08, p99=0.5)


GCS = Service(name="gs", writes_s=1000, reads_s=5000, name_interval_s=1.0, doubles_after_s=1200)
S3 = Service(name="s3", writes_s=3500, reads_s=5500, clock_s=10.0, tombstones=True)
SERVICES = {service.name: service for service in (GCS, S3)}

USD: dict[str, float] = {"write": 5e-6, "list": 5e-6, "read": 4e-7, "delete": 0.0}


class Refused(Exception):
    """An answer of 429 or 503, or none."""


class _Rate:
    """Limit of requests a second that follows the load."""

    def __init__(self, least: float, doubles_after_s: float | None) -> None:
        self._least = self.limit = self._tokens = least
        self._minutes = None if doubles_after_s is None else deque[int](maxlen=round(doubles_after_s / 60))
        self._at, self._minute, self._served = 0.0, 0, 0
        self.peak = 0  # most requests that were served in one second
        self._second, self._in_second = 0, 0

    def admit(self, now: float, count: int) -> int:
        """Return how many of so many requests are served now."""
        while self._minute < int(now / 60):
            self._minute += 1
            if self._minutes is not None:
                self._minutes.append(self._served)
                if len(self._minutes) == self._minutes.maxlen:
                    self.limit = max(self._least, 2 * min(self._minutes) / 60)
            self._served = 0
        self._tokens = min(self.limit, self._tokens + (now - self._at) * self.limit)
        self._at = now
        served = min(count, int(self._tokens))
        self._tokens -= served
        self._served += served
        if self._second != int(now):
            self._second, self._in_second = int(now), 0
        self._in_second += served
        self.peak = max(self.peak, self._in_second)
        return served


@dataclass
class Bucket:
    """State of a bucket, and what it was asked for.

    Attributes:
        requests: answered ones by kind, 404 and 412 among them: those are billed here, though Google bills
            no 4xx. `refused` are neither billed nor in it.
        cut: regions that cannot reach it now.
    """

    simulation: Simulation
    service: Service
    chance: np.random.Generator
    requests: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    cut: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._data: dict[str, bytes] = {}
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []
        self._changed: dict[str, float] = {}
        self._versions = 0
        service = self.service
        self.rates = {
            "write": _Rate(service.writes_s, service.doubles_after_s),
            "read": _Rate(service.reads_s, service.doubles_after_s),
        }

    def now(self) -> float:
        return EPOCH + float(self.simulation.env.now)

    def usd(self) -> float:
        return sum(count * USD[kind] for kind, count in self.requests.items())

    def count(self, prefix: str) -> int:
        return len(self.list(prefix))

    # ---- requests as they take effect

    def admit(self, kind: Kind, count: int = 1) -> int:
        """Count requests, and return how many of them are served."""
        rate = self.rates["read" if kind in ("read", "list") else "write"]
        served = rate.admit(float(self.simulation.env.now), count)
        self.requests[kind] += served
        self.refused[kind] += count - served
        return served

    def read(self, key: str) -> tuple[bytes, str] | None:
        return (self._data[key], self._entries[key].version) if key in self._data else None

    def list(self, prefix: str) -> list[Entry]:
        first = bisect_left(self._keys, prefix)
        last = bisect_left(self._keys, prefix + "\U0010ffff")
        return [self._entries[key] for key in self._keys[first:last]]

    def put(self, key: str, data: bytes | None, expected: str | None) -> str | None:
        """Write over a version, or remove it; None if it is not there. Raises Refused if it is too soon."""
        entry = self._entries.get(key)
        if (entry.version if entry else None) != expected:
            return None
        if self.now() - self._changed.get(key, 0.0) < self.service.name_interval_s:
            raise Refused
        self._changed[key] = self.now()
        if data is None:
            del self._data[key], self._entries[key]
            self._keys.remove(key)
            return ""
        if entry is None:
            insort(self._keys, key)
        self._versions += 1
        self._data[key] = data
        self._entries[key] = Entry(key, str(self._versions), self.now())
        return str(self._versions)


class SimulatedStore:
    """`Store` of one machine in a simulated bucket."""

    is_remote = True
    url = "sim://bucket/sweep"

    def __init__(self, bucket: Bucket, machine: Machine, region: str, folder: Path) -> None:
        self._bucket, self._machine, self._region, self._folder = bucket, machine, region, folder
        self.write_interval_s = bucket.service.name_interval_s
        self._sleep, self._clock_at = bucket.simulation.sleep, -math.inf

    def location(self, key: str) -> str:
        return f"{self.url}/{key}"

    def read(self, key: str) -> tuple[bytes, str]:
        found = self._request("read", key, lambda: self._bucket.read(key))
        if found is None:
            raise NotFound(key, self.location(key))
        return found

    def read_many(self, keys: Sequence[str]) -> list[tuple[bytes, str] | None]:
        if len(keys) < 2 or self._is_cut():
            return [self._request("read", key, lambda key=key: self._bucket.read(key)) for key in keys]
        found: list[tuple[bytes, str] | None] = []
        for first in range(0, len(keys), CHUNK):
            chunk = keys[first : first + CHUNK]
            took = self._bucket.service.read.draw(self._bucket.chance, len(chunk))
            self._sleep(max(took.max(), took.sum() / AT_ONCE) + len(chunk) * DECODE_S)
            served = self._bucket.admit("read", len(chunk))
            found += [self._bucket.read(key) for key in chunk[:served]]
            for key in chunk[served:]:  # the clients repeat what was refused one by one
                found.append(self._request("read", key, lambda key=key: self._bucket.read(key)))
        return found

    def create(self, key: str, data: bytes) -> str:
        version = self._request("write", key, lambda: self._bucket.put(key, data, None), None)
        if version is None:
            raise AlreadyExists(key)
        return version

    def replace(self, key: str, data: bytes, expected: str) -> str:
        version = self._request("write", key, lambda: self._bucket.put(key, data, expected), expected)
        if version is None:
            raise Conflict(key)
        return version

    def delete(self, key: str, expected: str) -> None:
        kind: Kind = "write" if self._bucket.service.tombstones else "delete"
        if self._request(kind, key, lambda: self._bucket.put(key, None, expected), expected) is None:
            raise Conflict(key)

    def list(self, prefix: str) -> list[Entry]:
        found = self._request("list", prefix, lambda: self._bucket.list(prefix))
        for _ in range(1, math.ceil(len(found) / NAMES)):  # the other pages, one after another
            self._request("list", prefix, lambda: None)
        return found

    def now(self) -> float:
        fresh_s = self._bucket.service.clock_s
        if fresh_s is not None and self._bucket.now() - self._clock_at > fresh_s:
            self._request("read", "sweep.json", lambda: None)
            self._clock_at = self._bucket.now()
        return self._bucket.now()

    def folder(self, prefix: str) -> Path:
        return self._folder  # of all: nothing is written there

    def _is_cut(self) -> bool:
        return self._region in self._bucket.cut

    def _request(self, kind: Kind, key: str, act: Callable[[], T], expected: str | None = "") -> T:
        """Do one request as the clients do it: again after a refusal, until two minutes are over.

        Args:
            expected: the version that a write is for. After a refusal the object is read: if that version is
                gone, the write need not be tried again.
        """
        began, bound = self._bucket.now(), RETRIES.first_wait_s
        while True:
            try:
                return self._once(kind, act)
            except Refused:
                if kind in ("write", "delete") and not self._is_cut():
                    found = self._request("read", key, lambda: self._bucket.read(key))
                    if (found[1] if found else None) != expected:
                        with suppress(Refused):  # the version may have come back meanwhile
                            return act()  # refused by the bucket: the version is not there
                wait_s = self._bucket.chance.uniform(bound, 1.5 * bound)
                if self._bucket.now() - began + wait_s > RETRIES.total_s:
                    raise StoreUnavailable(
                        f"{self.location(key)}: no answer for {RETRIES.total_s:g} s"
                    ) from None
                self._sleep(wait_s)
                bound = min(2 * bound, RETRIES.longest_wait_s)

    def _once(self, kind: Kind, act: Callable[[], T]) -> T:
        service = self._bucket.service
        latency = {"read": service.read, "list": service.list}.get(kind, service.write)
        took = float(latency.draw(self._bucket.chance)[0])
        self._sleep(took / 2)
        if self._is_cut():
            self._sleep(RETRIES.attempt_s - took / 2)
            raise Refused
        try:
            if not self._bucket.admit(kind):
                raise Refused
            result = act()
        except Refused:
            self._sleep(took / 2)
            raise
        self._sleep(took / 2)
        return result
