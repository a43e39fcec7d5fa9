"""HTTP requests to Google Cloud Storage, each sent once over gcsfs' session, without retries.

`gcs.client` (records) and `run_files.exchange` (run folders) add retries, each by its own policy. gcsfs
provides the credentials, the session and the event loop.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from sweeps.errors import StoreUnavailable
from sweeps.storage.gcs.classification import Response, Transient, Unauthorized
from sweeps.storage.gcs.clock import ServerClock

log = logging.getLogger(__name__)

Result = Response | Exception
"""Outcome of a request: an error is returned, not raised, so that an abandoned request logs nothing."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """An HTTP request.

    Args:
        path: quoted and relative to the endpoint, or an absolute URL that the service gave us.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None


def send(
    open_filesystem: Callable[[], Any],
    request: Request,
    url: str,
    *,
    wait: Callable[[Future[Result], float], Result],
    extra_s: float = 0.0,
    clock: ServerClock | None = None,
) -> Response:
    """Send a request once and return the response, whatever its status.

    Args:
        open_filesystem: returns gcsfs' file system, whose event loop runs in a thread of its own.
        url: the object's URL, for messages.
        wait: waits for the result; its second argument is the session's own timeout in seconds. It may raise
            before that (a deadline has passed) or after it (refreshing the credentials blocks the loop).
        extra_s: seconds added to the file system's own timeout.
        clock: learns the server's time from the response.

    Raises:
        Transient: no response; a retry may succeed.
        Unauthorized: the credentials could not be refreshed.
        StoreUnavailable: a retry would fail, too.
        ValueError: the endpoint is not a URL.
    """
    future: Future[Result] | None = None
    result: Result
    try:
        filesystem = open_filesystem()
        limit_s = filesystem.requests_timeout.total + extra_s
        future = asyncio.run_coroutine_threadsafe(
            _caught(filesystem, request, limit_s, clock), filesystem.loop
        )
        result = wait(future, limit_s)
    except Exception as error:  # noqa: BLE001 - `response_of` raises it
        result = error
    finally:
        if future is not None:
            future.cancel()
    return response_of(result, url)


def send_many(
    open_filesystem: Callable[[], Any], requests: Sequence[Request], *, concurrency: int, clock: ServerClock
) -> list[Result]:
    """Send each request once, `concurrency` at a time, and return their results in order.

    A single coroutine runs them: a thread for each takes three times the CPU time.
    """
    filesystem = open_filesystem()
    limit_s = filesystem.requests_timeout.total
    results: list[Result] = [TimeoutError("no answer")] * len(requests)

    async def drive(left: Iterator[tuple[int, Request]]) -> None:
        for position, request in left:
            results[position] = await _caught(filesystem, request, limit_s, clock)

    async def drive_all() -> None:
        left = iter(enumerate(requests))
        await asyncio.gather(*(drive(left) for _ in range(min(concurrency, len(requests)))))

    future = asyncio.run_coroutine_threadsafe(drive_all(), filesystem.loop)
    rounds = -(-len(requests) // concurrency)
    try:
        future.result(timeout=rounds * limit_s + 1.0)
    except TimeoutError:
        log.info("%d requests were not done in %g s", len(requests), rounds * limit_s)
    finally:
        future.cancel()
    return list(results)


def response_of(sent: Result, url: str) -> Response:
    """Return the response, or raise an error as `send` does."""
    import aiohttp
    from gcsfs.retry import HttpError, NonRetryableError
    from google.auth.exceptions import GoogleAuthError

    match sent:
        case Response():
            return sent
        case aiohttp.ClientConnectorCertificateError():
            raise StoreUnavailable(
                f"{url}: the storage service's certificate is not trusted ({line(sent)}); "
                "check the machine's clock and its proxy"
            ) from None
        case aiohttp.ClientConnectorError() | GoogleAuthError():
            raise Transient(line(sent), in_doubt=False) from None
        case aiohttp.ClientError() | OSError():
            raise Transient(line(sent), in_doubt=True) from None
        case HttpError() | NonRetryableError():  # from refreshing the credentials
            raise Unauthorized(line(sent)) from None
        case _:
            raise sent


def line(error: BaseException) -> str:
    """Return the error in one line, with its type."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


async def _caught(filesystem: Any, request: Request, limit_s: float, clock: ServerClock | None) -> Result:
    try:
        return await _send(filesystem, request, limit_s, clock)
    except Exception as error:  # noqa: BLE001 - `response_of` raises it
        return error


async def _send(filesystem: Any, request: Request, limit_s: float, clock: ServerClock | None) -> Response:
    from aiohttp import ClientTimeout
    from yarl import URL

    session = await filesystem._set_session()
    # aiohttp would silently retry idempotent methods (a delete, too): a conflict could then be our own doing.
    session._retry_connection = False
    headers = filesystem._get_headers(dict(request.headers))  # may refresh the credentials: blocks the loop
    await asyncio.sleep(0)  # lets a cancellation take effect before anything is sent
    url = request.path
    if not url.startswith(("http://", "https://")):
        query = urlencode(filesystem._get_params(request.query), quote_via=quote)
        url = f"{filesystem._location}{url}?{query}"
    sent = 0.0 if clock is None else clock.local()
    async with session.request(
        request.method,
        URL(url, encoded=True),  # yarl would normalise what is quoted in a name
        headers=headers,
        data=None if request.body is None else io.BytesIO(request.body),  # sent in chunks
        timeout=ClientTimeout(total=limit_s),  # aiohttp's default of five minutes outlasts every lease
        allow_redirects=False,
    ) as response:
        if clock is not None:
            clock.observe(response.headers.get("Date"), sent, clock.local())
        return Response(status=response.status, headers=response.headers, body=await response.read())


def multipart(metadata: Mapping[str, str], data: bytes) -> tuple[dict[str, str], bytes]:
    """Return headers and body of an upload of one object in one request."""
    boundary = uuid.uuid4().hex
    head = (
        f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(metadata)}\r\n"
        f"--{boundary}\r\nContent-Type: {metadata['contentType']}\r\n\r\n"
    ).encode()
    body = b"".join((head, data, f"\r\n--{boundary}--\r\n".encode()))
    return {"Content-Type": f"multipart/related; boundary={boundary}"}, body
