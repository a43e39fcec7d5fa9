"""Requests for bulk data, with retries that another thread can cut short.

A worker that is preempted gives its uploads a deadline while one of them is running.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sweeps.errors import StoreUnavailable
from sweeps.storage.retries import Transient

_T = TypeVar("_T")

PART_UNIT = 256 * 1024
"""Bytes: the service takes parts in multiples of it."""
SLOWEST_BYTES_PER_S = 128 * 1024  # a slower connection counts as dead
_POLL_S = 0.25
_JOIN_S = 0.1
_SLACK_S = 1.0  # until a running request notices the deadline


@dataclass(frozen=True, kw_only=True)
class UploadConfig:
    """Intervals, backoff and part size of uploads and downloads.

    Args:
        scan_s: seconds between two scans of the folder.
        growing_s: least seconds between two uploads of a file that grows or is rewritten frequently; more
            where an upload takes long.
        patience_s: seconds without progress after which retries end.
        first_wait_s: upper bound of the first random wait in seconds; it doubles with every attempt.
        longest_wait_s: upper bound of every wait in seconds, also of that after a failed round.
        chunk_bytes: bytes of a part of a large file; a smaller file takes one request.
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
    """A deadline that has passed; running transfers are abandoned."""


class Deadline:
    """Deadline of an upload, infinite until it is set, shared by the threads that upload and end it."""

    def __init__(self, config: UploadConfig) -> None:
        self.config = config
        self._deadline = self._idle_s = math.inf
        self._progress_at = 0.0
        self._changed = threading.Event()

    @property
    def is_set(self) -> bool:
        """Return whether there is a deadline."""
        return self._changed.is_set()

    def set(self, deadline: float) -> None:
        """Set the deadline in seconds of the monotonic clock; a later call can only shorten it."""
        self._deadline = min(self._deadline, deadline)
        self._changed.set()

    def note_progress(self) -> None:
        """Note that the service has taken bytes."""
        self._progress_at = time.monotonic()

    def check(self) -> None:
        """Raise `OutOfTime` once the deadline has passed."""
        if self.is_over(0.0):
            raise OutOfTime("there was no time left to upload it")

    def is_over(self, slack_s: float) -> bool:
        """Return whether the deadline passed `slack_s` seconds ago or earlier."""
        return time.monotonic() >= self._end + slack_s

    @property
    def _end(self) -> float:
        return min(self._deadline, self._progress_at + self._idle_s)

    def join(
        self,
        thread: threading.Thread,
        timeout: float,
        *,
        leave: Callable[[], bool] | None,
        grace: float,
        while_moving: bool = False,
    ) -> None:
        """Wait for a thread that works until the deadline, which becomes `timeout` seconds from now.

        Args:
            timeout: seconds.
            while_moving: whether each part that the service takes gives further `timeout` seconds.
            leave: polled; once it returns true (the machine is preempted), at most `grace` seconds remain.
            grace: seconds.
        """
        if while_moving:
            self.note_progress()
            self._idle_s = timeout
            self._changed.set()
        else:
            self.set(time.monotonic() + timeout)
        while thread.is_alive() and not self.is_over(_SLACK_S):
            if leave is not None and leave():
                self.set(time.monotonic() + grace)
                leave = None
            thread.join(_JOIN_S)

    def wait(self, seconds: float) -> None:
        """Wait for so many seconds, or until a deadline is set."""
        self._changed.wait(seconds)

    def back_off(self, seconds: float) -> None:
        """Wait for so many seconds before a retry, but only for a small part of the time to a deadline."""
        until = time.monotonic() + seconds
        if self._changed.wait(seconds):
            now = time.monotonic()
            until = min(until, now + max(0.5, (self._end - now) / 20))
            while time.monotonic() < min(until, self._end):
                time.sleep(0.05)


def wait_for(future: concurrent.futures.Future[_T], limit_s: float, deadline: Deadline) -> _T:
    """Return the result, polling often enough to notice a deadline."""
    give_up = time.monotonic() + limit_s
    while not concurrent.futures.wait([future], timeout=_POLL_S).done:
        deadline.check()
        if time.monotonic() > give_up:
            raise Transient("no answer", in_doubt=True)
    return future.result()
