"""Uploads of the JSON API: media, multipart, and resumable in parts."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from fake_gcs.objects import ApiError, Objects, StoredObject

_PART_UNIT = 256 * 1024
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


def split_multipart(body: bytes, content_type: str) -> tuple[dict[str, object], bytes]:
    """Return metadata and data of a `multipart/related` body, with line ends all CRLF or all LF."""
    match = re.search(r'boundary="?([^";]+)"?', content_type)
    if match is None:
        raise ApiError(400, "badContent", "Multipart body has no boundary.")
    delimiter = b"--" + match[1].encode()
    end = b"\r\n" if body.startswith(delimiter + b"\r\n") else b"\n"
    head, _, rest = body.removeprefix(delimiter + end).partition(end + delimiter + end)
    metadata = head.partition(end + end)[2]
    data = rest.partition(end + end)[2].rpartition(end + delimiter + b"--")[0]
    try:
        return dict(json.loads(metadata)), data
    except (ValueError, TypeError):
        raise ApiError(400, "parseError", "Parse Error: the metadata part is not a JSON object.") from None


@dataclass(kw_only=True)
class Session:
    """Unfinished resumable upload."""

    bucket: str
    about: dict[str, object]
    query: Mapping[str, str]
    data: bytearray = field(default_factory=bytearray)
    finished: StoredObject | None = None

    @property
    def name(self) -> str:
        return str(self.about["name"])


class Sessions:
    """Resumable uploads by their id."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._lock = threading.Lock()
        self._open: dict[str, Session] = {}

    def start(self, bucket: str, about: dict[str, object], query: Mapping[str, str]) -> str:
        self._objects.names(bucket)  # a missing bucket is refused here
        identity = uuid.uuid4().hex
        with self._lock:
            self._open[identity] = Session(bucket=bucket, about=about, query=query)
        return identity

    def find(self, identity: str) -> Session:
        with self._lock:
            if identity not in self._open:
                raise ApiError(404, "notFound", "The upload session is not known.")
            return self._open[identity]

    def cancel(self, identity: str) -> None:
        self.find(identity)
        with self._lock:
            del self._open[identity]

    def add(self, identity: str, body: bytes, content_range: str | None) -> Session:
        """Receive one part; the last byte finishes the session.

        A part that was sent before is recognised by its offset and taken once, as the service does.
        """
        session = self.find(identity)
        with self._lock:
            if session.finished is not None:
                return session
            total = self._append(session, body, content_range)
            if total is not None and len(session.data) == total:
                session.finished = self._objects.put(
                    session.bucket, session.name, bytes(session.data), session.about, session.query
                )
            return session

    @staticmethod
    def _append(session: Session, body: bytes, content_range: str | None) -> int | None:
        """Append the new bytes; return the upload's total size, if it is known."""
        if content_range is None:
            session.data[:] = body
            return len(body)
        match = _CONTENT_RANGE.fullmatch(content_range)
        if match is None:
            raise ApiError(400, "badRequest", f"Failed to parse Content-Range header: {content_range}")
        total = None if match[3] == "*" else int(match[3])
        if match[1] is None:
            return total
        start, last = int(match[1]), int(match[2])
        if start > len(session.data) or len(body) != last - start + 1:
            raise ApiError(400, "badRequest", f"Content-Range {content_range} does not fit the session.")
        if total is None and len(body) % _PART_UNIT:
            raise ApiError(400, "badRequest", "A part that is not the last must be a multiple of 256 KiB.")
        session.data[start:] = body
        return total
