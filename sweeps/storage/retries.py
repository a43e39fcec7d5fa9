"""Retries of requests to a bucket: which failures are worth one, and how long they go on."""

from __future__ import annotations

import dataclasses
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sweeps.errors import StoreUnavailable

log = logging.getLogger(__name__)

_T = TypeVar("_T")

SILENCE_S = 5.0
"""Seconds without any answer of a service after which a person is told."""


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


class Transient(Exception):
    """A failed attempt that is worth a retry.

    Args:
        in_doubt: the service may have acted on the request.
        rate_limited: the service refused the request as one too many.
    """

    def __init__(self, message: str, *, in_doubt: bool, rate_limited: bool = False) -> None:
        self.in_doubt, self.rate_limited = in_doubt, rate_limited
        super().__init__(message)


def retry(
    attempt: Callable[[], _T],
    url: str,
    *,
    limit_s: Callable[[], float],
    first_wait_s: float,
    longest_wait_s: float,
    wait: Callable[[float], object] = time.sleep,
    silent: Callable[[], bool] = lambda: False,
) -> _T:
    """Return what the first attempt returns that does not fail transiently.

    Args:
        url: the object's, for messages.
        limit_s: returns the seconds after which to give up: more once the service has answered.
        first_wait_s: see `RetryPolicy`, as for `longest_wait_s`.
        wait: waits for so many seconds, or shorter.
        silent: returns whether the service has never answered: then a warning says after a while that it is
            tried on.

    Raises:
        StoreUnavailable: none did in time.
    """
    began, bound, warned = time.monotonic(), first_wait_s, False
    while True:
        try:
            return attempt()
        except Transient as error:
            # Google accepts one change of an object per second: an earlier retry would fail.
            least = bound if error.rate_limited else 0.0
            wait_s = random.uniform(least, bound + least / 2)  # noqa: S311 - spreads clients out
            if time.monotonic() - began + wait_s > limit_s():
                raise StoreUnavailable(
                    f"{url}: the storage service did not do this within {limit_s():g} s "
                    f"(last: {error}); check the network, then run the same command again"
                ) from None
            log.info("%s: %s; trying again", url, error)
            if not warned and time.monotonic() - began + wait_s > SILENCE_S and silent():
                log.warning("%s: no answer so far (%s); trying for %g s in all", url, error, limit_s())
                warned = True
            wait(wait_s)
            bound = min(2 * bound, longest_wait_s)
