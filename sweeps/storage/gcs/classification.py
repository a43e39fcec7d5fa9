"""Classification of responses of Google Cloud Storage: expected, worth a retry, or an error. Pure."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweeps.errors import StoreUnavailable
from sweeps.text import json_reader

# Done, not modified, not found, another version: the store decides what these mean.
_EXPECTED = frozenset({200, 201, 204, 304, 404, 412})
_RETRIABLE = frozenset({408, 429})
_QUOTA_REASONS = frozenset({"rateLimitExceeded", "userRateLimitExceeded"})


@dataclass(frozen=True, kw_only=True)
class Response:
    """An HTTP response.

    Args:
        status: HTTP status; one of 200, 201, 204, 304, 404 and 412 once it is classified.
        in_doubt: an earlier attempt of the same request had no response, and may have taken effect.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    in_doubt: bool = False


class Transient(Exception):
    """A failed attempt that is worth a retry.

    Args:
        in_doubt: the server may have acted on the request.
        rate_limited: the server refused the request as one too many.
    """

    def __init__(self, message: str, *, in_doubt: bool, rate_limited: bool = False) -> None:
        self.in_doubt, self.rate_limited = in_doubt, rate_limited
        super().__init__(message)


class Unauthorized(Exception):
    """A request without valid credentials."""


def classify(response: Response, url: str, bucket: str) -> Response:
    """Return a response whose status the store expects, raise for others.

    Raises:
        Transient: a retry may succeed.
        Unauthorized: new credentials may help.
        StoreUnavailable: a retry would fail, too.
    """
    status = response.status
    if status in _EXPECTED:
        if _is_damaged(response):
            raise Transient("the answer does not fit its checksum", in_doubt=False)
        return response
    message, reasons = _explanation(response.body)
    detail = f"{status}: {message}" if message else str(status)
    if status in _RETRIABLE or status >= 500 or (status == 403 and reasons & _QUOTA_REASONS):
        limited = status in (403, 429)
        raise Transient(detail, in_doubt=not limited, rate_limited=limited)
    if status == 400 and "doesn't match calculated" in message:  # bytes were damaged in transit
        raise Transient(detail, in_doubt=False)
    if status == 401:
        raise Unauthorized(detail)
    if status == 403:
        raise StoreUnavailable(
            f"{url}: access denied ({detail}); give this account roles/storage.objectUser on gs://{bucket}"
        )
    raise StoreUnavailable(f"{url}: the storage service refused ({detail}); check --storage")


def document(response: Response, url: str, *, needs: str = "") -> dict[str, Any]:
    """Return the JSON object in a response.

    Raises:
        StoreUnavailable: there is none, so that the server is no storage service.
    """
    try:
        found = json_reader.parse(response.body)
        if not isinstance(found, dict):
            raise ValueError("not a JSON object")  # noqa: TRY004 - handled below with the others
        if needs and needs not in found:
            raise ValueError(f"it has no {needs!r}")
    except ValueError as error:
        raise not_a_service(f"{url}: the storage service's answer cannot be read ({error})") from None
    return found


def not_a_service(problem: str) -> StoreUnavailable:
    """Return the error for a response that the storage service itself would not send."""
    return StoreUnavailable(f"{problem}; is STORAGE_EMULATOR_HOST or a proxy in the way?")


def sign_in_advice(url: str, detail: str) -> str:
    """Return the message for a user without valid credentials."""
    key_file = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if key_file and not os.path.exists(key_file):  # noqa: PTH110 - as the environment spells it
        return f"{url}: not signed in: GOOGLE_APPLICATION_CREDENTIALS names {key_file}, which does not exist"
    return (
        f"{url}: not signed in ({detail}); run `gcloud auth application-default login`, "
        "or let GOOGLE_APPLICATION_CREDENTIALS name a key file"
    )


def _is_damaged(response: Response) -> bool:
    """Return whether a complete object does not match its checksum, if the response has one."""
    for part in response.headers.get("X-Goog-Hash", "").split(","):
        name, _, value = part.strip().partition("=")
        if name == "md5" and response.status == 200:
            digest = hashlib.md5(response.body, usedforsecurity=False).digest()
            return base64.b64encode(digest).decode() != value
    return False


def _explanation(body: bytes) -> tuple[str, set[str]]:
    """Return the message of an error response in one line, and its reasons."""
    text = body.decode("utf-8", "replace")
    try:
        error = json_reader.parse(text)["error"]
        reasons = {str(entry.get("reason")) for entry in error.get("errors", [])}
        return " ".join(str(error.get("message", "")).split())[:300], reasons
    except (ValueError, KeyError, TypeError, AttributeError):
        return " ".join(text.split())[:200], set()
