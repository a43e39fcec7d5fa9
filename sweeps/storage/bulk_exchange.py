"""One HTTP request for bulk data, and how long to go on trying. `bulk_wire` is the only caller.

Unlike those of `gcs_wire`, the tries can be cut short by another thread: a worker that was told to go gives
its uploads a deadline while one of them is under way.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import io
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from sweeps.errors import StoreUnavailable
from sweeps.storage.gcs_verdict import Answer, Transient, Unauthorized, judge, sign_in_advice

log = logging.getLogger(__name__)

# The service takes parts in multiples of 256 KiB.
PART_UNIT = 256 * 1024
# A connection that is slower than this counts as dead.
_SLOWEST_BYTES_PER_S = 128 * 1024
_POLL_S = 0.25
# Beyond what `judge` knows: a range, more parts wanted, a forgotten upload, no such range.
_OF_PARTS = frozenset({206, 308, 410, 416})


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How eagerly bulk data moves.

    Args:
        scan_s: seconds between two looks at the folder.
        growing_s: a growing file goes again at most this often.
        patience_s: how long a request is tried without any progress.
        first_wait_s: upper bound of the first random wait between tries; it doubles with every try.
        longest_wait_s: upper bound of every wait, also of the one before a whole round is tried again.
        chunk_bytes: size of the parts of a large file; a smaller file goes in one request.
    """

    scan_s: float = 5.0
    growing_s: float = 60.0
    patience_s: float = 300.0
    first_wait_s: float = 1.0
    longest_wait_s: float = 60.0
    chunk_bytes: int = 32 * PART_UNIT

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be a positive number, not {value!r}")
        if self.chunk_bytes % PART_UNIT:
            raise ValueError(f"chunk_bytes must be a multiple of {PART_UNIT}, not {self.chunk_bytes}")


class OutOfTime(StoreUnavailable):
    """The deadline has passed; what is under way is given up."""


class Tempo:
    """The time that is left, shared by the thread that uploads and the one that ends it."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self._deadline = math.inf
        self._hurried = threading.Event()

    @property
    def hurried(self) -> bool:
        """Whether there is a deadline."""
        return self._hurried.is_set()

    def hurry(self, deadline: float) -> None:
        """Be done by `deadline` on the monotonic clock; a later call may bring it forward."""
        self._deadline = min(self._deadline, deadline)
        self._hurried.set()

    def check(self) -> None:
        """Raises `OutOfTime` once the deadline has passed."""
        if time.monotonic() >= self._deadline:
            raise OutOfTime("there was no time left to upload it")

    def is_over(self, slack_s: float) -> bool:
        """Whether the deadline passed that long ago."""
        return time.monotonic() >= self._deadline + slack_s

    def pause(self, seconds: float) -> None:
        """Wait until there is something to do: for so long, or until there is a deadline."""
        self._hurried.wait(seconds)

    def rest(self, seconds: float) -> None:
        """Wait between two tries: of the time before a deadline, only a small part."""
        until = time.monotonic() + seconds
        if self._hurried.wait(seconds):
            now = time.monotonic()
            until = min(until, now + max(0.5, (self._deadline - now) / 20))
            while time.monotonic() < min(until, self._deadline):
                time.sleep(0.05)


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request.

    Args:
        path: below the endpoint and quoted, or a whole URL that the service gave us.
        expected_bytes: size of the answer, which is granted time accordingly.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    expected_bytes: int = 0


class Patient:
    """Tries again after each transient failure, until there was no progress for the pace's patience."""

    def __init__(self, tempo: Tempo, what: str) -> None:
        self._tempo, self._what = tempo, what
        self.refresh()

    def refresh(self) -> None:
        """There was progress: the patience begins anew."""
        self._since, self._bound = time.monotonic(), self._tempo.pace.first_wait_s

    def call(self, attempt: Callable[[], Answer]) -> Answer:
        """The answer of the first attempt that has one. Raises `StoreUnavailable`."""
        while True:
            self._tempo.check()
            try:
                return attempt()
            except Transient as error:
                patience_s = self._tempo.pace.patience_s
                if time.monotonic() - self._since >= patience_s:
                    raise StoreUnavailable(
                        f"{self._what}: the storage service did not do this within {patience_s:g} s "
                        f"(last: {error}); check the network"
                    ) from None
                log.info("%s: %s; trying again", self._what, error)
                least = self._bound if error.rate_limited else self._bound / 2
                self._tempo.rest(random.uniform(least, 1.5 * least))  # noqa: S311 - spreads clients out
                self._bound = min(2 * self._bound, self._tempo.pace.longest_wait_s)


