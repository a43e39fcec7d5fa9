"""Requests through obstore, each once or with retries of ours.

obstore's own retries are off for records: they would hide that an earlier attempt may have taken effect. Its
futures run on an event loop in a thread of ours, so that a caller can stop waiting for one.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

from sweeps.errors import EnvironmentFault, InputError, StoreUnavailable, SweepError
from sweeps.storage.clock import ServerClock
from sweeps.storage.objects.answers import Refusal, is_missing_object, is_refusal, refusal_of
from sweeps.storage.retries import RetryPolicy, Transient, retry

_T = TypeVar("_T")
_HOST = re.compile(r"[\w.:-]+")
BULK_TIMEOUT_S = 300

_SETTLE_S = 0.1  # in which obstore's threads let go of the interpreter

_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}
_ended: set[int] = set()


def event_loop() -> asyncio.AbstractEventLoop:
    """Return this process's event loop; obstore's threads do not survive a fork."""
    with _lock:
        process = os.getpid()
        if process not in _loops:
            if _loops:
                raise EnvironmentFault(
                    "this process was forked from one that uses a bucket, where obstore does not work; "
                    "start it by multiprocessing's 'spawn' or 'forkserver'"
                )
            _loops[process] = loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="bucket", daemon=True).start()
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
    loop = event_loop()  # first: without one, there must be no coroutine that nobody awaits
    return asyncio.run_coroutine_threadsafe(coroutine(), loop)


def is_url(endpoint: str) -> bool:
    """Return whether obstore can send requests there; others make it panic."""
    try:
        parts = urlsplit(endpoint)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and _HOST.fullmatch(parts.hostname or "") is not None


def is_set(variable: str) -> bool:
    """Return whether a variable has a value, other than one by which obstore takes a switch for off."""
    return os.environ.get(variable, "").lower() not in ("", "0", "false", "off", "no", "n")


def within(limit_s: float, act: Callable[[], _T]) -> _T:
    """Return what the function returns, if it does in so many seconds.

    Looking for credentials takes 15 s without a network, and has no limit to set.

    Raises:
        Transient: it took longer; the function goes on in its thread.
    """
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(act())
        except BaseException as error:  # noqa: BLE001 - the caller's
            future.set_exception(error)

    threading.Thread(target=run, name="sign-in", daemon=True).start()
    try:
        return future.result(timeout=limit_s)
    except FutureTimeout:
        raise Transient(f"no credentials were found within {limit_s:g} s", in_doubt=False) from None


class ObjectClient(ABC):
    """Thread-safe client of one bucket.

    Attributes:
        answered: whether the service has answered yet.
        written: whether it has accepted a record yet.
        refused: whether it has refused the credentials since its last answer.

    Args:
        endpoint: base URL of the service; "" for its own.
        retries: timeouts and backoff of requests for records.
    """

    def __init__(self, bucket: str, *, endpoint: str, retries: RetryPolicy) -> None:
        self.bucket, self.endpoint, self.retries = bucket, endpoint, retries
        self.clock = ServerClock()
        self.answered = self.written = self.refused = False
        self._stores: dict[bool, Any] = {}

    # ---- what differs between the services

    @abstractmethod
    def open(self, options: Mapping[str, Any]) -> Any:
        """Return obstore's client with these options of its HTTP client and its retries."""

    @abstractmethod
    def version(self, about: Mapping[str, Any], url: str) -> str:
        """Return the version in an answer of obstore. Raises `StoreUnavailable` if it has none."""

    @abstractmethod
    def expectation(self, version: str) -> Mapping[str, str]:
        """Return how obstore names the version that a write expects."""

    def respell(self) -> bool:
        """Write versions in the other way from now on; return whether there is one.

        It may help where a write was refused although the object has the version that it expected.
        """
        return False

    @abstractmethod
    def condition(self, version: str) -> Mapping[str, str]:
        """Return how obstore names the version that a read wants."""

    @abstractmethod
    def fault(self, said: Refusal, url: str) -> Exception | None:
        """Return the error of a refusal that no retry changes, None for another."""

    @abstractmethod
    def observe_clock(self, name: str, url: str) -> None:
        """Learn the server's time. Raises `StoreUnavailable`."""

    def sign_in(self, url: str) -> None:
        """Find the credentials, where obstore does not do it itself. Raises as `once` does."""
        return

    @abstractmethod
    def signed_in_as(self) -> str:
        """Return whose credentials are used, in a few words."""

    # ---- requests

    def store(self, *, bulk: bool = False) -> Any:
        """Return obstore's client: for records without its retries, for `bulk` data with them."""
        if (store := self._stores.get(bulk)) is None:  # another thread may clear them
            patience_s = self.retries.total_s if bulk else self.retries.attempt_s
            store = self._stores[bulk] = self.open(
                {
                    "client_options": {
                        "timeout": timedelta(seconds=BULK_TIMEOUT_S if bulk else self.retries.attempt_s),
                        "connect_timeout": timedelta(
                            seconds=min(self.retries.attempt_s, self.retries.first_answer_s)
                        ),
                        "allow_http": urlsplit(self.endpoint).scheme == "http",
                    },
                    "retry_config": {
                        "max_retries": 10 if bulk else 0,
                        "retry_timeout": timedelta(seconds=patience_s),
                    },
                }
            )
        return store

    def once(
        self,
        coroutine: Callable[[], Coroutine[Any, Any, _T]],
        url: str,
        *,
        limit_s: float = 0.0,
        wait_for: Callable[[Future[_T], float], _T] = lambda future, limit_s: future.result(limit_s),
        holds_errors: bool = False,
    ) -> _T:
        """Send once.

        Args:
            limit_s: seconds in which several requests have to be done; 0 for the time of one.
            wait_for: returns the future's result within so many seconds; it may raise before that.
            holds_errors: the result may hold errors in place of answers: it does not show that there was one.

        Raises:
            FileNotFoundError: there is no such object.
            AlreadyExistsError, PreconditionError: of obstore; what is stored is not what the write expected.
            Transient: a retry may succeed; the request may have taken effect.
            StoreUnavailable, InputError: a retry would fail, too.
        """
        event_loop()  # first: it refuses in a forked child
        self.sign_in(url)
        future = start(coroutine)
        try:
            result = wait_for(future, (limit_s or self.retries.attempt_s) + 1.0)
        except FutureTimeout:
            raise Transient("no answer", in_doubt=True) from None
        except Exception as error:  # noqa: BLE001 - `meaning` says what it is
            raise self.meaning(error, url) from None
        finally:
            future.cancel()
        if not holds_errors:
            self.answered, self.refused = True, False
        return result

    def meaning(self, error: Exception, url: str) -> Exception:
        """Return what `once` raises for an error of obstore."""
        missing = isinstance(error, FileNotFoundError)
        if not missing and type(error).__module__ != "obstore.exceptions":
            return error
        said = refusal_of(error)
        # A 409 is no verdict: another change of the object was under way.
        if is_missing_object(error) or (
            not missing and is_refusal(error) and (said.status != 409 or said.code == "BlobAlreadyExists")
        ):
            self.answered = True
            return error
        return self.verdict(said, url)

    def verdict(self, said: Refusal, url: str) -> Exception:
        """Return the error to raise for a refusal."""
        if (fault := self.fault(said, url)) is not None:
            return fault
        if "certificate" in said.detail and not said.status:
            fault_class = StoreUnavailable if self.answered else InputError
            return fault_class(
                f"{url}: the storage service's certificate is not trusted ({said.detail}); "
                "check the clock and the proxy of this machine, or let SSL_CERT_FILE "
                "(for gs:// REQUESTS_CA_BUNDLE, too) name a file with the authority's certificate"
            )
        if said.is_passing:
            self.answered = self.answered or said.status > 0
            return Transient(said.detail, in_doubt=said.status != 429, rate_limited=said.status in (429, 503))
        return StoreUnavailable(
            f"{url}: the storage service refused ({said.detail}); check --storage and the service's endpoint"
        )

    def denied(self, said: Refusal) -> type[SweepError]:
        """Return the class of the error of a missing right: the user's input, until the right has been used.

        Else a worker would wait half an hour for a right to write that nobody has given it.
        """
        has_worked = self.written if "performing PUT" in said.text else self.answered
        return StoreUnavailable if has_worked else InputError

    def retry(self, attempt: Callable[[], _T], url: str) -> _T:
        """Return what the first attempt returns that does not fail transiently. Raises `StoreUnavailable`."""

        def limit_s() -> float:
            total_s = self.retries.total_s
            return total_s if self.answered else min(total_s, self.retries.first_answer_s)

        return retry(
            attempt,
            url,
            limit_s=limit_s,
            first_wait_s=self.retries.first_wait_s,
            longest_wait_s=self.retries.longest_wait_s,
            silent=lambda: not self.answered,
        )
