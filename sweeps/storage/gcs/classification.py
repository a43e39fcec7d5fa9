"""What an answer of Google Cloud Storage means: for the store to judge, to be tried again, or an error.

Called by `gcs_wire` for every response. Pure: no request is sent from here.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweeps.errors import StoreUnavailable
from sweeps.text import json_reader

# What the store judges: done, not modified, not there, another version.
_JUDGED = frozenset({200, 201, 204, 304, 404, 412})
_TRY_AGAIN = frozenset({408, 429})
_QUOTA_REASONS = frozenset({"rateLimitExceeded", "userRateLimitExceeded"})


@dataclass(frozen=True, kw_only=True)
class Response:
    """A response that the store has to judge.

    Args:
        status: one of 200, 201, 204, 304, 404, 412.
        in_doubt: an earlier try of the same request had no answer, so it may have taken effect.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    in_doubt: bool = False


class Transient(Exception):
    """A try that may be repeated.

    Args:
        in_doubt: the server may have acted on it.
        rate_limited: the server refused it as one too many.
    """

    def __init__(self, what: str, *, in_doubt: bool, rate_limited: bool = False) -> None:
        self.in_doubt, self.rate_limited = in_doubt, rate_limited
        super().__init__(what)


class Unauthorized(Exception):
    """The service does not know who is asking."""


def classify(answer: Response, what: str, bucket: str) -> Response:
    """Return what the store has to judge; raise for the rest.

    Raises:
        Transient, Unauthorized: worth another try.
        StoreUnavailable: not worth one.
    """
    status = answer.status
    if status in _JUDGED:
        if _is_damaged(answer):
            raise Transient("the answer does not fit its checksum", in_doubt=False)
        return answer
    message, reasons = _explanation(answer.body)
    said = f"{status}: {message}" if message else str(status)
    if status in _TRY_AGAIN or status >= 500 or (status == 403 and reasons & _QUOTA_REASONS):
        limited = status in (403, 429)
        raise Transient(said, in_doubt=not limited, rate_limited=limited)
    if status == 400 and "doesn't match calculated" in message:  # bytes were damaged on their way there
        raise Transient(said, in_doubt=False)
    if status == 401:
        raise Unauthorized(said)
    if status == 403:
        raise StoreUnavailable(
            f"{what}: access denied ({said}); give this account roles/storage.objectUser on gs://{bucket}"
        )
    raise StoreUnavailable(f"{what}: the storage service refused ({said}); check --storage")


def document(answer: Response, what: str, *, needs: str = "") -> dict[str, Any]:
    """Return the JSON object in an answer.

    Args:
        needs: a field that it must have.

    Raises:
        StoreUnavailable: there is none: whoever answered is no storage service.
    """
    try:
        found = json_reader.parse(answer.body)
        if not isinstance(found, dict):
            raise ValueError("not a JSON object")  # noqa: TRY004 - one handler words all
        if needs and needs not in found:
            raise ValueError(f"it has no {needs!r}")
    except ValueError as error:
        raise StoreUnavailable(
            f"{what}: the storage service's answer cannot be read ({error}); "
            "is STORAGE_EMULATOR_HOST or a proxy in the way?"
        ) from None
    return found


def sign_in_advice(what: str, said: str) -> str:
    """The message for somebody whom the service does not know."""
    key_file = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if key_file and not os.path.exists(key_file):  # noqa: PTH110 - as the environment spells it
        return f"{what}: not signed in: GOOGLE_APPLICATION_CREDENTIALS names {key_file}, which does not exist"
    return (
        f"{what}: not signed in ({said}); run `gcloud auth application-default login`, "
        "or let GOOGLE_APPLICATION_CREDENTIALS name a key file"
    )


def _is_damaged(answer: Response) -> bool:
    """Whether the bytes of a whole object differ from the checksum beside them, if there is one."""
    for part in answer.headers.get("X-Goog-Hash", "").split(","):
        name, _, value = part.strip().partition("=")
        if name == "md5" and answer.status == 200:
            digest = hashlib.md5(answer.body, usedforsecurity=False).digest()
            return base64.b64encode(digest).decode() != value
    return False


def _explanation(body: bytes) -> tuple[str, set[str]]:
    """The message of an error response in one line, and its reasons."""
    text = body.decode("utf-8", "replace")
    try:
        error = json_reader.parse(text)["error"]
        reasons = {str(entry.get("reason")) for entry in error.get("errors", [])}
        return " ".join(str(error.get("message", "")).split())[:300], reasons
    except (ValueError, KeyError, TypeError, AttributeError):
        return " ".join(text.split())[:200], set()