def exchange(open_filesystem: Callable[[], Any], request: Request, what: str, tempo: Tempo) -> Answer:
    """Send one request once.

    Raises:
        Transient: worth another try.
        StoreUnavailable: not worth one, or the deadline has passed.
    """
    import aiohttp
    from gcsfs.retry import HttpError, NonRetryableError
    from google.auth.exceptions import GoogleAuthError

    try:
        filesystem = open_filesystem()
        limit_s = filesystem.requests_timeout.total + _transfer_s(request)
        sending = asyncio.run_coroutine_threadsafe(_send(filesystem, request, limit_s), filesystem.loop)
        try:
            return _judged(_wait(sending, limit_s + 1.0, tempo), what)
        finally:
            sending.cancel()  # if it has not ended: nobody waits for it any more
    except aiohttp.ClientConnectorCertificateError as error:
        raise StoreUnavailable(
            f"{what}: the storage service's certificate is not trusted ({_line(error)}); "
            "check the machine's clock and its proxy"
        ) from None
    except (aiohttp.ClientError, OSError) as error:
        raise Transient(_line(error), in_doubt=True) from None
    except (HttpError, NonRetryableError, Unauthorized) as error:
        raise Transient(sign_in_advice(what, _line(error)), in_doubt=False) from None
    except GoogleAuthError as error:
        raise Transient(_line(error), in_doubt=False) from None


def _wait(sending: concurrent.futures.Future[Answer], limit_s: float, tempo: Tempo) -> Answer:
    """The answer, looked for often enough to notice a deadline."""
    give_up = time.monotonic() + limit_s
    while not concurrent.futures.wait([sending], timeout=_POLL_S).done:
        tempo.check()
        if time.monotonic() > give_up:
            raise Transient("no answer", in_doubt=True)
    return sending.result()


def _judged(answer: Answer, what: str) -> Answer:
    if answer.status in _OF_PARTS:
        return answer
    # Without its headers: a checksum beside an upload's answer is that of the object, not of the answer.
    judge(dataclasses.replace(answer, headers={}), what, what.removeprefix("gs://").partition("/")[0])
    return answer


async def _send(filesystem: Any, request: Request, limit_s: float) -> Answer:
    from aiohttp import ClientTimeout
    from yarl import URL

    session = await filesystem._set_session()
    session._retry_connection = (
        False  # a repeat that we are not told of could look like somebody else's write
    )
    headers = filesystem._get_headers(dict(request.headers))  # may refresh the credentials
    await asyncio.sleep(0)  # whoever gave up meanwhile has cancelled this
    async with session.request(
        request.method,
        URL(_address(filesystem, request), encoded=True),
        headers=headers,
        data=None if request.body is None else io.BytesIO(request.body),  # so sent in pieces
        timeout=ClientTimeout(total=limit_s),
        allow_redirects=False,
    ) as response:
        return Answer(status=response.status, headers=response.headers, body=await response.read())


def _address(filesystem: Any, request: Request) -> str:
    if request.path.startswith(("http://", "https://")):
        return request.path
    query = urlencode(filesystem._get_params(request.query), quote_via=quote)
    return f"{filesystem._location}{request.path}?{query}"


def _transfer_s(request: Request) -> float:
    return (len(request.body or b"") + request.expected_bytes) / _SLOWEST_BYTES_PER_S


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
