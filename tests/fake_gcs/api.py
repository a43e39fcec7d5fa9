"""JSON API over `objects` and `uploads`."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote, unquote

from fake_gcs.objects import ApiError, Objects, StoredObject
from fake_gcs.partial import select
from fake_gcs.uploads import Session, Sessions, split_multipart

_B, _O = r"/storage/v1/b/([^/]+)", r"/o/([^/]+)"
_ROUTES = (
    ("POST", r"/upload" + _B + "/o", "insert"),
    ("PUT", r"/upload" + _B + "/o", "upload_part"),
    ("DELETE", r"/upload" + _B + "/o", "upload_part"),
    ("GET", r"(?:/download)?" + _B + _O, "stat"),
    ("DELETE", _B + _O, "delete"),
    ("PATCH", _B + _O, "patch"),
    ("POST", _B + _O + "/rewriteTo/b/([^/]+)" + _O, "rewrite"),
    ("POST", _B + _O + "/compose", "compose"),
    ("GET", _B + "/o", "list"),
    ("GET", _B, "get_bucket"),
    ("GET", "/storage/v1/b", "list_buckets"),
    ("POST", "/storage/v1/b", "make_bucket"),
)


@dataclass(kw_only=True)
class Call:
    """One request, classified. `names` are bucket and object names as they are, unquoted."""

    method: str
    path: str  # as it came over the wire
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    base_url: str
    operation: str = "other"
    names: tuple[str, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)
    data: bytes = b""
    is_xml: bool = False

    @property
    def address(self) -> tuple[str, str]:
        """Return bucket and name of the object."""
        return self.names[0], self.names[1]

    @property
    def name(self) -> str:
        """Return what faults match: the object's name, or a listing's prefix."""
        if self.operation == "list":
            return self.query.get("prefix", "")
        if self.operation == "insert":
            return str(self.about.get("name") or self.query.get("name", ""))
        return self.names[1] if len(self.names) > 1 else ""


@dataclass(kw_only=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def classify(call: Call) -> Call:
    """Return the call with its operation and names."""
    for method, pattern, operation in _ROUTES:
        match = re.fullmatch(pattern, call.path)
        if method == call.method and match:
            call.operation = operation
            call.names = tuple(unquote(group) for group in match.groups() if group is not None)
            break
    if call.operation == "stat" and (call.query.get("alt") == "media" or call.path.startswith("/download/")):
        call.operation = "get"
    if call.operation == "insert" and "upload_id" in call.query:
        call.operation = "upload_part"
    if call.operation == "insert":
        _read_metadata(call)
    return call


def _read_metadata(call: Call) -> None:
    content_type = call.headers.get("Content-Type", "")
    kind = call.query.get("uploadType")
    if kind == "multipart":
        call.about, call.data = split_multipart(call.body, content_type)
    elif kind == "resumable":
        call.about = json.loads(call.body) if call.body else {}
    else:
        call.about, call.data = {"contentType": content_type}, call.body
    call.about.setdefault("name", call.query.get("name", ""))


class Api:
    """API that answers classified calls. `accent` imitates other implementations; see `spelled`."""

    def __init__(self, objects: Objects) -> None:
        self.objects, self.sessions = objects, Sessions(objects)
        self.accent: frozenset[Quirk] = frozenset()

    def answer(self, call: Call) -> Reply:
        handler: Callable[[Call], Reply] | None = getattr(self, f"_{call.operation}", None)
        try:
            if handler is None:
                raise ApiError(405, "notImplemented", f"The fake has no {call.method} {call.path}")
            reply = handler(call)
        except ApiError as error:
            return failure(error)
        if "no_digests" in self.accent:
            reply.headers.pop("X-Goog-Hash", None)
        if "no_generation" in self.accent:
            reply.headers.pop("X-Goog-Generation", None)
        if self.accent and call.operation != "get" and reply.body:
            spell = spelled_listing if call.operation == "list" else spelled
            reply.body = json.dumps(spell(json.loads(reply.body), self.accent)).encode()
        return reply

    def _insert(self, call: Call) -> Reply:
        if not call.about.get("name"):
            raise ApiError(400, "required", "Required parameter: name")
        if call.query.get("uploadType") == "resumable":
            identity = self.sessions.start(call.names[0], call.about, call.query)
            where = f"{call.base_url}/upload/storage/v1/b/{quote(call.names[0], safe='')}/o"
            return Reply(headers={"Location": f"{where}?uploadType=resumable&upload_id={identity}"})
        stored = self.objects.put(call.names[0], str(call.about["name"]), call.data, call.about, call.query)
        return _document(stored.resource(), call)

    def _upload_part(self, call: Call) -> Reply:
        identity = call.query.get("upload_id", "")
        if call.method == "DELETE":
            self.sessions.cancel(identity)
            return Reply(status=499)
        session = self.sessions.add(identity, call.body, call.headers.get("Content-Range"))
        if session.finished is not None:
            return _document(session.finished.resource(), call)
        return Reply(status=308, headers=_received(session))

    def _get(self, call: Call) -> Reply:
        stored = self.objects.get(*call.address, call.query)
        return ranged(stored, call.headers.get("Range"))

    def _stat(self, call: Call) -> Reply:
        return _document(self.objects.get(*call.address, call.query).resource(), call)

    def _delete(self, call: Call) -> Reply:
        self.objects.delete(*call.address, call.query)
        return Reply(status=204)

    def _patch(self, call: Call) -> Reply:
        return _document(
            self.objects.patch(*call.address, json.loads(call.body), call.query).resource(), call
        )

    def _rewrite(self, call: Call) -> Reply:
        bucket, name, to_bucket, to_name = call.names
        source = self.objects.get(bucket, name, {})
        copy = self.objects.put(to_bucket, to_name, source.data, source.about, call.query)
        size = str(len(source.data))
        return _document(
            {
                "kind": "storage#rewriteResponse",
                "totalBytesRewritten": size,
                "objectSize": size,
                "done": True,
                "resource": copy.resource(),
            },
            call,
        )

    def _compose(self, call: Call) -> Reply:
        bucket, name = call.names
        order = json.loads(call.body)
        parts = [self.objects.get(bucket, part["name"], {}).data for part in order["sourceObjects"]]
        return _document(self.objects.put(bucket, name, b"".join(parts), {}, call.query).resource(), call)

    def _list(self, call: Call) -> Reply:
        query = call.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = base64.b64decode(query.get("pageToken", "")).decode()
        room = min(int(query.get("maxResults", 1000)), 1000)
        items: list[dict[str, object]] = []
        folders: list[str] = []
        document: dict[str, Any] = {"kind": "storage#objects"}
        for name in self.objects.names(call.names[0], prefix):
            folder = _folder(name, prefix, delimiter)
            outside = name.encode() < query.get("startOffset", "").encode() or (
                "endOffset" in query and name.encode() >= query["endOffset"].encode()
            )
            if outside or (folder or name).encode() <= after.encode() or folder in folders:
                continue
            if len(items) + len(folders) == room:
                last = max([*folders[-1:], *[str(item["name"]) for item in items[-1:]]], key=str.encode)
                document["nextPageToken"] = base64.b64encode(last.encode()).decode()
                break
            if folder is None:
                items.append(self.objects.get(call.names[0], name, {}).resource())
            else:
                folders.append(folder)
        document |= {"items": items} if items else {}
        document |= {"prefixes": folders} if folders else {}
        return _document(document, call)

    def _get_bucket(self, call: Call) -> Reply:
        self.objects.names(call.names[0])
        return _document(_bucket(call.names[0]), call)

    def _list_buckets(self, call: Call) -> Reply:
        return _document(
            {"kind": "storage#buckets", "items": [_bucket(name) for name in self.objects.buckets()]}, call
        )

    def _make_bucket(self, call: Call) -> Reply:
        name = json.loads(call.body)["name"]
        if name in self.objects.buckets():
            raise ApiError(409, "conflict", "Your previous request to create the named bucket succeeded.")
        self.objects.make_bucket(name)
        return _document(_bucket(name), call)


Quirk = Literal[
    "no_zero_size",
    "numeric_generation",
    "no_updated",
    "no_times",
    "no_digests",
    "empty_lists",
    "no_generation",
    "no_generation_of_parts",
]
"""Differences of other implementations."""


def spelled_listing(document: dict[str, Any], accent: Set[Quirk]) -> dict[str, Any]:
    """Return a page of a listing as a server with these differences writes it."""
    if "items" in document:
        document["items"] = [spelled(item, accent) for item in document["items"]]
    return {"items": None, "nextPageToken": "", **document} if "empty_lists" in accent else document


def spelled(document: dict[str, Any], accent: Set[Quirk]) -> dict[str, Any]:
    """Return an object's metadata as a server with these differences writes them."""
    left_out = {
        *(("size",) if "no_zero_size" in accent and document.get("size") == "0" else ()),
        *(("generation",) if "no_generation" in accent else ()),
        *(("updated",) if "no_updated" in accent else ()),
        *(("updated", "timeCreated") if "no_times" in accent else ()),
        *(("md5Hash", "crc32c", "etag") if "no_digests" in accent else ()),
    }
    kept = {name: value for name, value in document.items() if name not in left_out}
    if "numeric_generation" in accent and "generation" in kept:
        kept["generation"] = int(kept["generation"])
    return kept


