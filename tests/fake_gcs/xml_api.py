"""XML API over `objects`: what obstore speaks. Operations are named as those of the JSON API."""

from __future__ import annotations

import hashlib
import re
import threading
import uuid
from dataclasses import dataclass, field
from email.utils import formatdate
from urllib.parse import unquote
from xml.sax.saxutils import escape

from fake_gcs.api import Call, Reply, ranged
from fake_gcs.objects import ApiError, Objects, StoredObject

_CODES = {404: "NoSuchKey", 412: "PreconditionFailed", 429: "SlowDown", 401: "AuthenticationRequired"}
_JSON_API = ("/storage/v1/", "/upload/", "/download/", "/batch/", "/b/")


def classify(call: Call) -> bool:
    """Name the operation of a request of the XML API; return False for one of the JSON API."""
    match = re.fullmatch("/([^/]+)/(.+)", call.path)
    if match is None or call.path.startswith(_JSON_API):
        return False
    call.is_xml, call.names = True, (unquote(match[1]), unquote(match[2]))
    call.data = call.body
    call.operation = {
        "GET": "get",
        "HEAD": "stat",
        "DELETE": "delete",
        "PUT": "insert",
        "POST": "insert",
    }.get(call.method, "other")
    if "uploadId" in call.query:
        call.operation = {"PUT": "upload_part", "POST": "complete", "DELETE": "abort"}[call.method]
    elif "x-goog-copy-source" in call.headers:
        call.operation = "rewrite"
    call.about = {"name": call.names[1], "contentType": call.headers.get("Content-Type", "")}
    if "Cache-Control" in call.headers:
        call.about["cacheControl"] = call.headers["Cache-Control"]
    return True


def failure(error: ApiError) -> Reply:
    code = _CODES.get(error.status, error.reason)
    if error.status == 404 and "specified bucket" in error.message:
        code = "NoSuchBucket"
    body = (
        f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{escape(error.message)}</Message></Error>"
    )
    return Reply(status=error.status, body=body.encode(), headers={"Content-Type": "application/xml"})


@dataclass(kw_only=True)
class _Upload:
    about: dict[str, object]
    parts: dict[int, bytes] = field(default_factory=dict)


class XmlApi:
    """API that answers classified calls."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._lock = threading.Lock()
        self._uploads: dict[str, _Upload] = {}

    def answer(self, call: Call) -> Reply:
        bucket, name = call.names
        wanted = call.headers.get("x-goog-if-generation-match")
        query = dict(call.query) | ({} if wanted is None else {"ifGenerationMatch": wanted})
        match call.operation:
            case "get" | "stat":
                stored = self._objects.get(bucket, name, query)
                if call.headers.get("If-Match", etag(stored)) != etag(stored):
                    raise ApiError(412, "conditionNotMet", "The ETag is another.")
                return _with_metadata(ranged(stored, call.headers.get("Range")), stored)
            case "insert" if call.method == "PUT":
                return _done(self._objects.put(bucket, name, call.data, call.about, query))
            case "rewrite":
                source_bucket, _, source = (
                    unquote(call.headers["x-goog-copy-source"]).lstrip("/").partition("/")
                )
                copied = self._objects.get(source_bucket, source, {})
                stored = self._objects.put(bucket, name, copied.data, copied.about, query)
                return _document("CopyObjectResult", f"<ETag>{etag(stored)}</ETag>")
            case "delete":
                self._objects.delete(bucket, name, query)
                return Reply(status=204)
            case "insert" if "uploads" in call.query:
                self._objects.names(bucket)  # a missing bucket is refused here
                identity = uuid.uuid4().hex
                with self._lock:
                    self._uploads[identity] = _Upload(about=call.about | {"composed": True})
                return _document("InitiateMultipartUploadResult", f"<UploadId>{identity}</UploadId>")
            case "upload_part":
                with self._lock:
                    self._open(call).parts[int(call.query["partNumber"])] = call.data
                return Reply(headers={"ETag": f'"{hashlib.md5(call.data).hexdigest()}"'})
            case "complete":
                with self._lock:
                    upload = self._open(call)
                    numbers = [int(number) for number in re.findall(rb"<PartNumber>(\d+)<", call.data)]
                    data = b"".join(upload.parts[number] for number in numbers)
                    stored = self._objects.put(bucket, name, data, upload.about, query)
                    del self._uploads[call.query["uploadId"]]
                done = _document("CompleteMultipartUploadResult", f"<ETag>{escape(etag(stored))}</ETag>")
                done.headers["x-goog-generation"] = str(stored.generation)
                return done
            case "abort":
                with self._lock:
                    self._uploads.pop(call.query["uploadId"], None)
                return Reply(status=204)
        raise ApiError(405, "notImplemented", f"The fake has no {call.method} {call.path}")

    def _open(self, call: Call) -> _Upload:
        if call.query["uploadId"] not in self._uploads:
            raise ApiError(404, "NoSuchUpload", "The upload is not known.")
        return self._uploads[call.query["uploadId"]]


def etag(stored: StoredObject) -> str:
    """Return the ETag: the MD5 of the bytes, unless the object was uploaded in parts."""
    if "composed" in stored.about:
        return f'"-{stored.generation}"'
    return f'"{hashlib.md5(stored.data).hexdigest()}"'


def _done(stored: StoredObject) -> Reply:
    return Reply(headers={"ETag": etag(stored), "x-goog-generation": str(stored.generation)})


def _with_metadata(reply: Reply, stored: StoredObject) -> Reply:
    reply.headers |= {"ETag": etag(stored), "Last-Modified": formatdate(stored.updated, usegmt=True)}
    return reply


def _document(root: str, inner: str) -> Reply:
    body = f"<?xml version='1.0' encoding='UTF-8'?><{root}>{inner}</{root}>"
    return Reply(body=body.encode(), headers={"Content-Type": "application/xml"})
