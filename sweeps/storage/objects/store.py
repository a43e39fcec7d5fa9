"""Store in a bucket of S3, or of a service that speaks its protocol.

Versions are ETags, and writes name the one they expect. S3 is strongly consistent: every later read and
listing sees a write. A write that failed in any way, a refusal included, is in doubt: the object is read
back, and it was done if its bytes are ours, which no other write has (`stored`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sweeps.errors import AlreadyExists, Conflict, InputError, StoreConflict, StoreUnavailable
from sweeps.storage.base import Entry, NotFound
from sweeps.storage.bucket_url import S3, parse_url
from sweeps.storage.gcs.classification import Transient
from sweeps.storage.gcs.client import RetryPolicy
from sweeps.storage.keys import COPYING_KEY, SWEEP_KEY, checked_key, checked_prefix
from sweeps.storage.objects.answers import NO_CONDITIONS
from sweeps.storage.objects.client import BULK_TIMEOUT_S, ObjectClient
from sweeps.storage.objects.stored import (
    TOMBSTONE_BYTES,
    TRAILER_BYTES,
    has_nonce,
    is_tombstone,
    tombstone,
    with_nonce,
    without_nonce,
)
from sweeps.storage.scratch import Scratch

log = logging.getLogger(__name__)

CLOCK_FRESH_S = 10.0
"""Seconds for which the clock runs on this machine's own before it asks the server again."""
_AT_ONCE = 100


class Object(NamedTuple):
    """An object of a listing; `updated` is the store's time in seconds since the epoch."""

    key: str
    version: str
    updated: float
    size: int


