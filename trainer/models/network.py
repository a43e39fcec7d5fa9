"""Faults of the network among the errors of the libraries that read over it, each of which has its own."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping

from sweeps.text.shorten import first_line
from trainer.errors import MachineError, UnreachableError

_ERRORS, _SERVER_ERROR = range(400, 600), 500
_TRANSIENT = (408, 425, 429)
# Of no answer. A subclass is one too: most are known by a base that their library has for all of these.
_NAMES = frozenset(
    (
        *("ConnectionError", "TimeoutError", "Timeout", "gaierror"),  # of Python and requests
        *("ClientConnectionError", "ClientPayloadError"),  # aiohttp
        *("TransportError", "ChunkedEncodingError"),  # httpx and google.auth; requests
        *("ProtocolError", "MaxRetryError", "IncompleteRead"),  # urllib3, http.client
        *("HTTPClientError", "ServiceRequestError", "ServiceResponseError"),  # botocore, azure.core
    )
)
_NOT_ASKED = "OfflineModeIsEnabled"
_NOT_CACHED = "LocalEntryNotFoundError"  # of huggingface_hub, for whatever reason it sends nothing
_NUMBERS = (errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH)


def is_fault(error: BaseException) -> bool:
    """Return whether a service gave no answer, or says that it cannot now: another try may succeed.

    The error may be a library's own in place of such a one. An answer, such as that there is no such file or
    no permission, is no fault of the network, even where the library says that it could not connect.
    """
    for each in _chain(error):
        if (status := _status(each)) is not None:
            return status >= _SERVER_ERROR or status in _TRANSIENT
    if _has(error, _NOT_ASKED):
        return False
    return any(
        not _NAMES.isdisjoint(kind.__name__ for kind in type(each).__mro__)
        or (isinstance(each, OSError) and each.errno in _NUMBERS)
        for each in _chain(error)
    )


def hub_error(error: BaseException, problem: str) -> UnreachableError | MachineError | None:
    """Return what to raise if the hub was not reached, or not to be asked; None: the error is an answer.

    Args:
        problem: what cannot be done, naming it.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE and (_has(error, _NOT_ASKED, _NOT_CACHED) or is_fault(error)):
        return MachineError(
            f"{problem}: HF_HUB_OFFLINE is set here, and the hub's cache on this machine does not have it; "
            "download it first, or unset the variable"
        )
    return UnreachableError(f"{problem}: {first_line(error)}") if is_fault(error) else None


def _has(error: BaseException, *names: str) -> bool:
    """Return whether the error, or one that it was raised for, has one of these types."""
    return any(type(each).__name__ in names for each in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, what it was raised for, and so on."""
    passed: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in passed:
        yield each
        passed.add(id(each))
        each = each.__cause__ or each.__context__


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of the answer that an error is about; None: it is about none."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None
    for holder in (error, response):
        for name in ("status", "status_code", "code"):
            status = getattr(holder, name, None)
            if isinstance(status, int) and status in _ERRORS:
                return int(status)
    return None
