"""Buckets and objects with their generations and preconditions."""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import google_crc32c

_UNKNOWN_OF_PARTS = ("composed", "md5Hash")  # of objects that were uploaded in parts


class ApiError(Exception):
    """Response with an error status, in Google's words."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status, self.reason, self.message = status, reason, message
        super().__init__(f"{status} {reason}: {message}")


@dataclass(frozen=True, kw_only=True)
class StoredObject:
    bucket: str
    name: str
    data: bytes
    generation: int
    metageneration: int = 1
    created: float
    updated: float
    about: Mapping[str, object] = field(default_factory=dict)  # contentType, cacheControl, metadata, …

    @property
    def md5(self) -> str:
        return base64.b64encode(hashlib.md5(self.data).digest()).decode()

    @property
    def crc32c(self) -> str:
        return base64.b64encode(google_crc32c.value(self.data).to_bytes(4, "big")).decode()

    def resource(self) -> dict[str, object]:
        document = {
            **self.about,
            "kind": "storage#object",
            "id": f"{self.bucket}/{self.name}/{self.generation}",
            "name": self.name,
            "bucket": self.bucket,
            "generation": str(self.generation),
            "metageneration": str(self.metageneration),
            "size": str(len(self.data)),
            "storageClass": "STANDARD",
            "md5Hash": self.md5,
            "crc32c": self.crc32c,
            "etag": base64.b64encode(str(self.generation).encode()).decode(),
            "timeCreated": _rfc3339(self.created),
            "updated": _rfc3339(self.updated),
        }
        return (
            {name: value for name, value in document.items() if name not in _UNKNOWN_OF_PARTS}
            if "composed" in self.about
            else document
        )


class Objects:
    """All stored objects. `clock_skew_s` makes the service's clock wrong. Thread-safe.

    `one_write_per_second` refuses a second change of one name within a second of real time.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock_skew_s = 0.0
        self.one_write_per_second = False
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: dict[str, dict[str, StoredObject]] = {}
        self._generation = 0
        self._changed: dict[tuple[str, str], float] = {}

    def now(self) -> float:
        return self._clock() + self.clock_skew_s

    def make_bucket(self, bucket: str) -> None:
        with self._lock:
            self._buckets.setdefault(bucket, {})

    def buckets(self) -> list[str]:
        with self._lock:
            return sorted(self._buckets)

    def get(self, bucket: str, name: str, query: Mapping[str, str]) -> StoredObject:
        with self._lock:
            present = self._bucket(bucket).get(name)
            if present is None and "ifGenerationMatch" not in query:
                raise _no_object(bucket, name)
            _check(present, query, reading=True)
            if present is None or query.get("generation", str(present.generation)) != str(present.generation):
                raise _no_object(bucket, name)
            return present

    def put(
        self, bucket: str, name: str, data: bytes, about: Mapping[str, object], query: Mapping[str, str]
    ) -> StoredObject:
        with self._lock:
            objects = self._bucket(bucket)
            self._limit_rate(bucket, name)
            _check(objects.get(name), query, reading=False)
            now = self.now()
            fresh = StoredObject(
                bucket=bucket,
                name=name,
                data=bytes(data),
                generation=self._next_generation(now),
                created=now,
                updated=now,
                about={k: v for k, v in about.items() if k not in ("name", "bucket", "md5Hash", "crc32c")},
            )
            _check_digests(fresh, about)
            objects[name] = fresh
            self._changed[bucket, name] = time.monotonic()
            return fresh

    def patch(
        self, bucket: str, name: str, about: Mapping[str, object], query: Mapping[str, str]
    ) -> StoredObject:
        with self._lock:
            present = self._bucket(bucket).get(name)
            if present is None:
                raise _no_object(bucket, name)
            self._limit_rate(bucket, name)
            _check(present, query, reading=False)
            merged = replace(
                present,
                about={**present.about, **about},
                metageneration=present.metageneration + 1,
                updated=self.now(),
            )
            self._bucket(bucket)[name] = merged
            return merged

    def delete(self, bucket: str, name: str, query: Mapping[str, str]) -> None:
        with self._lock:
            objects = self._bucket(bucket)
            if name not in objects:
                raise _no_object(bucket, name)
            self._limit_rate(bucket, name)
            _check(objects[name], query, reading=False)
            if query.get("generation", str(objects[name].generation)) != str(objects[name].generation):
                raise _no_object(bucket, name)
            del objects[name]
            self._changed[bucket, name] = time.monotonic()

    def names(self, bucket: str, prefix: str = "") -> list[str]:
        """Return the names in the service's order: by the bytes of UTF-8."""
        with self._lock:
            found = [name for name in self._bucket(bucket) if name.startswith(prefix)]
        return sorted(found, key=str.encode)

    def _bucket(self, bucket: str) -> dict[str, StoredObject]:
        if bucket not in self._buckets:
            raise ApiError(404, "notFound", "The specified bucket does not exist.")
        return self._buckets[bucket]

    def _next_generation(self, now: float) -> int:
        self._generation = max(self._generation + 1, int(now * 1e6))
        return self._generation

    def _limit_rate(self, bucket: str, name: str) -> None:
        last = self._changed.get((bucket, name))
        if self.one_write_per_second and last is not None and time.monotonic() - last < 1.0:
            raise ApiError(
                429,
                "rateLimitExceeded",
                f"The object {bucket}/{name} exceeded the rate limit for object mutation operations "
                "(create, update, and delete). Please reduce your request rate.",
            )


def _check(present: StoredObject | None, query: Mapping[str, str], *, reading: bool) -> None:
    """Check the preconditions; 0 stands for "absent"."""
    generation = 0 if present is None else present.generation
    metageneration = 0 if present is None else present.metageneration
    failed = ApiError(
        412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold."
    )
    for name, value in (("Generation", generation), ("Metageneration", metageneration)):
        wanted, unwanted = query.get(f"if{name}Match"), query.get(f"if{name}NotMatch")
        for expected in (wanted, unwanted):
            if expected is not None and not expected.lstrip("-").isdecimal():
                raise ApiError(400, "invalid", f"Invalid value for if{name}Match: {expected}")
        if wanted is not None and int(wanted) != value:
            raise failed
        if unwanted is not None and int(unwanted) == value:
            raise ApiError(304, "notModified", "") if reading else failed


def _check_digests(fresh: StoredObject, about: Mapping[str, object]) -> None:
    for name, label, value in (("md5Hash", "MD5 hash", fresh.md5), ("crc32c", "CRC32C", fresh.crc32c)):
        expected = about.get(name)
        if expected is not None and expected != value:
            raise ApiError(
                400, "invalid", f'Provided {label} "{expected}" doesn\'t match calculated {label} "{value}".'
            )


def _no_object(bucket: str, name: str) -> ApiError:
    return ApiError(404, "notFound", f"No such object: {bucket}/{name}")


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
