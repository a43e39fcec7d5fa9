"""Store in a bucket of Google Cloud Storage: versions are generations, and writes name the one they expect.

A bucket is strongly consistent: every later read and listing sees a write. Only the fate of a request whose
response was lost is uncertain. It is sent again; if it is then refused because the version has changed, the
object is read back: if it holds our bytes, we wrote it. Records carry a unique token, so that no two writers
write the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sweeps.errors import AlreadyExists, Conflict, InputError, StoreConflict
from sweeps.storage.base import Entry, NotFound
from sweeps.storage.bucket_url import GS, parse_url
from sweeps.storage.gcs.classification import Response, document, not_a_service
from sweeps.storage.gcs.client import Client, RecordRequest, RetryPolicy
from sweeps.storage.gcs.clock import ServerClock
from sweeps.storage.gcs.request import multipart
from sweeps.storage.keys import checked_key, checked_prefix
from sweeps.storage.scratch import Scratch

if TYPE_CHECKING:
    from gcsfs.core import GCSFileSystem

log = logging.getLogger(__name__)

CLOCK_FRESH_S = 10.0
"""Seconds for which the clock runs on this machine's own before it asks the server again."""
_PAGE = 1000  # the service's limit
_SWEEP = "sweep.json"
_DONE = frozenset({200, 201, 204})


