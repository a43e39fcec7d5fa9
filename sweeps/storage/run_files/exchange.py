"""One HTTP request for bulk data, and how long to go on trying. `bulk_wire` is the only caller.

Unlike those of `gcs_wire`, the tries can be cut short by another thread: a worker that was told to go gives
its uploads a deadline while one of them is under way.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import logging
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sweeps.errors import StoreUnavailable
from sweeps.storage.gcs.classification import Response, Transient, Unauthorized, classify, sign_in_advice
from sweeps.storage.gcs.request import Request, Sent, send

log = logging.getLogger(__name__)

# The service takes parts in multiples of 256 KiB.
PART_UNIT = 256 * 1024
# A connection that is slower than this counts as dead.
_SLOWEST_BYTES_PER_S = 128 * 1024
_POLL_S = 0.25
# Beyond what `classify` knows: a range, more parts wanted, a forgotten upload, no such range.
_OF_PARTS = frozenset({206, 308, 410, 416})


@dataclass(frozen=True, kw_only=True)
class UploadConfig:
    """How eagerly bulk data moves.

    Args:
        scan_s: seconds between two looks at the folder.
        growing_s: a growing file, or one that is written all the time, goes again at most this often.
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


class Deadline:
    """The time that is left, shared by the thread that uploads and the one that ends it."""

    def __init__(self, pace: UploadConfig) -> None:
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
class BulkRequest(Request):
    """A request for bulk data.

    Args:
        expected_bytes: size of the answer, which is granted time accordingly.
    """

    expected_bytes: int = 0


class Retrier:
    """Tries again after each transient failure, until there was no progress for the pace's patience."""

    def __init__(self, deadline: Deadline, what: str) -> None:
        self._deadline, self._what = deadline, what
        self.refresh()

    def refresh(self) -> None:
        """There was progress: the patience begins anew."""
        self._since, self._bound = time.monotonic(), self._deadline.pace.first_wait_s

    def call(self, attempt: Callable[[], Response]) -> Response:
        """The answer of the first attempt that has one. Raises `StoreUnavailable`."""
        while True:
            self._deadline.check()
            try:
                return attempt()
            except Transient as error:
                patience_s = self._deadline.pace.patience_s
                if time.monotonic() - self._since >= patience_s:
                    raise StoreUnavailable(
                        f"{self._what}: the storage service did not do this within {patience_s:g} s "
                        f"(last: {error}); check the network"
                    ) from None
                log.info("%s: %s; trying again", self._what, error)
                least = self._bound if error.rate_limited else self._bound / 2
                self._deadline.rest(random.uniform(least, 1.5 * least))  # noqa: S311 - spreads clients out
                self._bound = min(2 * self._bound, self._deadline.pace.longest_wait_s)


def exchange(
    open_filesystem: Callable[[], Any], request: BulkRequest, what: str, deadline: Deadline
) -> Response:
    """Send one request once.

    Raises:
        Transient: worth another try.
        StoreUnavailable: not worth one, or the deadline has passed.
    """
    try:
        answer = send(
            open_filesystem,
            request,
            what,
            wait=lambda sending, limit_s: _wait(sending, limit_s + 1.0, deadline),
            extra_s=_transfer_s(request),
        )
        return _judged(answer, what)
    except Unauthorized as error:
        raise Transient(sign_in_advice(what, str(error)), in_doubt=False) from None


def _wait(sending: concurrent.futures.Future[Sent], limit_s: float, deadline: Deadline) -> Sent:
    """What came of it, looked for often enough to notice a deadline."""
    give_up = time.monotonic() + limit_s
    while not concurrent.futures.wait([sending], timeout=_POLL_S).done:
        deadline.check()
        if time.monotonic() > give_up:
            raise Transient("no answer", in_doubt=True)
    return sending.result()


def _judged(answer: Response, what: str) -> Response:
    if answer.status in _OF_PARTS:
        return answer
    # Without its headers: a checksum beside an upload's answer is that of the object, not of the answer.
    classify(dataclasses.replace(answer, headers={}), what, what.removeprefix("gs://").partition("/")[0])
    return answer


def _transfer_s(request: BulkRequest) -> float:
    return (len(request.body or b"") + request.expected_bytes) / _SLOWEST_BYTES_PER_S
