"""Large objects to and from a bucket: in parts, resumed where they were cut off, checked by md5.

Called by `bulk_upload` and `bulk_download`. The connections and credentials are the store's gcsfs; the tries
are our own, for the reasons that `gcs_wire` gives, and because an upload in parts goes on from what has
arrived. Every write names the generation that it replaces and carries its md5: a late echo of an earlier try
is refused, and so are bytes that changed on the way or in the file.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any, NamedTuple, Protocol, runtime_checkable
from urllib.parse import quote

from sweeps.errors import EnvironmentFault, StoreUnavailable
from sweeps.storage.base import Store
from sweeps.storage.gcs.classification import Response, Transient, document
from sweeps.storage.gcs.names import parse_url
from sweeps.storage.keys import checked_key
from sweeps.storage.run_files.exchange import BulkRequest, Deadline, Retrier, exchange
from sweeps.storage.run_files.manifest import Digest, digest

_TRIES_OF_A_RACE = 5
_RANGE = re.compile(r"bytes=0-(\d+)")
_OBJECT = "name,generation,size,md5Hash"


@runtime_checkable
class Bucket(Store, Protocol):
    """A store whose bulk data lies elsewhere than in its local folders."""

    def filesystem(self) -> Any:
        """The gcsfs file system of this process."""


class Remote(NamedTuple):
    """An object as the service describes it; generation "0" is the one of a missing object."""

    generation: str
    size: int
    md5: str

    def holds(self, content: Digest) -> bool:
        return (self.size, self.md5) == (content.size, content.md5)

    def contradicts(self, content: Digest) -> bool:
        """Return whether these are certainly other bytes: a service may keep silent about its md5."""
        return self.size != content.size or self.md5 not in (content.md5, "")


class Changed(EnvironmentFault):
    """A file was written or removed while it was being uploaded; the next scan sees it anew."""


@dataclass(kw_only=True)
class _Upload:
    """A resumable upload: where its parts go, how much has arrived, whether we know that."""

    url: str = ""
    arrived: int = 0
    in_doubt: bool = False


class BulkWire:
    """The objects below `prefix` of one bucket, for one thread at a time.

    Args:
        tempo: how long to try, and when to stop trying.
    """

    def __init__(self, store: Bucket, prefix: str, deadline: Deadline) -> None:
        self._store, self._prefix, self._deadline = store, checked_key(prefix), deadline
        self._bucket, self._root = parse_url(store.location(prefix))
        self._chunk = deadline.pace.chunk_bytes

    def listing(self) -> dict[str, Remote]:
        """Every object below the prefix by its name there."""
        start = f"{self._root}/"
        query = {"prefix": start, "maxResults": "1000", "fields": f"items({_OBJECT}),nextPageToken"}
        found: dict[str, Remote] = {}
        while True:
            request = BulkRequest(method="GET", path=f"{self._bucket_path}/o", query=query)
            page = document(self._answer(request, ""), self._what(""))
            found |= {item["name"][len(start) :]: _remote(item) for item in page.get("items") or ()}
            if not page.get("nextPageToken"):
                return found
            query = {**query, "pageToken": page["nextPageToken"]}

    def put(
        self, name: str, file: IO[bytes], content: Digest, *, replaces: str, growing: bool = False
    ) -> Remote:
        """Upload the first `content.size` bytes of the file over generation `replaces` ("0": none).

        Raises:
            Changed: the file is no longer what `content` says (`growing`: it may be longer).
            StoreUnavailable: not done within the patience, or somebody else writes this object.
        """
        check = _check_prefix(file, content) if growing else _check_untouched(file)
        for _ in range(_TRIES_OF_A_RACE):
            answer = self._put(name, file, content, replaces, check)
            if answer.status != 412:
                stored = _remote(document(answer, self._what(name), needs="generation"))
                if stored.contradicts(content):
                    raise StoreUnavailable(
                        f"{self._what(name)}: the storage service keeps other bytes than sent"
                    )
                return stored
            # Our own echo, or an object of a writer before us: what counts is what it holds.
            present = self.stat(name)
            if present.holds(content):
                return present
            replaces = present.generation
        raise StoreUnavailable(f"{self._what(name)}: another program writes this object; end it")

    def stat(self, name: str) -> Remote:
        """The object's description; generation "0" where there is none."""
        request = BulkRequest(method="GET", path=self._object_path(name), query={"fields": _OBJECT})
        answer = self._answer(request, name, missing=True)
        if answer.status == 404:
            return Remote("0", 0, "")
        return _remote(document(answer, self._what(name), needs="generation"))

    def get(self, name: str, generation: str, size: int, file: IO[bytes]) -> None:
        """Write the first `size` bytes of the object into the empty file, going on where an answer broke off.

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
            answer = self._answer(request, name, missing=True)
            if answer.status != 206 or len(answer.body) != stop - start:
                raise Changed(f"{self._what(name)}: it is not there as its manifest says")
            file.write(answer.body)

    def delete(self, name: str, generation: str) -> None:
        """Remove this generation of the object; no matter if it is gone."""
        request = BulkRequest(
            method="DELETE", path=self._object_path(name), query={"ifGenerationMatch": generation}
        )
        self._answer(request, name, missing=True)

    # ---- uploads

    def _put(
        self, name: str, file: IO[bytes], content: Digest, replaces: str, check: Callable[[], None]
    ) -> Response:
        about = {
            "name": f"{self._root}/{checked_key(name)}",
            "contentType": "application/octet-stream",
            "cacheControl": "no-store",
            "md5Hash": content.md5,
        }
        query = {"ifGenerationMatch": replaces, "fields": _OBJECT}
        patient, upload = Retrier(self._deadline, self._what(name)), _Upload()

        def attempt() -> Response:
            before = upload.arrived
            try:
                if content.size <= self._chunk:
                    data = os.pread(file.fileno(), content.size, 0)
                    return self._ask(_multipart(self._upload_path, query, about, data), name)
                return self._send_parts(upload, _start(self._upload_path, query, about), file, content.size)
            except Transient:
                check()
                upload.in_doubt = True
                if upload.arrived > before:
                    patient.refresh()
                raise

        answer = patient.call(attempt)
        if answer.status == 404:
            raise StoreUnavailable(f"{self._what(name)}: there is no bucket {self._bucket}")
        return answer

    def _send_parts(self, upload: _Upload, start: BulkRequest, file: IO[bytes], size: int) -> Response:
        """Send what has not arrived; the answer to the last part, or the refusal of the first request."""
        if not upload.url:
            answer = self._ask(start, "")
            if "Location" not in answer.headers:
                return answer
            upload.url, upload.arrived, upload.in_doubt = answer.headers["Location"], 0, False
        while True:
            answer = self._ask(_next_part(upload, file, size, self._chunk), "")
            if answer.status in (404, 410):
                upload.url = ""
                raise Transient("the service has forgotten this upload", in_doubt=False)
            if answer.status != 308:
                return answer
            arrived = _RANGE.fullmatch(answer.headers.get("Range", ""))
            upload.arrived, upload.in_doubt = int(arrived[1]) + 1 if arrived else 0, False

    # ---- requests

    def _answer(self, request: BulkRequest, name: str, *, missing: bool = False) -> Response:
        answer = Retrier(self._deadline, self._what(name)).call(lambda: self._ask(request, name))
        if answer.status == 404 and not missing:
            raise StoreUnavailable(f"{self._what(name)}: there is no bucket {self._bucket}")
        return answer

    def _ask(self, request: BulkRequest, name: str) -> Response:
        return exchange(self._store.filesystem, request, self._what(name), self._deadline)

    def _what(self, name: str) -> str:
        return self._store.location(f"{self._prefix}/{name}" if name else self._prefix)

    @property
    def _bucket_path(self) -> str:
        return f"/storage/v1/b/{quote(self._bucket, safe='')}"

    @property
    def _upload_path(self) -> str:
        return f"/upload{self._bucket_path}/o"

    def _object_path(self, name: str) -> str:
        return f"{self._bucket_path}/o/{quote(f'{self._root}/{checked_key(name)}', safe='')}"


def _check_untouched(file: IO[bytes]) -> Callable[[], None]:
    """A check that the file has not been written since now."""
    written = os.fstat(file.fileno()).st_mtime_ns

    def check() -> None:
        if os.fstat(file.fileno()).st_mtime_ns != written:
            raise Changed("the file was written while it was uploaded")

    return check


def _check_prefix(file: IO[bytes], content: Digest) -> Callable[[], None]:
    """A check that the file still begins with this content."""

    def check() -> None:
        try:
            same = digest(file, content.size) == content
        except EOFError:
            same = False
        if not same:
            raise Changed("the file was rewritten while it was uploaded")

    return check


def _remote(item: Mapping[str, Any]) -> Remote:
    # A composed object has no md5: it is none of ours, and holds nothing that we know. Implementations in Go
    # leave out what is zero.
    return Remote(str(item["generation"]), int(item.get("size") or 0), item.get("md5Hash") or "")


def _multipart(path: str, query: dict[str, str], about: dict[str, str], data: bytes) -> BulkRequest:
    boundary = uuid.uuid4().hex
    head = (
        f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(about)}\r\n"
        f"--{boundary}\r\nContent-Type: {about['contentType']}\r\n\r\n"
    ).encode()
    return BulkRequest(
        method="POST",
        path=path,
        query=query | {"uploadType": "multipart"},
        headers={"Content-Type": f"multipart/related; boundary={boundary}"},
        body=b"".join((head, data, f"\r\n--{boundary}--\r\n".encode())),
    )


def _start(path: str, query: dict[str, str], about: dict[str, str]) -> BulkRequest:
    return BulkRequest(
        method="POST",
        path=path,
        query=query | {"uploadType": "resumable"},
        headers={"Content-Type": "application/json; charset=UTF-8"},
        body=json.dumps(about).encode(),
    )


def _next_part(upload: _Upload, file: IO[bytes], size: int, chunk: int) -> BulkRequest:
    """The next part; where we do not know what has arrived, the question how much."""
    if upload.in_doubt:
        return BulkRequest(
            method="PUT", path=upload.url, headers={"Content-Range": f"bytes */{size}"}, body=b""
        )
    part = os.pread(file.fileno(), min(chunk, size - upload.arrived), upload.arrived)
    if not part:
        raise Changed("the file became shorter while it was uploaded")
    stop = upload.arrived + len(part)
    return BulkRequest(
        method="PUT",
        path=upload.url,
        headers={"Content-Range": f"bytes {upload.arrived}-{stop - 1}/{size}"},
        body=part,
    )
