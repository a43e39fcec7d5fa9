"""Store in a bucket of Google Cloud Storage: versions are generations, and writes name the one they expect.

Records carry a unique token, so that no two writers write the same bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from sweeps.errors import AlreadyExists, Conflict, InputError
from sweeps.storage.bucket_url import GS, parse_url
from sweeps.storage.gcs.client import GoogleClient, object_path
from sweeps.storage.keys import COPYING_KEY, SWEEP_KEY, checked_prefix
from sweeps.storage.objects.answers import not_a_service
from sweeps.storage.objects.bucket import BucketStore, Object
from sweeps.storage.retries import RetryPolicy, Transient
from sweeps.text import json_reader

_PAGE = 1000  # the service's limit
_NO_CONDITIONS = (
    "the service that STORAGE_EMULATOR_HOST names has no conditional writes (x-goog-if-generation-match), "
    "without which two workers could take one trial; use one that has them"
)
_ITEMS = "items(name,generation,updated,timeCreated,size,md5Hash),nextPageToken"


class GcsStore(BucketStore):
    """`Store` under `gs://bucket/prefix`.

    Args:
        url: `gs://bucket/prefix/NAME`, literal: nothing in it is unquoted.
        endpoint: base URL of the service; None for STORAGE_EMULATOR_HOST, else Google.
        retries: timeouts and backoff of requests.

    Raises:
        InputError: the URL names no bucket, or the environment no service.
    """

    write_interval_s = 1.0  # the service refuses earlier changes with 429
    client: GoogleClient

    def __init__(self, url: str, *, endpoint: str | None = None, retries: RetryPolicy | None = None) -> None:
        bucket, prefix = parse_url(url, (GS,))
        client = GoogleClient(bucket, endpoint=endpoint, retries=retries or RetryPolicy())
        super().__init__(url, prefix, client)

    def create(self, key: str, data: bytes) -> str:
        if key in (SWEEP_KEY, COPYING_KEY) and not self.client.is_google:
            self._check_conditions()
        return super().create(key, data)

    def replace(self, key: str, data: bytes, expected: str) -> str:
        if not _is_generation(expected):
            raise Conflict(key)
        return super().replace(key, data, expected)

    def delete(self, key: str, expected: str) -> None:
        path, url, in_doubt = object_path(self.name(key)), self.location(key), False
        if not _is_generation(expected):
            raise Conflict(key)

        def attempt() -> None:
            nonlocal in_doubt
            try:
                status = self.client.request("DELETE", path, url, {"ifGenerationMatch": expected}).status_code
            except Transient as error:
                in_doubt = in_doubt or error.in_doubt
                raise
            gone = status == 404 and in_doubt  # deleted by our earlier attempt
            if status not in (200, 204) and not gone:
                raise Conflict(key)

        self.client.retry(attempt, url)

    def objects(self, prefix: str) -> Sequence[Object]:
        root, found = f"{self._prefix}/" if self._prefix else "", []
        for item in self._pages(root + checked_prefix(prefix), "items", fields=_ITEMS):
            key = str(item["name"])[len(root) :]
            if not (generation := item.get("generation")):
                raise not_a_service(
                    f"{self.location(key)}: the listing names no generation, without which no change is safe"
                )
            # Servers written in Go omit fields that are zero. What was uploaded in parts has no md5.
            size, md5 = int(item.get("size") or 0), str(item.get("md5Hash") or "")
            # An object of unknown age counts as new: old ones may be removed.
            updated = _time(item.get("updated")) or _time(item.get("timeCreated")) or self.now()
            found.append(Object(key, str(generation), updated, size, md5))
        return sorted(found)

    def folders(self) -> tuple[str, ...]:
        root = f"{self._prefix}/" if self._prefix else ""
        found = self._pages(root, "prefixes", delimiter="/", fields="prefixes,nextPageToken")
        return tuple(str(name)[len(root) : -1] for name in found)

    def discard(self, key: str, version: str) -> None:
        try:
            self.delete(key, version)
        except Conflict:
            return

    def clear(self, kept: Sequence[str]) -> None:
        """Do nothing: deleted objects leave nothing behind."""

    def _check_conditions(self) -> None:
        """Try whether a service that is not Google's heeds what a write expects. Raises `InputError`."""
        key = f"probe-{secrets.token_hex(8)}"
        self._write(key, b"probe", None, AlreadyExists)
        try:
            if not (self._puts(key, b"again", None) or self._puts(key, b"again", "1")):
                try:
                    self.delete(key, "1")  # fake-gcs-server does it
                except Conflict:
                    return
            raise InputError(f"{self.url}: {_NO_CONDITIONS}")
        finally:
            if (found := self._fetch(key)) is not None:
                self.discard(key, found[1])

    def _pages(self, start: str, kind: str, **options: str) -> Iterator[Any]:
        """Yield the entries of this kind of a listing, with one request per thousand."""
        query = {"prefix": start, "maxResults": str(_PAGE), **options}
        while True:
            response = self.client.retry(lambda: self.client.request("GET", "o", self.url, query), self.url)
            if response.status_code == 404:
                raise self.client.no_bucket(self.url)
            try:
                page = json_reader.parse(response.content)
                yield from page.get(kind) or ()
            except (ValueError, AttributeError) as error:
                raise not_a_service(
                    f"{self.url}: the storage service's answer cannot be read ({error})"
                ) from None
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]


def _time(written: object) -> float | None:
    """Return seconds since the epoch, or None for what is no time."""
    try:
        return datetime.fromisoformat(str(written)).timestamp()
    except (ValueError, OverflowError):
        return None


def _is_generation(version: str) -> bool:
    """Return whether the service would compare it: generation 0 means "if absent" there."""
    return version.isascii() and version.isdecimal() and int(version) > 0
