"""One poller per sweep: however many clients there are, its store is listed once in five seconds at most.

A poller works while it has readers: a page was asked for in the last half minute, or a client listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sweeps.dashboard.reader import SweepReader, View
from sweeps.errors import SweepError
from sweeps.storage.base import Store
from sweeps.trials.redaction import redact

log = logging.getLogger(__name__)

LISTING_S = 5.0
"""Seconds between two listings of a sweep, at least."""
TICK_S = 1.0
"""Seconds between two readings of the open trials of a folder, which need no listing."""
STALE_S = 20.0
"""A sweep that was not read for so long is shown with a warning: its store hangs."""
_IDLE_S = 30.0
_ONCE_S = 0.5

T = TypeVar("T")


class Poller:
    """The latest view of one sweep, for coroutines of one event loop.

    Args:
        tick_s: seconds between two readings; a bucket is read with each listing only.

    Attributes:
        view: what was read last; None before the first reading.
        read_at: this machine's time of the last reading that succeeded.
        error: why the last reading failed, in one line; "" if it did not.
    """

    def __init__(self, name: str, store: Store, *, tick_s: float = TICK_S) -> None:
        self.name, self.reader = name, SweepReader(store)
        self.view: View | None = None
        self.read_at = 0.0
        self.error = ""
        self._tick_s = LISTING_S if store.is_remote else tick_s
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="dashboard")
        self._task: asyncio.Task[None] | None = None
        self._listeners: set[asyncio.Event] = set()
        self._asked_at = self._listed_at = self._tried_at = float("-inf")
        self._first = asyncio.Event()
        self._unlisted = False
        self._changes = 0

    @property
    def is_stale(self) -> bool:
        """Return whether the view is of an earlier time, as the store cannot be read now."""
        return bool(self.error) or (
            self.view is not None and time.time() - self.read_at > STALE_S + self._tick_s
        )

    def now(self) -> float:
        """Return the store's time, by this machine's clock since the last reading."""
        return time.time() + self.reader.ahead_s

    @property
    def mark(self) -> str:
        """Return what changes whenever a page of the sweep would."""
        return f"{0 if self.view is None else self.view.number}.{int(self.is_stale)}.{self._changes}"

    def change(self) -> None:
        """Have the pages of the sweep change, though nothing in its store has."""
        self._changes += 1
        for event in self._listeners:
            event.set()

    async def current(self, patience_s: float = 2.2, *, max_age_s: float | None = None) -> View | None:
        """Return the latest view, which is at most five seconds old where the store answers in time.

        Args:
            patience_s: seconds to wait for a reading; then an earlier view is returned, or None without one.
            max_age_s: return a view of this age, too, and do not go on reading for the next half minute.
        """
        now = time.monotonic()
        outdated = now - self._tried_at > (LISTING_S if max_age_s is None else max_age_s)
        if max_age_s is None:
            self._asked_at = now
        elif self.view is not None and not outdated:
            return self.view
        else:
            self._asked_at = max(self._asked_at, now - _IDLE_S + _ONCE_S)
        if outdated or self.view is None:
            self._first.clear()
        self._start()
        if not self._first.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._first.wait(), patience_s)
        return self.view

    def listen(self) -> asyncio.Event:
        """Return an event that is set at each change, until `forget`."""
        event = asyncio.Event()
        self._listeners.add(event)
        self._start()
        return event

    def forget(self, event: asyncio.Event) -> None:
        """Stop setting the event."""
        self._listeners.discard(event)

    @property
    def listeners(self) -> int:
        """Return how many clients listen."""
        return len(self._listeners)

    async def read(self, function: Callable[[], T]) -> T:
        """Return what the function returns in the poller's thread, which alone reads the store."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def reread(self, *indices: int) -> None:
        """Read these records and the switch now, after an action."""
        await self._try(lambda: self.reader.reread(indices))

    async def close(self) -> None:
        """End the poller."""
        if self._task is not None:
            self._task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._poll(), name=f"poll {self.name}")

    async def _poll(self) -> None:
        while self._listeners or time.monotonic() - self._asked_at < _IDLE_S:
            listing = time.monotonic() - self._listed_at >= LISTING_S
            if listing:
                self._listed_at = time.monotonic()
            reading = functools.partial(self.reader.refresh, listing=listing)
            await self._try(reading, listing=listing)
            if self.error and not listing:
                await asyncio.sleep(LISTING_S - self._tick_s)
            await asyncio.sleep(self._tick_s)

    async def _try(self, reading: Callable[[], View], *, listing: bool = False) -> None:
        before = self.mark
        try:
            self.view = await self.read(reading)
            # A reading of single records finds nothing wrong with a folder that lists none: an error of the
            # listing stands until the next listing.
            if listing or not self._unlisted:
                self.read_at, self.error, self._unlisted = time.time(), "", False
        except SweepError as error:
            self._fail(str(error), listing=listing)
        except Exception as error:  # a page that shows the last state is worth more than none
            log.exception("%s: cannot be read", self.name)
            self._fail(f"{type(error).__name__}: {error}", listing=listing)
        self._tried_at = time.monotonic()
        self._first.set()
        if self.mark != before:
            for event in self._listeners:
                event.set()

    def _fail(self, error: str, *, listing: bool) -> None:
        self.error = redact(" ".join(error.split()))
        self._unlisted |= listing
