"""Refusals of a storage service, parsed. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sweeps.errors import StoreUnavailable

_STATUS = re.compile(r"(?:status code: |\(code: )(\d{3})")  # the second of one object's delete in Azure
_TAG = re.compile(r"<(Code|Message)>([^<]*)<")
_CAUSE = re.compile(
    r"(InvalidCertificate)\(\s*(?:Other(?:Error)?\(\s*)*(\w+)"
    r"|(TunnelUnsuccessful|InvalidContentType|TimedOut)"
    r'|(?:"tcp connect error",\s*(\S+),[^"]*)?(?:message|error): "([^"]+)"'
)
"""Why no request was sent, in what obstore adds for programmers: its message says only that none was."""
_IN_WORDS = {
    "TunnelUnsuccessful": "the proxy does not connect to it",
    "InvalidContentType": "no TLS is spoken there, http:// may be meant",
    "TimedOut": "timed out",
}


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """An error answer of the service.

    Args:
        status: HTTP status; 0 where there was no answer.
        code: the service's name of the error, or "".
        detail: one line for a person.
        text: all that is known.
    """

    status: int
    code: str
    detail: str
    text: str = ""

    @property
    def is_passing(self) -> bool:
        """Return whether a retry may succeed."""
        stalled = self.code == "RequestTimeout"  # its status is 400
        return stalled or self.status in (0, 408, 409, 429) or (self.status >= 500 and self.status != 501)


def refusal_of(error: BaseException) -> Refusal:
    """Return what an error of obstore tells: its message has the answer's status and body in it."""
    text, _, source = str(error).partition("\n\nDebug source")
    status = _STATUS.search(text)
    tags = dict(_TAG.findall(text))
    code = tags.get("Code", "")
    message = tags.get("Message", "").partition("\nRequestId:")[0]  # Azure's goes on in further lines
    detail = " ".join(filter(None, (status and status[1], code, message)))
    if not tags:
        detail = text.rpartition(" - ")[2] + ("" if status else _cause(source))
    return Refusal(
        status=int(status[1]) if status else 0, code=code, detail=" ".join(detail.split())[:300], text=text
    )


def _cause(source: str) -> str:
    """Return why no request was sent as the end of a sentence, or "" where that is not known."""
    if (found := _CAUSE.search(source)) is None:
        return ""
    certificate, what, word, address, message = found.groups()
    if certificate:
        return f": certificate {what}"
    return f": {_IN_WORDS[word] if word else message}" + (f" ({address})" if address else "")


def is_missing_object(error: BaseException) -> bool:
    """Return whether the error says that there is no such object, in a bucket that exists."""
    return isinstance(error, FileNotFoundError) and refusal_of(error).code not in _NO_BUCKET


def is_refusal(error: BaseException) -> bool:
    """Return whether the error says that the object has another version than expected, or is not there."""
    return isinstance(error, FileNotFoundError) or type(error).__name__ in _CONFLICTS


_CONFLICTS = ("AlreadyExistsError", "PreconditionError")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")


def not_a_service(problem: str) -> StoreUnavailable:
    """Return the error for a response that the storage service itself would not send."""
    return StoreUnavailable(f"{problem}; is STORAGE_EMULATOR_HOST, AWS_ENDPOINT_URL or a proxy in the way?")