class GcsStore:
    """`Store` under `gs://bucket/prefix`.

    Args:
        url: `gs://bucket/prefix/NAME`, literal: nothing in it is unquoted.
        endpoint: base URL of the service; None for gcsfs' own rules (`STORAGE_EMULATOR_HOST`, else Google).
        retries: timeouts and backoff of requests.

    Raises:
        InputError: the URL names no bucket.
    """

    is_remote = True
    write_interval_s = 1.0  # the service refuses earlier changes with 429

    def __init__(self, url: str, *, endpoint: str | None = None, retries: RetryPolicy | None = None) -> None:
        self.url = url.rstrip("/")
        self._bucket, self._prefix = parse_url(url, (GS,))
        self._clock = ServerClock()
        self._client = Client(
            self._bucket, endpoint=endpoint, retries=retries or RetryPolicy(), clock=self._clock
        )
        self._bucket_exists = False
        self._scratch = Scratch(self.url, self._bucket, self._prefix)

    def location(self, key: str) -> str:
        return f"{self.url}/{key}"

    def filesystem(self) -> GCSFileSystem:
        """Return this process's gcsfs file system, for bulk data; it caches no listings."""
        return self._client.filesystem()

    def read(self, key: str) -> tuple[bytes, str]:
        response = self._read(key)
        if response is not None:
            return response
        if not self._bucket_exists:  # a missing bucket has the same status as a missing object
            query = {"maxResults": "1", "prefix": self._name(""), "fields": "kind"}
            if self._request("GET", f"{self._bucket_path}/o", "", query=query).status == 404:
                raise self._no_bucket()
        raise NotFound(key, self.location(key))

    def read_many(self, keys: Sequence[str]) -> list[tuple[bytes, str] | None]:
        responses = self._client.request_many([self._read_request(key) for key in keys])
        return [_content(response, self.location(key)) for key, response in zip(keys, responses, strict=True)]

    def create(self, key: str, data: bytes) -> str:
        return self._put(key, data, "0", AlreadyExists)

    def replace(self, key: str, data: bytes, expected: str) -> str:
        if not _is_generation(expected):
            raise Conflict(key)
        return self._put(key, data, expected, Conflict)

    def delete(self, key: str, expected: str) -> None:
        if not _is_generation(expected):
            raise Conflict(key)
        response = self._request("DELETE", self.object_path(key), key, query={"ifGenerationMatch": expected})
        gone = response.status == 404 and response.in_doubt  # deleted by our earlier attempt
        if response.status not in _DONE and not gone:
            raise Conflict(key)

    def list(self, prefix: str) -> list[Entry]:
        """Return all objects whose key starts with `prefix`, with one request per thousand."""
        start, found = self._name(checked_prefix(prefix)), []
        for item in (item for page in self._pages(start) for item in page.get("items") or ()):
            key = str(item["name"])[len(self._name("")) :]
            if not (generation := item.get("generation")):
                raise not_a_service(
                    f"{self.location(key)}: the listing names no generation, without which no change is safe"
                )
            updated = _time(item.get("updated")) or _time(item.get("timeCreated"))
            # An object of unknown age counts as new: old ones may be removed.
            found.append(Entry(key, str(generation), self.now() if updated is None else updated))
        return sorted(found)

    def folders(self) -> tuple[str, ...]:
        """Return the first parts of all keys that have several, with one request per thousand of them."""
        start = self._name("")
        pages = self._pages(start, delimiter="/", fields="prefixes,nextPageToken")
        return tuple(str(name)[len(start) : -1] for page in pages for name in page.get("prefixes") or ())

    def now(self) -> float:
        """Return the service's time in seconds since the epoch, as `ServerClock` estimates it."""
        if self._clock.age() > CLOCK_FRESH_S:
            # The cheapest request that any account with access may send; a 404 has a `Date`, too.
            self._request("GET", self.object_path(_SWEEP), _SWEEP, query={"fields": "generation"})
        try:
            return self._clock.now()
        except RuntimeError:
            raise not_a_service(
                f"{self.url}: the storage service's answers carry no Date, which leases need"
            ) from None

    def folder(self, prefix: str) -> Path:
        return self._scratch.folder(prefix)

    # ---- a bucket's: see `run_files.client.Bucket`

    def sizes(self, prefix: str) -> Mapping[str, int]:
        root = self.location("").removeprefix(GS)
        found = self.filesystem().find(f"{root}{prefix}", detail=True)
        return {name.removeprefix(root): int(about["size"]) for name, about in found.items()}

    def copy(self, key: str, target: str) -> None:
        self.filesystem().cp_file(self.location(key).removeprefix(GS), f"{target}/{key}".removeprefix(GS))

    def clear(self, kept: Sequence[str]) -> None:
        """Do nothing: deleted objects leave nothing behind."""

    # ---- requests

    def _read(self, key: str) -> tuple[bytes, str] | None:
        response = self._client.request(self._read_request(key))
        if response.status in _DONE:
            self._bucket_exists = True
        return _content(response, self.location(key))

    def _read_request(self, key: str) -> RecordRequest:
        path = "/download" + self.object_path(key)
        return RecordRequest(method="GET", path=path, url=self.location(key), query={"alt": "media"})

    def _put(self, key: str, data: bytes, generation: str, conflict: type[StoreConflict]) -> str:
        """Upload with a checksum, so that the service refuses damaged bytes, and without caching."""
        metadata = {
            "name": self._name(checked_key(key)),
            "contentType": "application/json" if key.endswith(".json") else "application/octet-stream",
            "cacheControl": "no-store",
            "md5Hash": base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode(),
        }
        headers, body = multipart(metadata, data)
        response = self._request(
            "POST",
            f"/upload/storage/v1/b/{quote(self._bucket, safe='')}/o",
            key,
            query={"uploadType": "multipart", "ifGenerationMatch": generation, "fields": "generation"},
            body=body,
            headers=headers,
            is_moot=lambda: self._generation(key) != generation,
        )
        if response.status == 404:
            raise self._no_bucket()
        if response.status in _DONE:
            return _generation(response, self.location(key))
        if response.in_doubt and (found := self._read(key)) is not None and found[0] == data:
            log.info("%s: the response to a write was lost, the write was not", self.location(key))
            return found[1]
        raise conflict(key)

    def _generation(self, key: str) -> str:
        """Return the object's current version, "0" where there is no object."""
        response = self._request("GET", self.object_path(key), key, query={"fields": "generation"})
        return "0" if response.status == 404 else _generation(response, self.location(key))

    def _pages(self, start: str, **options: str) -> Iterator[dict[str, Any]]:
        fields = "items(name,generation,updated,timeCreated),nextPageToken"
        query = {"prefix": start, "maxResults": str(_PAGE), "fields": fields, **options}
        while True:
            response = self._request("GET", f"{self._bucket_path}/o", "", query=query)
            if response.status == 404:
                raise self._no_bucket()
            page = document(response, self.url)
            yield page
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]

    def _request(self, method: str, path: str, key: str, **options: Any) -> Response:
        url = self.location(key) if key else self.url
        response = self._client.request(RecordRequest(method=method, path=path, url=url, **options))
        if response.status in _DONE:
            self._bucket_exists = True
        return response

    def _no_bucket(self) -> InputError:
        return InputError(
            f"{self.url}: there is no bucket {self._bucket}; make it with `gcloud storage buckets create "
            f"gs://{self._bucket} --uniform-bucket-level-access`, or correct --storage"
        )

    # ---- names

    @property
    def _bucket_path(self) -> str:
        return f"/storage/v1/b/{quote(self._bucket, safe='')}"

    def object_path(self, key: str) -> str:
        """Return the path of the object's requests, quoted. Raises `ValueError` for an unfit key."""
        return f"{self._bucket_path}/o/{quote(self._name(checked_key(key)), safe='')}"

    def _name(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key


def _content(response: Response, where: str) -> tuple[bytes, str] | None:
    if response.status == 404:
        return None
    if not (generation := response.headers.get("X-Goog-Generation")):
        raise not_a_service(
            f"{where}: the storage service's answer carries no X-Goog-Generation, which records need"
        )
    return response.body, generation


def _time(written: object) -> float | None:
    """Return seconds since the epoch, or None for what is no time."""
    try:
        return datetime.fromisoformat(str(written)).timestamp()
    except (ValueError, OverflowError):
        return None


def _generation(response: Response, url: str) -> str:
    return str(document(response, url, needs="generation")["generation"])


def _is_generation(version: str) -> bool:
    """Return whether the service would compare it: generation 0 means "if absent" there."""
    return version.isascii() and version.isdecimal() and int(version) > 0
