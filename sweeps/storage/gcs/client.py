"""Requests to the JSON API of Google Cloud Storage, sent and tried again with patience.

`gcs` is the only caller; `gcs_request` sends, `gcs_verdict` judges the answers. The tries are our own: gcsfs
ends its six after 33 s with a logged traceback, its requests have no deadline of their own, and it does not
say whether an earlier try may have taken effect, which is what decides whether a conflict is real.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweeps.errors import InputError, StoreUnavailable
from sweeps.storage.gcs.classification import Response, Transient, Unauthorized, classify, sign_in_advice
from sweeps.storage.gcs.clock import ServerClock
from sweeps.storage.gcs.request import Request, Sent, answer_of, line, send, send_many

if TYPE_CHECKING:
    from gcsfs.core import GCSFileSystem

log = logging.getLogger(__name__)

# Requests that wait together: what the session's pool of connections holds.
_AT_ONCE = 100

_creating = threading.Lock()


def _fresh_lock() -> None:
    global _creating  # a forked child inherits the lock as it stood, perhaps held for ever
    _creating = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh_lock)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
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
class RecordRequest(Request):
    """A request for a record, or for a listing of them.

    Args:
        what: the URL that a message names.
        is_moot: for a change, whether its precondition is broken by now. It is asked after a 429, which the
            service also gives to those who lost a race: they need not wait to be told.
    """

    what: str
    is_moot: Callable[[], bool] | None = None


class Client:
    """Requests to one bucket, from any thread; a forked child opens its own connections.

    Args:
        bucket: the bucket's name.
        endpoint: base URL of the service; None for gcsfs' own rules (`STORAGE_EMULATOR_HOST`, else Google).
        clock: learns the server's time from every response.
    """

    def __init__(
        self, bucket: str, *, endpoint: str | None, retries: RetryPolicy, clock: ServerClock
    ) -> None:
        self._bucket, self._endpoint = bucket, endpoint
        self._retries, self._clock = retries, clock
        self._filesystems: dict[int, GCSFileSystem] = {}
        # What a parent opened stays referenced: closing it would speak on the parent's connections.
        self._inherited: list[GCSFileSystem] = []

    def request(self, request: RecordRequest) -> Response:
        """Send one request until it is answered.

        Raises:
            StoreUnavailable: no answer within the patience, or access denied.
            InputError: the endpoint is not a URL.
        """
        from google.api_core import exceptions, retry

        in_doubt = refused = rate_limited = False

        def attempt() -> Response:
            nonlocal in_doubt, refused, rate_limited
            try:
                answer = classify(self._attempt(request), request.what, self._bucket)
            except Transient as error:
                in_doubt = in_doubt or error.in_doubt
                rate_limited = error.rate_limited
                if rate_limited and request.is_moot is not None and request.is_moot():
                    return Response(status=412, headers={}, body=b"", in_doubt=in_doubt)
                raise
            except Unauthorized as error:
                if refused:
                    raise StoreUnavailable(sign_in_advice(request.what, str(error))) from None
                refused = True
                self._forget_credentials()
                raise Transient(f"not signed in ({error})", in_doubt=False) from None
            return dataclasses.replace(answer, in_doubt=in_doubt)

        try:
            answer: Response = retry.retry_target(
                attempt,
                predicate=retry.if_exception_type(Transient),
                sleep_generator=self._waits(lambda: rate_limited),
                timeout=self._retries.total_s,
                on_error=lambda error: log.info("%s: %s; trying again", request.what, error),
            )
        except exceptions.RetryError as error:
            raise StoreUnavailable(
                f"{request.what}: the storage service did not do this within {self._retries.total_s:g} s "
                f"(last: {error.cause}); check the network, then run the same command again"
            ) from None
        return answer

    def request_many(self, requests: Sequence[RecordRequest]) -> list[Response]:
        """The answers to reads, in order: each is sent once with the others, and alone if that went wrong.

        Raises:
            StoreUnavailable, InputError: as `request` does, for the first that has no answer.
        """
        if len(requests) < 2:
            return [self.request(request) for request in requests]
        try:
            came = send_many(self.filesystem, requests, at_once=_AT_ONCE, clock=self._clock)
        except Exception as error:  # noqa: BLE001 - the single requests tell what is wrong
            log.debug("%d requests could not be sent together: %s", len(requests), line(error))
            came = [error] * len(requests)
        return [self._judged(sent, request) for sent, request in zip(came, requests, strict=True)]

    def _judged(self, sent: Sent, request: RecordRequest) -> Response:
        try:
            return classify(answer_of(sent, request.what), request.what, self._bucket)
        except (Transient, Unauthorized, ValueError) as error:
            log.info("%s: %s; trying again", request.what, error)
            return self.request(request)

    def _waits(self, is_rate_limited: Callable[[], bool]) -> Iterator[float]:
        """Seconds between tries: random up to a bound that doubles; after a 429, random from the bound on.

        The service takes one change of a name in a second: a try before the second is over is lost.
        """
        bound = self._retries.first_wait_s
        while True:
            least = bound if is_rate_limited() else 0.0
            most = 1.5 * bound if is_rate_limited() else bound
            yield random.uniform(least, most)  # noqa: S311 - spreads clients out, guards nothing
            bound = min(2 * bound, self._retries.longest_wait_s)

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
            requests_timeout=aiohttp.ClientTimeout(total=self._retries.attempt_s),
        )

    def _address(self) -> str:
        return self._endpoint or os.environ.get("STORAGE_EMULATOR_HOST", "")

    def _forget_credentials(self) -> None:
        """Look for credentials again at the next try: the metadata server may have been slow to answer."""
        with _creating:
            self._filesystems.pop(os.getpid(), None)

    def _attempt(self, request: RecordRequest) -> Response:
        try:
            return send(
                self.filesystem,
                request,
                request.what,
                wait=lambda sending, limit_s: sending.result(timeout=limit_s + 1.0),
                clock=self._clock,
            )
        except ValueError:
            raise InputError(
                f"{request.what}: {self._address()!r} is not the URL of a storage service; "
                "correct or unset STORAGE_EMULATOR_HOST"
            ) from None
