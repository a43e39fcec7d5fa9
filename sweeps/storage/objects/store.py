"""Store in a bucket of S3, or of a service that speaks its protocol, or in a container of Azure.

Versions are ETags, and writes name the one they expect. What is stored is never the same twice (`stored`), so
that the look after a failed write shows for certain whose it was.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from sweeps.errors import AlreadyExists, Conflict, InputError, StoreConflict, SweepError
from sweeps.storage.bucket_url import AZ, S3, parse_url
from sweeps.storage.keys import COPYING_KEY, SWEEP_KEY, checked_key, checked_prefix
from sweeps.storage.objects import settings
from sweeps.storage.objects.azure import AzureClient
from sweeps.storage.objects.bucket import BucketStore, Object
from sweeps.storage.objects.s3 import NO_CHANGES, NO_CONDITIONS, NO_SERVICE, ETagClient, S3Client
from sweeps.storage.objects.stored import (
    TOMBSTONE_BYTES,
    TRAILER_BYTES,
    has_nonce,
    is_tombstone,
    tombstone,
    with_nonce,
    without_nonce,
)
from sweeps.storage.retries import RetryPolicy

log = logging.getLogger(__name__)


class ObjectStore(BucketStore):
    """`Store` under `s3://bucket/prefix` or `az://container/prefix`.

    Args:
        url: `s3://bucket/prefix/NAME`, literal: nothing in it is unquoted.
        endpoint: base URL of the service; None for the environment's, see `S3Client` and `AzureClient`.
        retries: timeouts and backoff of requests.

    Raises:
        InputError: the URL names no bucket, or the environment no service.
    """

    _unique = True

    def __init__(self, url: str, *, endpoint: str | None = None, retries: RetryPolicy | None = None) -> None:
        bucket, prefix = parse_url(url, (S3, AZ))
        self.client: ETagClient
        client = AzureClient if url.startswith(AZ) else S3Client
        super().__init__(url, prefix, client(bucket, endpoint=endpoint, retries=retries or RetryPolicy()))
        self._tombstones: dict[str, str] = {}  # the last seen of each key
        self._records: dict[str, str] = {}  # the last versions that were known to end with a nonce

    def create(self, key: str, data: bytes) -> str:
        if key in (SWEEP_KEY, COPYING_KEY):
            self._check_conditions()
        return super().create(key, data)

    def read(self, key: str) -> tuple[bytes, str]:
        found = super().read(key)
        if key == SWEEP_KEY and found[0].lstrip()[:1] == b"<":  # no JSON: a site that has a page for any path
            raise InputError(f"{self.url}: {NO_SERVICE}")
        return found

    def delete(self, key: str, expected: str) -> None:
        """Replace a record by a tombstone; remove a file of a run, whose name nobody writes again."""
        if self._records.get(key) == expected or self._is_record(key, expected):
            self._tombstones[key] = self._write(key, tombstone(), expected, Conflict)
        else:
            self.discard(key, expected)

    def discard(self, key: str, version: str) -> None:
        """Remove an object, whatever its version, if it exists: nobody writes this name again."""
        import obstore

        async def send() -> None:
            await obstore.delete_async(self.client.store(), self.name(key))

        url = self.location(key)
        try:
            self.client.retry(lambda: self.client.once(send, url), url)
        except FileNotFoundError:
            return

    def folders(self) -> tuple[str, ...]:
        import obstore

        async def send() -> Any:
            return await obstore.list_with_delimiter_async(self.client.store(), self._prefix or None)

        self._require_service()
        found = self.client.retry(lambda: self.client.once(send, self.url), self.url)
        return tuple(str(name).rpartition("/")[2] for name in found["common_prefixes"])

    def clear(self, kept: Sequence[str]) -> None:
        """Remove all tombstones but those of `kept`; nobody may create objects meanwhile."""
        for found in self._listing(""):
            if found.key not in kept and found.size == TOMBSTONE_BYTES:
                self.discard(found.key, found.version)

    def objects(self, prefix: str) -> Sequence[Object]:
        found = self._listing(prefix)
        unknown = [
            each.key
            for each in found
            if each.size == TOMBSTONE_BYTES and self._tombstones.get(each.key) != each.version
        ]
        for key, stored in zip(unknown, self._fetch_many(unknown), strict=True):
            self._record(key, stored)
        return [each for each in found if self._tombstones.get(each.key) != each.version]

    # ---- what is stored

    def _stored(self, data: bytes) -> bytes:
        return with_nonce(data)

    def _free_version(self, key: str) -> str | None:
        return self._tombstones.get(key)

    def _record(self, key: str, found: tuple[bytes, str] | None) -> tuple[bytes, str] | None:
        if found is None:
            return None
        stored, version = found
        if is_tombstone(stored):
            self._tombstones[key] = version
            return None
        if has_nonce(stored):
            self._records[key] = version
        return without_nonce(stored), version

    def _write(self, key: str, stored: bytes, expected: str | None, conflict: type[StoreConflict]) -> str:
        version = super()._write(key, stored, expected, conflict)
        self._records[key] = version
        return version

    def _is_record(self, key: str, expected: str) -> bool:
        """Return whether the version of a key ends with a nonce. Raises `Conflict` if it is not there."""
        import obstore

        async def send() -> bool:
            found = await obstore.get_async(self.client.store(), self.name(key))
            size = found.meta["size"]
            if self.client.version(found.meta, self.location(key)) != expected:
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

        return self.client.retry(attempt, self.location(checked_key(key)))

    def _listing(self, prefix: str) -> Sequence[Object]:
        """Return all objects whose key starts with `prefix`, sorted by key, tombstones too."""
        import obstore

        checked_prefix(prefix)
        # obstore lists whole folders only.
        inside = prefix.rpartition("/")[0]
        root = "/".join(part for part in (self._prefix, inside) if part)
        skipped = len(self._prefix) + 1 if self._prefix else 0

        async def send() -> Sequence[Any]:
            return await obstore.list(self.client.store(), root or None).collect_async()

        self._require_service()
        limit_s = self.client.retries.total_s  # of all pages
        listed = self.client.retry(lambda: self.client.once(send, self.url, limit_s=limit_s), self.url)
        found = [
            Object(
                str(item["path"])[skipped:],
                self.client.version(item, self.url),
                item["last_modified"].timestamp(),
                item["size"],
            )
            for item in listed
        ]
        # S3's console makes a folder by an object whose name ends with "/", which obstore lists without it.
        return sorted(each for each in found if each.key and each.key.startswith(prefix))

    def _require_service(self) -> None:
        """Raise `InputError` if this is no storage service: a page of HTML would be listed as no objects."""
        if not self.client.answered and self._fetch(f"probe-{secrets.token_hex(8)}") is not None:
            self.client.answered = False
            raise InputError(f"{self.url}: {NO_SERVICE}")

    def settings(self, key: str) -> tuple[str, str]:
        """Return why no sweep can be kept in this bucket, and what makes one expensive, or "" for each.

        Args:
            key: of an object that is there.
        """
        headers = self.client.head(self.name(key), self.location(key))
        bucket = self.client.bucket
        return settings.refusal(headers, bucket), settings.warning(headers, bucket)

    def _check_conditions(self) -> None:
        """Try whether a sweep can be made here: the service heeds what a write expects, and keeps records.

        Raises:
            InputError: it cannot.
        """
        key, stored = f"probe-{secrets.token_hex(8)}", with_nonce(b"probe")
        version = self._write(key, with_nonce(b"probe"), None, AlreadyExists)
        try:
            if self._puts(key, stored, None) or self._puts(key, stored, "0" * 32):
                raise InputError(f"{self.url}: {NO_CONDITIONS}")
            if not self._puts(key, stored, version):
                self.client.respell()
                if not self._puts(key, stored, version):
                    raise InputError(f"{self.url}: {NO_CHANGES}")
            problem, costs = self.settings(key)
            if problem:
                raise InputError(f"{self.url}: {problem}")
            if costs:
                log.warning("%s: %s", self.url, costs)
        except BaseException:
            with suppress(SweepError):  # what was wrong before is the cause
                self.discard(key, version)
            raise
        finally:
            self._records.pop(key, None)
        self.discard(key, version)
        log.debug("%s: conditional writes work (%s)", self.url, version)
