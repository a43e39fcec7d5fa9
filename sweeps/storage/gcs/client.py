"""Client of the JSON API of Google Cloud Storage, with retries.

`request` sends, `classification` decides about a retry. gcsfs' own retries do not serve: it gives up after
six (33 s) with a logged traceback, its requests have no timeout, and it does not say whether an earlier
attempt may have taken effect, which decides whether a conflict is real.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweeps.errors import InputError, StoreUnavailable
from sweeps.storage.gcs.classification import Response, Transient, Unauthorized, classify, sign_in_advice
from sweeps.storage.gcs.clock import ServerClock
from sweeps.storage.gcs.request import Request, line, response_of, send, send_many

if TYPE_CHECKING:
    from gcsfs.core import GCSFileSystem

log = logging.getLogger(__name__)

_CONCURRENCY = 100  # the size of the session's connection pool

_opening = threading.Lock()


def _renew_lock() -> None:
    global _opening  # a forked child inherits the lock, perhaps held by a thread that it does not have
    _opening = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Timeouts and backoff of requests, in seconds.

    Args:
        total_s: no retry starts later than this; then `StoreUnavailable` is raised.
        first_answer_s: as `total_s`, until the service has answered once.
        attempt_s: timeout of one attempt.
        first_wait_s: upper bound of the first random wait; it doubles with every attempt.
        longest_wait_s: upper bound of every random wait.
    """

    total_s: float = 120.0
    first_answer_s: float = 120.0
    attempt_s: float = 20.0
    first_wait_s: float = 1.0
    longest_wait_s: float = 16.0

    def __post_init__(self) -> None:
        for name, seconds in dataclasses.asdict(self).items():
            if not 0 < seconds < float("inf"):
                raise ValueError(f"{name} must be a positive number of seconds, not {seconds!r}")


@dataclass(frozen=True, kw_only=True)
class RecordRequest(Request):
    """A request for a record or a listing.

    Args:
        url: the object's URL, for messages.
        is_moot: returns whether a write's precondition no longer holds. Called after a 429, which the service
            also sends to the loser of a race, who then need not retry.
    """

    url: str
    is_moot: Callable[[], bool] | None = None


