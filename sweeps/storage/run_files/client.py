"""Client for large objects: in parts, resumed after an interruption, checked by md5.

Connections and credentials are those of the store's gcsfs; the retries are our own, for the reasons in
`gcs.client`, and because an upload in parts resumes behind the last part that arrived. Every write names the
generation that it replaces and carries its md5: a late duplicate of an earlier attempt is refused, and so are
bytes that changed in transit or in the file.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, NamedTuple, Protocol, runtime_checkable
from urllib.parse import quote

from sweeps.errors import EnvironmentFault, StoreUnavailable
from sweeps.storage.base import Store
from sweeps.storage.bucket_url import parse_url
from sweeps.storage.gcs.classification import Response, Transient, document
from sweeps.storage.gcs.request import multipart
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.keys import checked_key
from sweeps.storage.run_files.exchange import BulkRequest, Deadline, Retrier, exchange
from sweeps.storage.run_files.manifest import Digest, digest

MAX_CONFLICTS = 5
_RANGE = re.compile(r"bytes=0-(\d+)")
_OBJECT = "name,generation,size,md5Hash"


@runtime_checkable
class Bucket(Store, Protocol):
    """A store in a bucket: its local folders are not where bulk data is kept."""

    def sizes(self, prefix: str) -> Mapping[str, int]:
        """Return the bytes of all objects whose key starts with `prefix`."""

    def copy(self, key: str, target: str) -> None:
        """Copy an object, as it is stored, to the same key of the sweep at the URL `target`."""

    def clear(self, kept: Sequence[str]) -> None:
        """Remove what deleted objects leave behind, but of the keys `kept`; nobody may write meanwhile."""


class Remote(NamedTuple):
    """Metadata of an object; generation "0" stands for a missing one, md5 is in base64."""

    generation: str
    size: int
    md5: str

    def holds(self, content: Digest) -> bool:
        """Return whether the bytes are certainly these; a version of S3 may be their md5, too."""
        hexadecimal = base64.b64decode(content.md5).hex()
        return self.size == content.size and (self.md5 == content.md5 or self.generation == hexadecimal)

    def contradicts(self, content: Digest) -> bool:
        """Return whether the bytes certainly differ: not every service reports an md5."""
        return self.size != content.size or self.md5 not in (content.md5, "")


class Changed(EnvironmentFault):
    """A file or object that was written or removed during its transfer."""


@dataclass(kw_only=True)
class _Upload:
    """State of a resumable upload: URL of its parts, bytes that arrived, whether that count is uncertain."""

    url: str = ""
    arrived: int = 0
    in_doubt: bool = False


class RunFilesClient:
    """Client for the objects below `prefix` of one bucket, for one thread at a time.

    Attributes:
        repeats_names: whether a name may be used again after its object was deleted. Where a delete names no
            version, a late one would remove the new object.

    Args:
        prefix: key prefix of the run folder.
        deadline: retries, and the time when to stop them.
    """

    repeats_names = True

    def __init__(self, store: GcsStore, prefix: str, deadline: Deadline) -> None:
        self._store, self._prefix, self._deadline = store, checked_key(prefix), deadline
        self._bucket, self._root = parse_url(store.location(prefix))
        self._chunk = deadline.config.chunk_bytes

    def listing(self) -> dict[str, Remote]:
        """Return every object below the prefix, by its name relative to it."""
        start = f"{self._root}/"
        query = {"prefix": start, "maxResults": "1000", "fields": f"items({_OBJECT}),nextPageToken"}
        found: dict[str, Remote] = {}
        while True:
            request = BulkRequest(method="GET", path=f"{self._bucket_path}/o", query=query)
            page = document(self._request(request, ""), self._url(""))
            found |= {item["name"][len(start) :]: _remote(item) for item in page.get("items") or ()}
            if not page.get("nextPageToken"):
                return found
            query = {**query, "pageToken": page["nextPageToken"]}

    def put(
        self, name: str, file: IO[bytes], content: Digest, *, replaces: str, growing: bool = False
    ) -> Remote:
        """Upload the first `content.size` bytes of a file.

        Args:
            name: name of the object below the prefix.
            content: digest of the bytes.
            replaces: generation to overwrite, "0" for a new object.
            growing: bytes may be appended to the file meanwhile.

        Raises:
            Changed: the file no longer has this content.
            StoreUnavailable: no success in time, or another program writes this object.
        """
        check = check_prefix(file, content) if growing else check_untouched(file)
        for _ in range(MAX_CONFLICTS):
            response = self._put(name, file, content, replaces, check)
            if response.status != 412:
                stored = _remote(document(response, self._url(name), needs="generation"))
                if stored.contradicts(content):
                    raise StoreUnavailable(
                        f"{self._url(name)}: the storage service keeps other bytes than sent"
                    )
                return stored
            # Our own earlier attempt, or another writer's object: only its content matters.
            present = self.stat(name)
            if present.holds(content):
                return present
            replaces = present.generation
        raise StoreUnavailable(f"{self._url(name)}: another program writes this object; end it")

    def stat(self, name: str) -> Remote:
        """Return the object's metadata; generation "0" where there is no object."""
        request = BulkRequest(method="GET", path=self._object_path(name), query={"fields": _OBJECT})
        response = self._request(request, name, missing=True)
        if response.status == 404:
            return Remote("0", 0, "")
        return _remote(document(response, self._url(name), needs="generation"))

    def get(self, name: str, generation: str, size: int, file: IO[bytes]) -> None:
        """Append the object's bytes to the file until it has `size` of them.

        Raises:
            Changed: the object no longer has this generation.
        """
        while (start := file.tell()) < size:
            stop = min(start + self._chunk, size)
            request = BulkRequest(
                method="GET",
                path=f"/download{self._object_path(name)}",
                query={"alt": "media", "generation": generation},
                headers={"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"},
                expected_bytes=stop - start,
            )
            response = self._request(request, name, missing=True)
            if response.status != 206 or len(response.body) != stop - start:
                raise Changed(f"{self._url(name)}: it is not there as its manifest says")
            file.write(response.body)

    def delete(self, name: str, generation: str) -> None:
        """Remove this generation of the object, if it exists."""
        request = BulkRequest(
            method="DELETE", path=self._object_path(name), query={"ifGenerationMatch": generation}
        )
        self._request(request, name, missing=True)

    # ---- uploads

    def _put(
        self, name: str, file: IO[bytes], content: Digest, replaces: str, check: Callable[[], None]
    ) -> Response:
        metadata = {
            "name": f"{self._root}/{checked_key(name)}",
            "contentType": "application/octet-stream",
            "cacheControl": "no-store",
            "md5Hash": content.md5,
        }
        query = {"ifGenerationMatch": replaces, "fields": _OBJECT}
        path = f"/upload{self._bucket_path}/o"
        retrier, upload = Retrier(self._deadline, self._url(name)), _Upload()

        def attempt() -> Response:
            before = upload.arrived
            try:
                if content.size <= self._chunk:
                    headers, body = multipart(metadata, os.pread(file.fileno(), content.size, 0))
                    once = query | {"uploadType": "multipart"}
                    request = BulkRequest(method="POST", path=path, query=once, headers=headers, body=body)
                    return self._attempt(request, name)
                start = BulkRequest(
                    method="POST",
                    path=path,
                    query=query | {"uploadType": "resumable"},
                    headers={"Content-Type": "application/json; charset=UTF-8"},
                    body=json.dumps(metadata).encode(),
                )
                return self._send_parts(upload, start, file, content.size)
            except Transient:
                check()
                upload.in_doubt = True
                if upload.arrived > before:
                    retrier.refresh()
                raise

        response = retrier.call(attempt)
        if response.status == 404:
            raise StoreUnavailable(f"{self._url(name)}: there is no bucket {self._bucket}")
        return response

    def _send_parts(self, upload: _Upload, start: BulkRequest, file: IO[bytes], size: int) -> Response:
        """Send the remaining parts; return the response to the last, or to `start` if that was refused."""
        if not upload.url:
            response = self._attempt(start, "")
            if "Location" not in response.headers:
                return response
            upload.url, upload.arrived, upload.in_doubt = response.headers["Location"], 0, False
        while True:
            part, shown = b"", f"*/{size}"  # the question how many bytes arrived
            if not upload.in_doubt:
                part = os.pread(file.fileno(), min(self._chunk, size - upload.arrived), upload.arrived)
                if not part:
                    raise Changed("the file became shorter while it was uploaded")
                shown = f"{upload.arrived}-{upload.arrived + len(part) - 1}/{size}"
            headers = {"Content-Range": f"bytes {shown}"}
            response = self._attempt(
                BulkRequest(method="PUT", path=upload.url, headers=headers, body=part), ""
            )
            if response.status in (404, 410):
                upload.url = ""
                raise Transient("the service has forgotten this upload", in_doubt=False)
            if response.status != 308:
                return response
            arrived = _RANGE.fullmatch(response.headers.get("Range", ""))
            upload.arrived, upload.in_doubt = int(arrived[1]) + 1 if arrived else 0, False

    # ---- requests

    def _request(self, request: BulkRequest, name: str, *, missing: bool = False) -> Response:
        response = Retrier(self._deadline, self._url(name)).call(lambda: self._attempt(request, name))
        if response.status == 404 and not missing:
            raise StoreUnavailable(f"{self._url(name)}: there is no bucket {self._bucket}")
        return response

    def _attempt(self, request: BulkRequest, name: str) -> Response:
        return exchange(self._store.filesystem, request, self._url(name), self._deadline)

    def _url(self, name: str) -> str:
        return self._store.location(f"{self._prefix}/{name}" if name else self._prefix)

    @property
    def _bucket_path(self) -> str:
        return f"/storage/v1/b/{quote(self._bucket, safe='')}"

    def _object_path(self, name: str) -> str:
        return f"{self._bucket_path}/o/{quote(f'{self._root}/{checked_key(name)}', safe='')}"


def check_untouched(file: IO[bytes]) -> Callable[[], None]:
    """Return a function that raises `Changed` once the file is written to."""
    written = os.fstat(file.fileno()).st_mtime_ns

    def check() -> None:
        if os.fstat(file.fileno()).st_mtime_ns != written:
            raise Changed("the file was written while it was uploaded")

    return check


def check_prefix(file: IO[bytes], content: Digest) -> Callable[[], None]:
    """Return a function that raises `Changed` once the file no longer begins with this content."""

    def check() -> None:
        try:
            same = digest(file, content.size) == content
        except EOFError:
            same = False
        if not same:
            raise Changed("the file was rewritten while it was uploaded")

    return check


def _remote(item: Mapping[str, Any]) -> Remote:
    # A composed object has no md5; we never write one. Servers written in Go omit fields that are zero.
    return Remote(str(item["generation"]), int(item.get("size") or 0), item.get("md5Hash") or "")