def failure(error: ApiError) -> Reply:
    if error.status == 304:
        return Reply(status=304)
    document = {
        "error": {
            "code": error.status,
            "message": error.message,
            "errors": [{"message": error.message, "domain": "global", "reason": error.reason}],
        }
    }
    return Reply(
        status=error.status, body=json.dumps(document).encode(), headers={"Content-Type": "application/json"}
    )


def _document(document: dict[str, Any], call: Call) -> Reply:
    body = json.dumps(select(document, call.query.get("fields"))).encode()
    return Reply(body=body, headers={"Content-Type": "application/json; charset=UTF-8"})


def _bucket(name: str) -> dict[str, str]:
    return {"kind": "storage#bucket", "name": name, "id": name, "location": "US", "storageClass": "STANDARD"}


def _folder(name: str, prefix: str, delimiter: str) -> str | None:
    """Return the common prefix that a delimited listing has instead of the object."""
    if not delimiter or delimiter not in name[len(prefix) :]:
        return None
    return name[: name.index(delimiter, len(prefix)) + len(delimiter)]


def _received(session: Session) -> dict[str, str]:
    return {"Range": f"bytes=0-{len(session.data) - 1}"} if session.data else {}


def ranged(stored: StoredObject, wanted: str | None) -> Reply:
    """Return the bytes of a range, or all."""
    headers = {
        "Content-Type": str(stored.about.get("contentType", "application/octet-stream")),
        "X-Goog-Generation": str(stored.generation),
        "X-Goog-Metageneration": str(stored.metageneration),
        "X-Goog-Hash": f"crc32c={stored.crc32c}"
        + ("" if "composed" in stored.about else f",md5={stored.md5}"),
        "X-Goog-Stored-Content-Length": str(len(stored.data)),
    }
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted or "")
    if match is None or match.groups() == ("", ""):
        return Reply(body=stored.data, headers=headers)
    size = len(stored.data)
    if match[1]:
        start, stop = int(match[1]), min(int(match[2] or size - 1) + 1, size)
    else:
        start, stop = max(0, size - int(match[2])), size
    if start >= size or start >= stop:
        raise ApiError(416, "requestedRangeNotSatisfiable", "Request range not satisfiable")
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    return Reply(status=206, body=stored.data[start:stop], headers=headers)