class ObjectStore:
    """`Store` under `s3://bucket/prefix`.

    Args:
        url: `s3://bucket/prefix/NAME`, literal: nothing in it is unquoted.
        endpoint: base URL of the service; None for AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, else AWS itself.
        retries: timeouts and backoff of requests.

    Raises:
        InputError: the URL names no bucket, or the environment no service.
    """

    is_remote = True
    write_interval_s = 0.0

    def __init__(self, url: str, *, endpoint: str | None = None, retries: RetryPolicy | None = None) -> None:
        self.url = url.rstrip("/")
        self._bucket, self._prefix = parse_url(url, (S3,))
        self.client = ObjectClient(self._bucket, endpoint=endpoint, retries=retries or RetryPolicy())
        self._scratch = Scratch(self.url, self._bucket, self._prefix)
        self._tombstones: dict[str, str] = {}  # the last seen of each key
        self._records: dict[str, str] = {}  # the last versions that were known to end with a nonce

    def location(self, key: str) -> str:
        return f"{self.url}/{key}"

    def read(self, key: str) -> tuple[bytes, str]:
        found = self._present(key, self.client.retried(lambda: self._fetch(key), self.location(key)))
        if found is None:
            raise NotFound(key, self.location(key))
        return found

    def read_many(self, keys: Sequence[str]) -> list[tuple[bytes, str] | None]:
        stored = self._fetch_many([checked_key(key) for key in keys])
        return [self._present(key, found) for key, found in zip(keys, stored, strict=True)]

    def create(self, key: str, data: bytes) -> str:
        if key in (SWEEP_KEY, COPYING_KEY):
            self._check_conditions()
        return self._write(key, with_nonce(data), None, AlreadyExists)

    def replace(self, key: str, data: bytes, expected: str) -> str:
        return self._write(key, with_nonce(data), expected, Conflict)

    def delete(self, key: str, expected: str) -> None:
        """Replace a record by a tombstone; remove a file of a run, whose name nobody writes again."""
        if self._records.get(key) == expected or self._is_record(key, expected):
            self._tombstones[key] = self._write(key, tombstone(), expected, Conflict)
        else:
            self.remove(key)

    def list(self, prefix: str) -> list[Entry]:
        """Return all objects whose key starts with `prefix`, with one request per thousand."""
        return [Entry(found.key, found.version, found.updated) for found in self.objects(prefix)]

    def folders(self) -> tuple[str, ...]:
        """Return the first parts of all keys that have several, with one request per thousand of them."""
        import obstore

        async def send() -> Any:
            return await obstore.list_with_delimiter_async(self.client.store(), self._prefix or None)

        found = self.client.retried(lambda: self.client.once(send, self.url), self.url)
        return tuple(str(name).rpartition("/")[2] for name in found["common_prefixes"])

    def now(self) -> float:
        """Return the service's time in seconds since the epoch, as `ServerClock` estimates it."""
        if self.client.clock.age() > CLOCK_FRESH_S:
            self.client.observe_clock(self.name(SWEEP_KEY), self.url)
        return self.client.clock.now()

    def folder(self, prefix: str) -> Path:
        return self._scratch.folder(prefix)

    # ---- a bucket's: see `run_files.client.Bucket`

    def sizes(self, prefix: str) -> Mapping[str, int]:
        return {found.key: found.size for found in self.objects(prefix)}

    def copy(self, key: str, target: str) -> None:
        import obstore

        _, prefix = parse_url(target, (S3,))

        async def send() -> None:
            await obstore.copy_async(self.client.store(bulk=True), self.name(key), f"{prefix}/{key}")

        url = self.location(key)
        self.client.retried(lambda: self.client.once(send, url, limit_s=BULK_TIMEOUT_S), url)

    def clear(self, kept: Sequence[str]) -> None:
        """Remove all tombstones but those of `kept`; nobody may create objects meanwhile."""
        for found in self._objects("", tombstones=True):
            if found.key not in kept and found.size == TOMBSTONE_BYTES:
                self.remove(found.key)

    def objects(self, prefix: str) -> Sequence[Object]:
        """Return all objects whose key starts with `prefix`, sorted by key, tombstones left out."""
        return self._objects(prefix)

    def remove(self, key: str) -> None:
        """Remove an object, whatever its version, if it exists."""
        import obstore

        async def send() -> None:
            await obstore.delete_async(self.client.store(), self.name(key))

        url = self.location(key)
        try:
            self.client.retried(lambda: self.client.once(send, url), url)
        except FileNotFoundError:
            return

    def name(self, key: str) -> str:
        """Return the object's name in the bucket. Raises `ValueError` for an unfit key."""
        return f"{self._prefix}/{checked_key(key)}" if self._prefix else checked_key(key)

    # ---- requests

    async def _get(self, key: str) -> tuple[bytes, str]:
        import obstore

        found = await obstore.get_async(self.client.store(), self.name(key))
        version = _version(found.meta["e_tag"], self.location(key))
        return bytes(await found.bytes_async()), version

    def _fetch(self, key: str) -> tuple[bytes, str] | None:
        """Return what is stored under the key, or None, with one attempt. Raises `Transient`, too."""
        try:
            return self.client.once(lambda: self._get(checked_key(key)), self.location(key))
        except FileNotFoundError:
            return None

    def _fetch_many(self, keys: Sequence[str]) -> Sequence[tuple[bytes, str] | None]:
        """Return what is stored under each key: sent concurrently, and retried one by one."""
        limit = asyncio.Semaphore(_AT_ONCE)

        async def caught(key: str) -> tuple[bytes, str] | Exception:
            async with limit:
                try:
                    return await self._get(key)
                except Exception as error:  # noqa: BLE001 - sorted below
                    return error

        async def send() -> Sequence[tuple[bytes, str] | Exception]:
            return await asyncio.gather(*map(caught, keys))

        if len(keys) < 2:
            return [self.client.retried(partial(self._fetch, key), self.location(key)) for key in keys]
        try:
            rounds = -(-len(keys) // _AT_ONCE)
            limit_s = rounds * self.client.retries.attempt_s
            results = self.client.once(send, self.url, limit_s=limit_s, holds_errors=True)
        except Transient as error:
            results = [error] * len(keys)
        found: list[tuple[bytes, str] | None] = []
        for key, result in zip(keys, results, strict=True):
            if not isinstance(result, Exception):
                self.client.answered = True
                found.append(result)
            elif isinstance(raised := self.client.raised(result, self.location(key)), FileNotFoundError):
                found.append(None)
            elif isinstance(raised, Transient):
                found.append(self.client.retried(partial(self._fetch, key), self.location(key)))
            else:
                raise raised
        return found

    def _present(self, key: str, found: tuple[bytes, str] | None) -> tuple[bytes, str] | None:
        """Return a record's bytes and version, None for a tombstone."""
        if found is None:
            return None
        stored, version = found
        if is_tombstone(stored):
            self._tombstones[key] = version
            return None
        if has_nonce(stored):
            self._records[key] = version
        return without_nonce(stored), version

    def _put(self, key: str, stored: bytes, expected: str | None) -> str:
        import obstore

        async def send() -> str:
            result = await obstore.put_async(
                self.client.store(),
                self.name(key),
                stored,
                mode="create" if expected is None else {"e_tag": f'"{expected}"'},
                attributes={"Cache-Control": "no-store"},
                use_multipart=False,
            )
            return _version(result["e_tag"], self.location(key))

        return self.client.once(send, self.location(key))

    def _write(self, key: str, stored: bytes, expected: str | None, conflict: type[StoreConflict]) -> str:
        """Write bytes that no other write has over a version, or for None where there is no object."""
        where = self.location(checked_key(key))
        over = self._tombstones.get(key) if expected is None else expected

        def attempt() -> str:
            nonlocal over
            while True:
                try:
                    return self._put(key, stored, over)
                except (InputError, StoreUnavailable):
                    raise
                except Exception as error:  # noqa: BLE001 - a refusal, too, may be of our own earlier attempt
                    found = self._fetch(key)
                    if found is not None and found[0] == stored:
                        log.info("%s: the response to a write was lost, the write was not", where)
                        return found[1]
                    version = None if found is None else found[1]
                    if expected is None and found is not None and not is_tombstone(found[0]):
                        raise conflict(key) from None
                    if expected is not None and version != expected:
                        raise conflict(key) from None
                    if version == over:  # nothing has happened yet
                        raise Transient(str(error), in_doubt=True) from None
                    over = version

        version = self.client.retried(attempt, where)
        self._records[key] = version
        return version

    def _is_record(self, key: str, expected: str) -> bool:
        """Return whether the version of a key ends with a nonce. Raises `Conflict` if it is not there."""
        import obstore

        async def send() -> bool:
            found = await obstore.get_async(self.client.store(), self.name(key))
            size = found.meta["size"]
            if _version(found.meta["e_tag"], self.location(key)) != expected:
                raise Conflict(key)
            if size < TRAILER_BYTES:
                return False
            end = await obstore.get_range_async(
                self.client.store(), self.name(key), start=size - TRAILER_BYTES, end=size
            )
            return has_nonce(bytes(end))

        def attempt() -> bool:
            try:
                return self.client.once(send, self.location(key))
            except FileNotFoundError:
                raise Conflict(key) from None

        return self.client.retried(attempt, self.location(checked_key(key)))

    def _objects(self, prefix: str, *, tombstones: bool = False) -> Sequence[Object]:
        import obstore

        checked_prefix(prefix)
        # obstore lists whole folders only.
        inside = prefix.rpartition("/")[0]
        root = "/".join(part for part in (self._prefix, inside) if part)
        skipped = len(self._prefix) + 1 if self._prefix else 0

        async def send() -> Sequence[Any]:
            return await obstore.list(self.client.store(), root or None).collect_async()

        limit_s = self.client.retries.total_s  # of all pages
        listed = self.client.retried(lambda: self.client.once(send, self.url, limit_s=limit_s), self.url)
        found = [
            Object(
                str(item["path"])[skipped:],
                _version(item["e_tag"], self.url),
                item["last_modified"].timestamp(),
                item["size"],
            )
            for item in listed
        ]
        # S3's console makes a folder by an object whose name ends with "/", which obstore lists without it.
        found = sorted(each for each in found if each.key and each.key.startswith(prefix))
        if tombstones:
            return found
        unknown = [
            each.key
            for each in found
            if each.size == TOMBSTONE_BYTES and self._tombstones.get(each.key) != each.version
        ]
        for key, stored in zip(unknown, self._fetch_many(unknown), strict=True):
            self._present(key, stored)
        return [each for each in found if self._tombstones.get(each.key) != each.version]

    def _check_conditions(self) -> None:
        """Try whether the service heeds what a write expects, before a sweep is made. Raises `InputError`."""
        import obstore.exceptions

        key = f"probe-{secrets.token_hex(8)}"
        version = self._write(key, with_nonce(b"probe"), None, AlreadyExists)
        try:
            for expected in (None, "0" * 32):
                try:
                    self.client.retried(partial(self._put, key, b"", expected), self.location(key))
                except (
                    obstore.exceptions.AlreadyExistsError,
                    obstore.exceptions.PreconditionError,
                    FileNotFoundError,
                ):
                    continue
                raise InputError(f"{self.url}: {NO_CONDITIONS}")
        finally:
            self.remove(key)
            self._records.pop(key, None)
        log.debug("%s: conditional writes work (%s)", self.url, version)


def _version(e_tag: str | None, where: str) -> str:
    if not e_tag:
        raise StoreUnavailable(f"{where}: the storage service names no ETag, without which no change is safe")
    return e_tag.strip('"')
