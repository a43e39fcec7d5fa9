"""Requests through obstore, each once or with retries of ours.

obstore's own retries are off for records: they would hide that an earlier attempt may have taken effect. Its
futures run on an event loop in a thread of ours, so that a caller can stop waiting for one.
"""

from __future__ import annotations

import asyncio
import atexit
import http.client
import logging
import os
import random
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from sweeps.errors import EnvironmentFault, InputError, StoreUnavailable
from sweeps.storage.gcs.classification import Transient, not_a_service
from sweeps.storage.gcs.client import RetryPolicy
from sweeps.storage.gcs.clock import ServerClock
from sweeps.storage.objects.answers import is_missing_object, raised_by, refusal

if TYPE_CHECKING:
    from obstore.store import S3Store

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_IN_HEADERS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
)
_HOST = re.compile(r"[\w.:-]+")
BULK_TIMEOUT_S = 300
_SIGNED_FOR = timedelta(minutes=15)
_PASSED_ON = ("AlreadyExistsError", "PreconditionError")

_SETTLE_S = 0.1  # in which obstore's threads let go of the interpreter

_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}
_ended: set[int] = set()


def _loop() -> asyncio.AbstractEventLoop:
    """Return this process's event loop; obstore's threads do not survive a fork."""
    with _lock:
        process = os.getpid()
        if process not in _loops:
            if _loops:
                raise EnvironmentFault(
                    "this process was forked from one that uses an S3 bucket, where obstore does not work; "
                    "start it by multiprocessing's 'spawn' or 'forkserver'"
                )
            _loops[process] = loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="s3", daemon=True).start()
            atexit.register(_end, process, loop)
        if process in _ended:
            raise RuntimeError("no request to a bucket once the interpreter ends")
        return _loops[process]


def _end(process: int, loop: asyncio.AbstractEventLoop) -> None:
    """Abandon all requests: a thread of obstore's that comes back from one later aborts the process."""
    if process != os.getpid():
        return

    async def cancel() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=_SETTLE_S)

    with _lock:
        _ended.add(process)
    wait([asyncio.run_coroutine_threadsafe(cancel(), loop)], timeout=2 * _SETTLE_S)
    time.sleep(_SETTLE_S)


def _renew_lock() -> None:
    global _lock  # a forked child inherits the lock, perhaps held by a thread that it does not have
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def start(coroutine: Callable[[], Coroutine[Any, Any, _T]]) -> Future[_T]:
    """Run a coroutine on the loop; cancelling the future abandons its request."""
    loop = _loop()  # first: without one, there must be no coroutine that nobody awaits
    return asyncio.run_coroutine_threadsafe(coroutine(), loop)


def _is_url(endpoint: str) -> bool:
    """Return whether obstore can send requests there; others make it panic."""
    try:
        parts = urlsplit(endpoint)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and _HOST.fullmatch(parts.hostname or "") is not None