class Client:
    """Thread-safe client of one bucket; a forked child opens its own connections.

    Args:
        endpoint: base URL of the service; None for gcsfs' own rules (`STORAGE_EMULATOR_HOST`, else Google).
        retries: timeouts and backoff.
        clock: learns the server's time from every response.
    """

    def __init__(
        self, bucket: str, *, endpoint: str | None, retries: RetryPolicy, clock: ServerClock
    ) -> None:
        self._bucket, self._endpoint = bucket, endpoint
        self._retries, self._clock = retries, clock
        self._filesystems: dict[int, GCSFileSystem] = {}
        self._answered = False
        # Kept referenced in a forked child: closing them would use the parent's connections.
        self._inherited: list[GCSFileSystem] = []

    def request(self, request: RecordRequest) -> Response:
        """Send one request, with retries, and return the response.

        Raises:
            StoreUnavailable: no response in time, or access denied.
            InputError: the endpoint is not a URL.
        """
        from google.api_core import exceptions, retry

        in_doubt = refused = rate_limited = False

        def attempt() -> Response:
            nonlocal in_doubt, refused, rate_limited
            try:
                answer = self._attempt(request)
                self._answered = True
                response = classify(answer, request.url, self._bucket)
            except Transient as error:
                in_doubt = in_doubt or error.in_doubt
                rate_limited = error.rate_limited
                if rate_limited and request.is_moot is not None and request.is_moot():
                    return Response(status=412, headers={}, body=b"", in_doubt=in_doubt)
                raise
            except Unauthorized as error:
                if refused:
                    raise StoreUnavailable(sign_in_advice(request.url, str(error))) from None
                refused = True
                with _opening:  # find credentials again: the metadata server may have been slow
                    self._filesystems.pop(os.getpid(), None)
                raise Transient(f"not signed in ({error})", in_doubt=False) from None
            return dataclasses.replace(response, in_doubt=in_doubt)

        def attempts(limit_s: float) -> Response:
            response: Response = retry.retry_target(
                attempt,
                predicate=retry.if_exception_type(Transient),
                sleep_generator=self._waits(lambda: rate_limited),
                timeout=limit_s,
                on_error=lambda error: log.info("%s: %s; trying again", request.url, error),
            )
            return response

        limit_s = self._retries.total_s
        if not self._answered:
            limit_s = min(limit_s, self._retries.first_answer_s)
        try:
            try:
                return attempts(limit_s)
            except exceptions.RetryError:
                if not self._answered or limit_s >= self._retries.total_s:
                    raise
                limit_s = self._retries.total_s  # it can be reached, and is only slow or overloaded
                return attempts(limit_s)
        except exceptions.RetryError as error:
            raise StoreUnavailable(
                f"{request.url}: the storage service did not do this within {limit_s:g} s "
                f"(last: {error.cause}); check the network, then run the same command again"
            ) from None

    def request_many(self, requests: Sequence[RecordRequest]) -> list[Response]:
        """Return the responses to reads in order: sent concurrently, and retried one by one.

        Raises:
            StoreUnavailable, InputError: as `request` does, for the first request without a response.
        """
        if len(requests) < 2:
            return [self.request(request) for request in requests]
        try:
            results = send_many(self.filesystem, requests, concurrency=_CONCURRENCY, clock=self._clock)
        except Exception as error:  # noqa: BLE001 - the retries raise what is wrong
            log.debug("%d requests could not be sent together: %s", len(requests), line(error))
            results = [error] * len(requests)
        responses: list[Response] = []
        for result, request in zip(results, requests, strict=True):
            try:
                responses.append(classify(response_of(result, request.url), request.url, self._bucket))
            except (Transient, Unauthorized, ValueError) as error:
                log.info("%s: %s; trying again", request.url, error)
                responses.append(self.request(request))
        return responses

    def _waits(self, is_rate_limited: Callable[[], bool]) -> Iterator[float]:
        """Yield the seconds before each retry: random below a bound that doubles; after a 429, above it.

        The service accepts one change of an object per second: an earlier retry would fail.
        """
        bound = self._retries.first_wait_s
        while True:
            least = bound if is_rate_limited() else 0.0
            most = 1.5 * bound if is_rate_limited() else bound
            yield random.uniform(least, most)  # noqa: S311 - spreads clients out, guards nothing
            bound = min(2 * bound, self._retries.longest_wait_s)

    def filesystem(self) -> GCSFileSystem:
        """Return this process's gcsfs file system. The first call finds the credentials."""
        from gcsfs.core import GCSFileSystem

        process = os.getpid()
        with _opening:
            if process not in self._filesystems:
                self._inherited.extend(self._filesystems.values())
                self._filesystems = {process: self._open(GCSFileSystem)}
            return self._filesystems[process]

    def _open(self, factory: type[GCSFileSystem]) -> GCSFileSystem:
        import aiohttp

        # As in Google's own client: no token is sent to an emulator, least of all in clear text.
        address = self._address()
        in_clear = address not in ("", "default") and not address.startswith("https://")

        def open_() -> GCSFileSystem:
            return factory(
                access="read_write",
                token="anon" if in_clear else None,
                endpoint_url=self._endpoint,
                use_listings_cache=False,
                skip_instance_cache=True,
                requests_timeout=aiohttp.ClientTimeout(
                    total=self._retries.attempt_s,
                    sock_connect=min(self._retries.attempt_s, self._retries.first_answer_s),
                ),
            )

        hurried = not self._answered and self._retries.first_answer_s < self._retries.total_s
        return _within(self._retries.first_answer_s, open_) if hurried else open_()

    def _address(self) -> str:
        return self._endpoint or os.environ.get("STORAGE_EMULATOR_HOST", "")

    def _attempt(self, request: RecordRequest) -> Response:
        try:
            return send(
                self.filesystem,
                request,
                request.url,
                wait=lambda future, limit_s: future.result(timeout=limit_s + 1.0),
                clock=self._clock,
            )
        except ValueError:
            raise InputError(
                f"{request.url}: {self._address()!r} is not the URL of a storage service; "
                "correct or unset STORAGE_EMULATOR_HOST"
            ) from None


def _within(limit_s: float, open_: Callable[[], GCSFileSystem]) -> GCSFileSystem:
    """Return what the function returns, if it does in so many seconds.

    gcsfs looks for credentials as it is opened; without a network that takes 15 s, and has no limit to set.

    Raises:
        GoogleAuthError: it took longer; the function goes on in its thread.
    """
    from google.auth.exceptions import GoogleAuthError

    future: Future[GCSFileSystem] = Future()

    def run() -> None:
        try:
            future.set_result(open_())
        except BaseException as error:  # noqa: BLE001 - the caller's
            future.set_exception(error)

    threading.Thread(target=run, name="gcs-open", daemon=True).start()
    try:
        return future.result(timeout=limit_s)
    except FutureTimeout:
        raise GoogleAuthError(  # type: ignore[no-untyped-call]  # google-auth ships no types
            f"no credentials were found within {limit_s:g} s"
        ) from None
