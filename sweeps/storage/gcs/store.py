"""A store in a bucket of Google Cloud Storage: versions are generations, writes name the one they expect.

Opened by `urls`. A bucket is strongly consistent: a write is seen by every later read and listing. What is
not certain is the fate of a request whose answer was lost. Such a request is sent again; if it is then
refused since the version has moved on, the object is read back: if it holds our very bytes, we wrote it.
Records carry a unique token, so two writers never mean the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import shutil
import tempfile
import threading
import uuid
import weakref
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sweeps.errors import AlreadyExists, Conflict, InputError, StoreUnavailable
from sweeps.storage.base import Entry, NotFound
from sweeps.storage.gcs.classification import Response, document
from sweeps.storage.gcs.client import Client, RecordRequest, RetryPolicy
from sweeps.storage.gcs.clock import ServerClock
from sweeps.storage.gcs.names import parse_url
from sweeps.storage.keys import checked_key, checked_prefix

if TYPE_CHECKING:
    from gcsfs.core import GCSFileSystem

log = logging.getLogger(__name__)

# How long the clock may run on the machine's own seconds before the server is asked again.
CLOCK_FRESH_S = 10.0
# The service's own limit; a change that comes too early is refused with 429.
WRITE_INTERVAL_S = 1.0
_PAGE = 1000  # the service gives no more objects in one page
_SWEEP = "sweep.json"
_DONE = frozenset({200, 201, 204})


class GcsStore:
    """`Store` under `gs://bucket/prefix`.

    Args:
        url: `gs://bucket/prefix/NAME`, taken literally: nothing in it is unquoted.
        endpoint: base URL of the service; None for gcsfs' own rules (`STORAGE_EMULATOR_HOST`, else Google).
        patience: how long to put up with a failing network.

    Raises:
        InputError: the URL is not one of a bucket.
    """

    def __init__(self, url: str, *, endpoint: str | None = None, retries: RetryPolicy | None = None) -> None:
        self._url = url.rstrip("/")
        self._bucket, self._prefix = parse_url(url)
        self._clock = ServerClock()
        self._client = Client(
            self._bucket, endpoint=endpoint, retries=retries or RetryPolicy(), clock=self._clock
        )
        self._bucket_seen = False
        self._scratch: Path | None = None
        self._scratch_lock = threading.Lock()

    @property
    def url(self) -> str:
        return self._url

    @property
    def is_remote(self) -> bool:
        return True

    @property
    def write_interval_s(self) -> float:
        return WRITE_INTERVAL_S

    def location(self, key: str) -> str:
        return f"{self._url}/{key}"

    def filesystem(self) -> GCSFileSystem:
        """This process's gcsfs file system, for bulk data. Its listings are not cached."""
        return self._client.filesystem()

    def read(self, key: str) -> tuple[bytes, str]:
        answer = self._read(key)
        if answer is None:
            self._check_bucket()
            raise NotFound(key, self.location(key))
        return answer

    def read_many(self, keys: Sequence[str]) -> list[tuple[bytes, str] | None]:
        answers = self._client.request_many([self._to_read(key) for key in keys])
        return [_content(answer, self.location(key)) for key, answer in zip(keys, answers, strict=True)]

    def create(self, key: str, data: bytes) -> str:
        answer = self._upload(key, data, generation="0")
        if answer.status in _DONE:
            return _generation(answer, self.location(key))
        if answer.in_doubt and (mine := self._find_own(key, data)) is not None:
            return mine
        raise AlreadyExists(key)

    def replace(self, key: str, data: bytes, expected: str) -> str:
        if not _is_generation(expected):
            raise Conflict(key)
        answer = self._upload(key, data, generation=expected)
        if answer.status in _DONE:
            return _generation(answer, self.location(key))
        if answer.in_doubt and (mine := self._find_own(key, data)) is not None:
            return mine
        raise Conflict(key)

    def delete(self, key: str, expected: str) -> None:
        if not _is_generation(expected):
            raise Conflict(key)
        answer = self._request("DELETE", self._object_path(key), key, query={"ifGenerationMatch": expected})
        gone = answer.status == 404 and answer.in_doubt  # by an earlier try: nobody else names this version
        if answer.status not in _DONE and not gone:
            raise Conflict(key)

    def list(self, prefix: str) -> list[Entry]:
        """Every object whose key starts with `prefix`: one request for each thousand."""
        start = self._name(checked_prefix(prefix))
        return sorted(self._entry(item) for page in self._pages(start) for item in page.get("items") or ())

    def now(self) -> float:
        """The service's clock, from the `Date` of its last answer and the seconds since; see `gcs_clock`."""
        if self._clock.age() > CLOCK_FRESH_S:
            # The cheapest request that any account with access may send; a missing object answers as well.
            self._request("GET", self._object_path(_SWEEP), _SWEEP, query={"fields": "generation"})
        try:
            return self._clock.now()
        except RuntimeError:
            raise StoreUnavailable(
                f"{self._url}: the storage service's answers carry no Date, which leases need; "
                "is STORAGE_EMULATOR_HOST or a proxy in the way?"
            ) from None

    def folder(self, prefix: str) -> Path:
        """A folder on this machine: below `SWEEP_SCRATCH` and kept, or temporary, gone with the store."""
        folder = self._scratch_root().joinpath(*checked_key(prefix).split("/"))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnavailable(
                f"{folder}: cannot make this folder: {(error.strerror or str(error)).lower()}; "
                "let SWEEP_SCRATCH name a folder that you may write to"
            ) from error
        return folder

    # ---- requests

    def _read(self, key: str) -> tuple[bytes, str] | None:
        answer = self._client.request(self._to_read(key))
        if answer.status in _DONE:
            self._bucket_seen = True
        return _content(answer, self.location(key))

    def _to_read(self, key: str) -> RecordRequest:
        path = "/download" + self._object_path(key)
        return RecordRequest(method="GET", path=path, what=self.location(key), query={"alt": "media"})

    def _upload(self, key: str, data: bytes, *, generation: str) -> Response:
        """One multipart upload: its checksum lets the service refuse damaged bytes, and no cache keeps it."""
        about = {
            "name": self._name(checked_key(key)),
            "contentType": "application/json" if key.endswith(".json") else "application/octet-stream",
            "cacheControl": "no-store",
            "md5Hash": base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode(),
        }
        boundary = uuid.uuid4().hex
        body = (
            f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(about)}\r\n"
            f"--{boundary}\r\nContent-Type: {about['contentType']}\r\n\r\n"
        ).encode() + data
        answer = self._request(
            "POST",
            f"/upload/storage/v1/b/{quote(self._bucket, safe='')}/o",
            key,
            query={"uploadType": "multipart", "ifGenerationMatch": generation, "fields": "generation"},
            body=body + f"\r\n--{boundary}--\r\n".encode(),
            headers={"Content-Type": f"multipart/related; boundary={boundary}"},
            is_moot=lambda: self._generation(key) != generation,
        )
        if answer.status == 404:
            raise self._no_bucket()
        return answer

    def _generation(self, key: str) -> str:
        """The object's present version; "0" where there is none."""
        answer = self._request("GET", self._object_path(key), key, query={"fields": "generation"})
        return "0" if answer.status == 404 else _generation(answer, self.location(key))

    def _find_own(self, key: str, data: bytes) -> str | None:
        """The version under `key` if its bytes are `data`: what a write in doubt has left."""
        found = self._read(key)
        if found is None or found[0] != data:
            return None
        log.info("%s: the answer to a write was lost, the write was not", self.location(key))
        return found[1]

    def _pages(self, start: str) -> Iterator[dict[str, Any]]:
        query = {
            "prefix": start,
            "maxResults": str(_PAGE),
            "fields": "items(name,generation,updated,timeCreated),nextPageToken",
        }
        while True:
            answer = self._request("GET", f"{self._bucket_path}/o", "", query=query)
            if answer.status == 404:
                raise self._no_bucket()
            page = document(answer, self._url)
            yield page
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]

    def _request(self, method: str, path: str, key: str, **options: Any) -> Response:
        what = self.location(key) if key else self._url
        answer = self._client.request(RecordRequest(method=method, path=path, what=what, **options))
        if answer.status in _DONE:
            self._bucket_seen = True
        return answer

    def _check_bucket(self) -> None:
        """Tell a missing bucket from a missing object, once: both answer 404."""
        if self._bucket_seen:
            return
        query = {"maxResults": "1", "prefix": self._name(""), "fields": "kind"}
        if self._request("GET", f"{self._bucket_path}/o", "", query=query).status == 404:
            raise self._no_bucket()

    def _no_bucket(self) -> InputError:
        return InputError(
            f"{self._url}: there is no bucket {self._bucket}; make it with `gcloud storage buckets create "
            f"gs://{self._bucket} --uniform-bucket-level-access`, or correct --storage"
        )

    # ---- names

    @property
    def _bucket_path(self) -> str:
        return f"/storage/v1/b/{quote(self._bucket, safe='')}"

    def _object_path(self, key: str) -> str:
        return f"{self._bucket_path}/o/{quote(self._name(checked_key(key)), safe='')}"

    def _name(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key

    def _entry(self, item: Mapping[str, Any]) -> Entry:
        key = str(item["name"])[len(self._name("")) :]
        if not (generation := item.get("generation")):
            raise StoreUnavailable(
                f"{self.location(key)}: the listing names no generation, without which no change is safe; "
                "is STORAGE_EMULATOR_HOST or a proxy in the way?"
            )
        updated = _time(item.get("updated")) or _time(item.get("timeCreated"))
        # Of unknown age, it is taken for young: what is old may be removed.
        return Entry(key, str(generation), self.now() if updated is None else updated)

    def _scratch_root(self) -> Path:
        if kept := os.environ.get("SWEEP_SCRATCH"):
            return Path(kept, self._bucket, *self._prefix.split("/")).absolute()
        with self._scratch_lock:
            if self._scratch is None:
                self._scratch = Path(tempfile.mkdtemp(prefix="stagesweep-"))
                weakref.finalize(self, _remove_own, self._scratch, os.getpid())
                log.info("%s: bulk files go to %s", self._url, self._scratch)
            return self._scratch


def _remove_own(folder: Path, maker: int) -> None:
    if os.getpid() == maker:  # a forked child ends with its parent's folder still in use
        shutil.rmtree(folder, ignore_errors=True)


def _content(answer: Response, where: str) -> tuple[bytes, str] | None:
    if answer.status == 404:
        return None
    if not (generation := answer.headers.get("X-Goog-Generation")):
        raise StoreUnavailable(
            f"{where}: the storage service's answer carries no X-Goog-Generation, which records need; "
            "is STORAGE_EMULATOR_HOST or a proxy in the way?"
        )
    return answer.body, generation


def _time(written: object) -> float | None:
    """Return the seconds since the epoch; None for what is no time."""
    try:
        return datetime.fromisoformat(str(written)).timestamp()
    except (ValueError, OverflowError):
        return None


def _generation(answer: Response, what: str) -> str:
    return str(document(answer, what, needs="generation")["generation"])


def _is_generation(version: str) -> bool:
    """Generation 0 would mean `if absent` to the service."""
    return version.isascii() and version.isdecimal() and int(version) > 0
