"""What the stores of all services have in common: records through obstore, and writes that are in doubt.

Buckets are strongly consistent: every later read and listing sees a write. Only the fate of a write is
uncertain that was answered by no verdict: the object is then read back, before the write is sent again. If it
holds our bytes, we wrote it; if it has another version than expected, somebody else did.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sweeps.errors import AlreadyExists, Conflict, InputError, StoreConflict
from sweeps.storage.base import Entry, NotFound, Part
from sweeps.storage.bucket_url import parse_url
from sweeps.storage.keys import SWEEP_KEY, checked_key
from sweeps.storage.objects.answers import is_refusal, refusal_of
from sweeps.storage.objects.client import BULK_TIMEOUT_S, ObjectClient
from sweeps.storage.retries import Transient
from sweeps.storage.scratch import Scratch

log = logging.getLogger(__name__)

CLOCK_FRESH_S = 10.0
"""Seconds for which the clock runs on this machine's own before it asks the server again."""
_AT_ONCE = 100


class Object(NamedTuple):
    """An object of a listing; `updated` is the store's seconds since the epoch, `md5` in base64 or ""."""

    key: str
    version: str
    updated: float
    size: int
    md5: str = ""


class BucketStore(ABC):
    """`Store` in a bucket.

    Args:
        url: `SCHEME://bucket/prefix/NAME`, literal: nothing in it is unquoted.
        prefix: the URL's.
    """

    is_remote = True
    write_interval_s = 0.0

    def __init__(self, url: str, prefix: str, client: ObjectClient) -> None:
        self.url, self._prefix, self.client = url.rstrip("/"), prefix, client
        self._scratch = Scratch(self.url, client.bucket, prefix)

    # ---- what differs between the services

    @abstractmethod
    def delete(self, key: str, expected: str) -> None: ...

    @abstractmethod
    def objects(self, prefix: str) -> Sequence[Object]:
        """Return all objects whose key starts with `prefix`, sorted by key."""

    @abstractmethod
    def folders(self) -> tuple[str, ...]:
        """Return the first parts of all keys that have several, with one request per thousand of them."""

    @abstractmethod
    def discard(self, key: str, version: str) -> None:
        """Remove a file of a run, if it exists."""

    @abstractmethod
    def clear(self, kept: Sequence[str]) -> None:
        """See `run_files.client.Bucket`."""

    def _stored(self, data: bytes) -> bytes:
        """Return the bytes to store for a record."""
        return data

    def _record(self, key: str, found: tuple[bytes, str] | None) -> tuple[bytes, str] | None:
        """Return the record and version in what is stored, None if that stands for no object."""
        return found

    _unique = False
    """Whether no two writes store the same bytes."""

    def _free_version(self, key: str) -> str | None:
        """Return the last known version of what stands for no object, None where nothing does."""
        return None

    # ---- a store's

    def location(self, key: str) -> str:
        return f"{self.url}/{key}"

    def read(self, key: str) -> tuple[bytes, str]:
        found = self._record(key, self.client.retry(lambda: self._fetch(key), self.location(key)))
        if found is None:
            raise NotFound(key, self.location(key))
        return found

    def read_many(self, keys: Sequence[str]) -> list[tuple[bytes, str] | None]:
        stored = self._fetch_many([checked_key(key) for key in keys])
        return [self._record(key, found) for key, found in zip(keys, stored, strict=True)]

    def read_part(self, key: str, start: int, most: int) -> Part:
        import obstore

        url, name = self.location(key), self.name(key)

        async def send() -> Part:
            # Asked for its size first: Azure does not count from the end, and all refuse a part past it.
            about = await obstore.head_async(self.client.store(), name)
            size = about["size"]
            begin = start if start >= 0 else max(0, size + start)
            if begin >= size:
                return Part(b"", size, self.client.version(about, url))
            options: Any = {"range": (begin, min(begin + most, size))}
            found = await obstore.get_async(self.client.store(), name, options=options)
            data = bytes(await found.bytes_async())
            return Part(data, found.meta["size"], self.client.version(found.meta, url))

        limit_s = 2 * self.client.retries.attempt_s
        try:
            return self.client.retry(lambda: self.client.once(send, url, limit_s=limit_s), url)
        except FileNotFoundError:
            raise NotFound(key, url) from None

    def create(self, key: str, data: bytes) -> str:
        return self._write(key, self._stored(data), None, AlreadyExists)

    def replace(self, key: str, data: bytes, expected: str) -> str:
        return self._write(key, self._stored(data), expected, Conflict)

    def list(self, prefix: str) -> list[Entry]:
        """Return all objects whose key starts with `prefix`, with one request per thousand."""
        return [Entry(found.key, found.version, found.updated) for found in self.objects(prefix)]

    def now(self) -> float:
        """Return the service's time in seconds since the epoch, as `ServerClock` estimates it."""
        if self.client.clock.age() > CLOCK_FRESH_S:
            self.client.observe_clock(self.name(SWEEP_KEY), self.url)
        return self.client.clock.now()

    def folder(self, prefix: str) -> Path:
        return self._scratch.folder(prefix)

    def sizes(self, prefix: str) -> Mapping[str, int]:
        return {found.key: found.size for found in self.objects(prefix)}

    def copy(self, key: str, target: str) -> None:
        import obstore

        _, prefix = parse_url(target)

        async def send() -> None:
            await obstore.copy_async(self.client.store(bulk=True), self.name(key), f"{prefix}/{key}")

        url = self.location(key)
        self.client.retry(lambda: self.client.once(send, url, limit_s=BULK_TIMEOUT_S), url)

    def name(self, key: str) -> str:
        """Return the object's name in the bucket. Raises `ValueError` for an unfit key."""
        return f"{self._prefix}/{checked_key(key)}" if self._prefix else checked_key(key)

    # ---- requests

    async def _get(self, key: str) -> tuple[bytes, str]:
        import obstore

        found = await obstore.get_async(self.client.store(), self.name(key))
        version = self.client.version(found.meta, self.location(key))
        return bytes(await found.bytes_async()), version

    def _fetch(self, key: str) -> tuple[bytes, str] | None:
        """Return what is stored under the key, or None, with one attempt. Raises `Transient`, too."""
        checked_key(key)
        try:
            return self.client.once(lambda: self._get(key), self.location(key))
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
            return [self.client.retry(partial(self._fetch, key), self.location(key)) for key in keys]
        results: Sequence[tuple[bytes, str] | Exception]
        try:
            rounds = -(-len(keys) // _AT_ONCE)
            limit_s = rounds * self.client.retries.attempt_s
            results = self.client.once(send, self.url, limit_s=limit_s, holds_errors=True)
        except Transient as error:
            results = [error] * len(keys)
        if not all(isinstance(result, Exception) for result in results):
            self.client.answered = True
        # All before the first retry, which may sign in anew: an old refusal is none of the new credentials.
        meanings = [
            self.client.meaning(result, self.location(key)) if isinstance(result, Exception) else result
            for key, result in zip(keys, results, strict=True)
        ]
        found: list[tuple[bytes, str] | None] = []
        for key, meaning in zip(keys, meanings, strict=True):
            if not isinstance(meaning, Exception):
                found.append(meaning)
            elif isinstance(meaning, FileNotFoundError):
                found.append(None)
            elif isinstance(meaning, Transient):
                found.append(self.client.retry(partial(self._fetch, key), self.location(key)))
            else:
                raise meaning
        return found

    def _put(self, key: str, stored: bytes, expected: str | None) -> str:
        import obstore

        async def send() -> str:
            mode: Any = "create" if expected is None else self.client.expectation(expected)
            kind = "application/json" if key.endswith(".json") else "application/octet-stream"
            result = await obstore.put_async(
                self.client.store(),
                self.name(key),
                stored,
                mode=mode,
                attributes={"Cache-Control": "no-store", "Content-Type": kind},
                use_multipart=False,
            )
            return self.client.version(result, self.location(key))

        try:
            version = self.client.once(send, self.location(key))
        except FileNotFoundError as error:
            if expected is not None:
                raise
            # Nothing can be made there, and a bucket that does not exist has another answer.
            raise InputError(str(self.client.verdict(refusal_of(error), self.location(key)))) from None
        self.client.written = True
        return version

    def _puts(self, key: str, stored: bytes, expected: str | None) -> bool:
        """Return whether the service accepts new bytes for an object that has to have this version."""

        def attempt() -> bool:
            try:
                self._put(key, stored, expected)
            except Exception as error:  # obstore's, by their names
                if not is_refusal(error):
                    raise
                found = self._fetch(key)  # an earlier attempt may have been accepted, and its answer lost
                return found is not None and found[0] == stored
            return True

        return self.client.retry(attempt, self.location(key))

    def _write(self, key: str, stored: bytes, expected: str | None, conflict: type[StoreConflict]) -> str:
        """Write over a version, or for None where there is no object."""
        where = self.location(checked_key(key))
        over = self._free_version(key) if expected is None else expected
        in_doubt = self._unique  # then a look costs nothing but a request

        def attempt() -> str:
            nonlocal over, in_doubt
            respelled = False
            while True:
                refused = False
                try:
                    return self._put(key, stored, over)
                except Transient as error:
                    failure, in_doubt = error, in_doubt or error.in_doubt
                except Exception as error:  # obstore's classes go by their names: it is imported late
                    if not is_refusal(error):
                        raise
                    if not in_doubt:  # else it may be of our own earlier attempt
                        raise conflict(key) from None
                    failure = Transient(refusal_of(error).detail, in_doubt=True)
                    refused = True
                found = self._fetch(key)
                version = None if found is None else found[1]
                if found is not None and found[0] == stored and version != over and in_doubt:
                    log.info("%s: the response to a write was lost, the write was not", where)
                    return found[1]
                is_free = self._record(key, found) is None
                if not is_free if expected is None else version != expected:
                    raise conflict(key) from None
                if version == over:  # nothing has happened yet
                    if not refused or respelled or over is None or not self.client.respell():
                        raise failure from None
                    respelled = True
                over = version

        return self.client.retry(attempt, where)
