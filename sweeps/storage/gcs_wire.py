"""Requests to the JSON API of Google Cloud Storage, sent and tried again with patience.

`gcs` is the only caller; `gcs_verdict` judges the answers. gcsfs brings the credentials, the session and the
event loop. The tries are our own: gcsfs ends its six after 33 s with a logged traceback, its requests have no
deadline of their own, and it does not say whether an earlier try may have taken effect, which is what decides
whether a conflict is real.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import logging
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from sweeps.errors import InputError, StoreUnavailable
from sweeps.storage.gcs_clock import ServerClock
from sweeps.storage.gcs_verdict import Answer, Transient, Unauthorized, judge, sign_in_advice

if TYPE_CHECKING:
    from gcsfs.core import GCSFileSystem

log = logging.getLogger(__name__)

_creating = threading.Lock()


def _fresh_lock() -> None:
    global _creating  # a forked child inherits the lock as it stood, perhaps held for ever
    _creating = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh_lock)


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to put up with a failing network.

    Args:
        total_s: after this long, `StoreUnavailable` (plus what the last try still takes).
        attempt_s: deadline of one try.
        first_wait_s: upper bound of the first random wait; it doubles with every try.
        longest_wait_s: upper bound of every random wait.
    """

    total_s: float = 120.0
    attempt_s: float = 20.0
    first_wait_s: float = 1.0
    longest_wait_s: float = 16.0

    def __post_init__(self) -> None:
        for name, seconds in dataclasses.asdict(self).items():
            if not 0 < seconds < float("inf"):
                raise ValueError(f"{name} must be a positive number of seconds, not {seconds!r}")


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request.

    Args:
        path: below the endpoint, quoted.
        what: the URL that a message names.
        is_moot: for a change, whether its precondition is broken by now. It is asked after a 429, which the
            service also gives to those who lost a race: they need not wait to be told.
    """

    method: str
    path: str
    what: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str | None = None
    is_moot: Callable[[], bool] | None = None


class Wire:
    """Requests to one bucket, from any thread; a forked child opens its own connections.

    Args:
        bucket: the bucket's name.
        endpoint: base URL of the service; None for gcsfs' own rules (`STORAGE_EMULATOR_HOST`, else Google).
        clock: learns the server's time from every response.
    """

    def __init__(self, bucket: str, *, endpoint: str | None, patience: Patience, clock: ServerClock) -> None:
        self._bucket, self._endpoint = bucket, endpoint
        self._patience, self._clock = patience, clock
        self._filesystems: dict[int, GCSFileSystem] = {}
        # What a parent opened stays referenced: closing it would speak on the parent's connections.
        self._inherited: list[GCSFileSystem] = []

    def request(self, request: Request) -> Answer:
        """Send one request until it is answered.

        Raises:
            StoreUnavailable: no answer within the patience, or access denied.
            InputError: the endpoint is not a URL.
        """
        from google.api_core import exceptions, retry

        in_doubt = refused = rate_limited = False

        def attempt() -> Answer:
            nonlocal in_doubt, refused, rate_limited
            try:
                answer = judge(self._attempt(request), request.what, self._bucket)
            except Transient as error:
                in_doubt = in_doubt or error.in_doubt
                rate_limited = error.rate_limited
                if rate_limited and request.is_moot is not None and request.is_moot():
                    return Answer(status=412, headers={}, body=b"", in_doubt=in_doubt)
                raise
            except Unauthorized as error:
                if refused:
                    raise StoreUnavailable(sign_in_advice(request.what, str(error))) from None
                refused = True
                self._forget_credentials()
                raise Transient(f"not signed in ({error})", in_doubt=False) from None
            return dataclasses.replace(answer, in_doubt=in_doubt)

        try:
            answer: Answer = retry.retry_target(
                attempt,
                predicate=retry.if_exception_type(Transient),
                sleep_generator=self._waits(lambda: rate_limited),
                timeout=self._patience.total_s,
                on_error=lambda error: log.info("%s: %s; trying again", request.what, error),
            )
        except exceptions.RetryError as error:
            raise StoreUnavailable(
                f"{request.what}: the storage service did not do this within {self._patience.total_s:g} s "
                f"(last: {error.cause}); check the network, then run the same command again"
            ) from None
        return answer

    def _waits(self, is_rate_limited: Callable[[], bool]) -> Iterator[float]:
        """Seconds between tries: random up to a bound that doubles; after a 429, random from the bound on.

        The service takes one change of a name in a second: a try before the second is over is lost.
        """
        bound = self._patience.first_wait_s
        while True:
            least = bound if is_rate_limited() else 0.0
            most = 1.5 * bound if is_rate_limited() else bound
            yield random.uniform(least, most)  # noqa: S311 - spreads clients out, guards nothing
            bound = min(2 * bound, self._patience.longest_wait_s)

    def filesystem(self) -> GCSFileSystem:
        """This process's gcsfs file system. The first call finds the credentials."""
        from gcsfs.core import GCSFileSystem

        process = os.getpid()
        with _creating:
            if process not in self._filesystems:
                self._inherited.extend(self._filesystems.values())
                self._filesystems = {process: self._open(GCSFileSystem)}
            return self._filesystems[process]

    def _open(self, factory: type[GCSFileSystem]) -> GCSFileSystem:
        import aiohttp

        # Google's own client does the same: no token travels to an emulator, least of all in clear text.
        address = self._address()
        in_clear = address not in ("", "default") and not address.startswith("https://")
        return factory(
            access="read_write",
            token="anon" if in_clear else None,
            endpoint_url=self._endpoint,
            use_listings_cache=False,
            skip_instance_cache=True,
            # aiohttp's default of five minutes would outlast every lease.
            requests_timeout=aiohttp.ClientTimeout(total=self._patience.attempt_s),
        )

    def _address(self) -> str:
        return self._endpoint or os.environ.get("STORAGE_EMULATOR_HOST", "")

    def _forget_credentials(self) -> None:
        """Look for credentials again at the next try: the metadata server may have been slow to answer."""
        with _creating:
            self._filesystems.pop(os.getpid(), None)

    def _attempt(self, request: Request) -> Answer:
        import aiohttp
        from gcsfs.retry import HttpError, NonRetryableError
        from google.auth.exceptions import GoogleAuthError

        try:
            filesystem = self.filesystem()
            sending = asyncio.run_coroutine_threadsafe(
                _send(filesystem, self._clock, request), filesystem.loop
            )
            try:
                # The session has a deadline of its own; this one counts where the loop itself is stuck (a
                # refresh of the credentials blocks it).
                return sending.result(timeout=self._patience.attempt_s + 1.0)
            finally:
                sending.cancel()  # if it has not ended: nobody waits for it any more
        except ValueError:  # from building the URL; everything else in it is quoted
            raise InputError(
                f"{request.what}: {self._address()!r} is not the URL of a storage service; "
                "correct or unset STORAGE_EMULATOR_HOST"
            ) from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise StoreUnavailable(
                f"{request.what}: the storage service's certificate is not trusted ({_line(error)}); "
                "check the machine's clock and its proxy"
            ) from None
        except aiohttp.ClientConnectorError as error:
            raise Transient(_line(error), in_doubt=False) from None
        except (aiohttp.ClientError, OSError) as error:
            raise Transient(_line(error), in_doubt=True) from None
        except (HttpError, NonRetryableError) as error:  # from refreshing the credentials
            raise Unauthorized(_line(error)) from None
        except GoogleAuthError as error:
            raise Transient(_line(error), in_doubt=False) from None


async def _send(filesystem: GCSFileSystem, clock: ServerClock, request: Request) -> Answer:
    from yarl import URL

    session = await filesystem._set_session()
    # aiohttp would repeat what it takes for idempotent (a delete, too) without telling, and then a conflict
    # could be an echo of our own.
    session._retry_connection = False
    headers = {} if request.content_type is None else {"Content-Type": request.content_type}
    headers = filesystem._get_headers(headers)  # may refresh the credentials, which blocks the loop
    await asyncio.sleep(0)  # whoever gave up meanwhile has cancelled this: nothing is written behind his back
    query = urlencode(filesystem._get_params(request.query), quote_via=quote)
    # `encoded`: yarl would otherwise normalise what is quoted in an object's name.
    url = URL(f"{filesystem._location}{request.path}?{query}", encoded=True)
    sent = clock.local()
    async with session.request(
        request.method,
        url,
        headers=headers,
        data=None if request.body is None else io.BytesIO(request.body),  # so sent in pieces
        timeout=filesystem.requests_timeout,
        allow_redirects=False,
    ) as response:
        clock.observe(response.headers.get("Date"), sent, clock.local())
        return Answer(status=response.status, headers=response.headers, body=await response.read())


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