class ObjectClient:
    """Thread-safe client of one bucket.

    Args:
        endpoint: base URL of the service; None for AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, else AWS itself.
        retries: timeouts and backoff of requests for records.

    Raises:
        InputError: the endpoint is not a URL.
    """

    def __init__(self, bucket: str, *, endpoint: str | None, retries: RetryPolicy) -> None:
        self.bucket, self.retries = bucket, retries
        self.clock = ServerClock()
        name = next((name for name in _ENDPOINTS if os.environ.get(name)), "")
        self._endpoint = endpoint or os.environ.get(name, "")
        if self._endpoint and not _is_url(self._endpoint):
            raise InputError(
                f"{name}: {self._endpoint!r} is not the URL of a storage service; correct or unset it"
            )
        for name in _IN_HEADERS:
            value = os.environ.get(name, "")
            if not (value.isascii() and value.isprintable()):  # obstore would panic
                raise InputError(f"{name}: it holds a line break or another unfit character; set it anew")
        self.answered = False
        self._stores: dict[bool, S3Store] = {}

    def store(self, *, bulk: bool = False) -> S3Store:
        """Return obstore's client: for records without its retries, for `bulk` data with them."""
        if bulk not in self._stores:
            from obstore.store import S3Store

            given: dict[str, Any] = {"endpoint": self._endpoint} if self._endpoint else {}
            patience_s = self.retries.total_s if bulk else self.retries.attempt_s
            self._stores[bulk] = S3Store(
                self.bucket,
                client_options={
                    "timeout": timedelta(seconds=BULK_TIMEOUT_S if bulk else self.retries.attempt_s),
                    "connect_timeout": timedelta(
                        seconds=min(self.retries.attempt_s, self.retries.first_answer_s)
                    ),
                    "allow_http": urlsplit(self._endpoint).scheme == "http",
                },
                retry_config={
                    "max_retries": 10 if bulk else 0,
                    "retry_timeout": timedelta(seconds=patience_s),
                },
                conditional_put="etag",  # whatever AWS_CONDITIONAL_PUT says
                **given,
            )
        return self._stores[bulk]

    def once(
        self,
        coroutine: Callable[[], Coroutine[Any, Any, _T]],
        url: str,
        *,
        limit_s: float = 0.0,
        holds_errors: bool = False,
    ) -> _T:
        """Send once.

        Args:
            limit_s: seconds in which several requests have to be done; 0 for the time of one.
            holds_errors: the result may hold errors in place of answers: it does not show that there was one.

        Raises:
            FileNotFoundError: there is no such object.
            AlreadyExistsError, PreconditionError: of obstore; what is stored is not what the write expected.
            Transient: a retry may succeed; the request may have taken effect.
            StoreUnavailable, InputError: a retry would fail, too.
        """
        future = start(coroutine)
        try:
            result = future.result(timeout=(limit_s or self.retries.attempt_s) + 1.0)
        except FutureTimeout:
            raise Transient("no answer", in_doubt=True) from None
        except Exception as error:  # noqa: BLE001 - `raised` says what it is
            raise self.raised(error, url) from None
        finally:
            future.cancel()
        self.answered = self.answered or not holds_errors
        return result

    def raised(self, error: Exception, url: str) -> Exception:
        """Return what `once` raises for an error of obstore."""
        missing = isinstance(error, FileNotFoundError)
        if not missing and type(error).__module__ != "obstore.exceptions":
            return error
        # A 409 is no verdict: another change of the object was under way.
        passed_on = type(error).__name__ in _PASSED_ON and refusal(error).status != 409
        if passed_on or is_missing_object(error):
            self.answered = True
            return error
        found = raised_by(error, url, self.bucket, first=not self.answered)
        if isinstance(found, Transient) and refusal(error).status:
            self.answered = True
        return found

    def retried(self, attempt: Callable[[], _T], url: str) -> _T:
        """Return what the first attempt returns that does not fail transiently. Raises `StoreUnavailable`."""
        began, bound = time.monotonic(), self.retries.first_wait_s
        while True:
            try:
                return attempt()
            except Transient as error:
                limit_s = self.retries.total_s if self.answered else self.retries.first_answer_s
                least = bound if error.rate_limited else 0.0
                wait_s = random.uniform(least, bound + least / 2)  # noqa: S311 - spreads clients out
                if time.monotonic() - began + wait_s > limit_s:
                    raise StoreUnavailable(
                        f"{url}: the storage service did not do this within {limit_s:g} s "
                        f"(last: {error}); check the network, then run the same command again"
                    ) from None
                log.info("%s: %s; trying again", url, error)
                time.sleep(wait_s)
                bound = min(2 * bound, self.retries.longest_wait_s)

    def observe_clock(self, name: str, url: str) -> None:
        """Learn the server's time: obstore shows no headers, so a signed URL is asked for its `Date`."""
        import obstore

        async def sign() -> str:
            return await obstore.sign_async(self.store(), "HEAD", name, _SIGNED_FOR)

        def attempt() -> None:
            request = urllib.request.Request(self.once(sign, url), method="HEAD")  # noqa: S310 - obstore's
            sent = self.clock.local()
            try:
                with urllib.request.urlopen(request, timeout=self.retries.attempt_s) as answer:  # noqa: S310 - likewise
                    headers = answer.headers
            except urllib.error.HTTPError as error:  # such as 404: it has a Date, too
                headers = error.headers
                error.close()
            except (OSError, http.client.HTTPException) as error:
                raise Transient(str(error), in_doubt=False) from None
            self.clock.observe(headers.get("Date"), sent, self.clock.local())

        self.retried(attempt, url)
        if self.clock.age() == float("inf"):
            raise not_a_service(f"{url}: the storage service's answers carry no Date, which leases need")
