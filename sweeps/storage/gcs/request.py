"""One HTTP request to Google Cloud Storage, sent once over gcsfs' session, and what its failing means.

`gcs_wire` (records) and `bulk_exchange` (bulk data) call it, each with its own patience. gcsfs brings
the credentials, the session and the event loop.
"""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from sweeps.errors import StoreUnavailable
from sweeps.storage.gcs.classification import Response, Transient, Unauthorized
from sweeps.storage.gcs.clock import ServerClock

log = logging.getLogger(__name__)

Sent = Response | Exception
"""What came of a request: kept, not raised, so that nothing is logged where nobody waits any more."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request.

    Args:
        path: below the endpoint and quoted, or a whole URL that the service gave us.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None


def send(
    open_filesystem: Callable[[], Any],
    request: Request,
    what: str,
    *,
    wait: Callable[[Future[Sent], float], Sent],
    extra_s: float = 0.0,
    clock: ServerClock | None = None,
) -> Response:
    """Send one request once, and return whatever the service answers.

    Args:
        open_filesystem: gives gcsfs' file system, whose loop runs in a thread of its own.
        what: the URL that a message names.
        wait: for what came of it, called with the seconds after which the session itself gives up. It may
            raise to give up before (no time is left) or after (the loop is stuck: a refresh of the
            credentials blocks it).
        extra_s: added to the file system's own limit.
        clock: learns the server's time from the answer.

    Raises:
        Transient: no answer; worth another try.
        Unauthorized: the credentials could not be refreshed.
        StoreUnavailable: not worth another try.
        ValueError: the endpoint is not a URL; everything else in it is quoted.
    """
    sending: Future[Sent] | None = None
    sent: Sent
    try:
        filesystem = open_filesystem()
        limit_s = filesystem.requests_timeout.total + extra_s
        sending = asyncio.run_coroutine_threadsafe(
            _kept(filesystem, request, limit_s, clock), filesystem.loop
        )
        sent = wait(sending, limit_s)
    except Exception as error:  # noqa: BLE001 - judged with the others
        sent = error
    finally:
        if sending is not None:
            sending.cancel()  # if it has not ended: nobody waits for it any more
    return answer_of(sent, what)


def send_many(
    open_filesystem: Callable[[], Any], requests: Sequence[Request], *, at_once: int, clock: ServerClock
) -> list[Sent]:
    """Send each request once, `at_once` under way at any time, and return what came of each, in order.

    One coroutine drives them all: a thread for each costs three times the processor time.
    """
    filesystem = open_filesystem()
    limit_s = filesystem.requests_timeout.total
    came: list[Sent] = [TimeoutError("no answer")] * len(requests)

    async def drive(left: Iterator[tuple[int, Request]]) -> None:
        for position, request in left:
            came[position] = await _kept(filesystem, request, limit_s, clock)

    async def drive_all() -> None:
        left = iter(enumerate(requests))
        await asyncio.gather(*(drive(left) for _ in range(min(at_once, len(requests)))))

    sending = asyncio.run_coroutine_threadsafe(drive_all(), filesystem.loop)
    rounds = -(-len(requests) // at_once)
    try:
        sending.result(timeout=rounds * limit_s + 1.0)
    except TimeoutError:
        log.info("%d requests were not done in %g s", len(requests), rounds * limit_s)
    finally:
        sending.cancel()
    return list(came)


def answer_of(sent: Sent, what: str) -> Response:
    """The answer, or what the lack of one means. Raises as `send` does."""
    import aiohttp
    from gcsfs.retry import HttpError, NonRetryableError
    from google.auth.exceptions import GoogleAuthError

    match sent:
        case Response():
            return sent
        case aiohttp.ClientConnectorCertificateError():
            raise StoreUnavailable(
                f"{what}: the storage service's certificate is not trusted ({line(sent)}); "
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
    """An error in one line, with its type."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


async def _kept(filesystem: Any, request: Request, limit_s: float, clock: ServerClock | None) -> Sent:
    try:
        return await _send(filesystem, request, limit_s, clock)
    except Exception as error:  # noqa: BLE001 - it is raised where somebody waits for it
        return error


async def _send(filesystem: Any, request: Request, limit_s: float, clock: ServerClock | None) -> Response:
    from aiohttp import ClientTimeout
    from yarl import URL

    session = await filesystem._set_session()
    # aiohttp would repeat what it takes for idempotent (a delete, too) without telling, and then a conflict
    # could be an echo of our own.
    session._retry_connection = False
    headers = filesystem._get_headers(dict(request.headers))  # may refresh the credentials: blocks the loop
    await asyncio.sleep(0)  # whoever gave up meanwhile has cancelled this: nothing is written behind his back
    sent = 0.0 if clock is None else clock.local()
    async with session.request(
        request.method,
        URL(_address(filesystem, request), encoded=True),  # yarl would normalise what is quoted in a name
        headers=headers,
        data=None if request.body is None else io.BytesIO(request.body),  # so sent in pieces
        timeout=ClientTimeout(total=limit_s),  # aiohttp's own of five minutes would outlast every lease
        allow_redirects=False,
    ) as response:
        if clock is not None:
            clock.observe(response.headers.get("Date"), sent, clock.local())
        return Response(status=response.status, headers=response.headers, body=await response.read())


def _address(filesystem: Any, request: Request) -> str:
    if request.path.startswith(("http://", "https://")):
        return request.path
    query = urlencode(filesystem._get_params(request.query), quote_via=quote)
    return f"{filesystem._location}{request.path}?{query}"
