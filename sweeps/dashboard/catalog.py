"""The sweeps under a storage, each with its poller."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sweeps.dashboard.poller import LISTING_S, TICK_S, Poller
from sweeps.dashboard.readonly import ReadOnlyStore
from sweeps.errors import StoreUnavailable, SweepError
from sweeps.operations.opening import latest_name, sweep_names
from sweeps.storage.base import Store
from sweeps.storage.urls import is_remote, join, local_path, name_of, open_bucket, open_store


def reading_store(url: str) -> Store:
    """Return a store at the URL that refuses to write and gives up after seconds, not minutes."""
    if not is_remote(url):
        return ReadOnlyStore(open_store(url))
    from sweeps.storage.retries import RetryPolicy

    return ReadOnlyStore(open_bucket(url, RetryPolicy(total_s=15.0, first_answer_s=10.0, attempt_s=10.0)))


class Catalog:
    """The sweeps that a server shows.

    Args:
        url: of the folder of sweeps, or of the only sweep.
        only: whether it is that of the only sweep.
    """

    def __init__(
        self,
        url: str,
        *,
        only: bool = False,
        open_at: Callable[[str], Store] = reading_store,
        tick_s: float = TICK_S,
    ) -> None:
        self.url, self.only = url, only
        self.error = ""
        self.latest = ""
        self._open_at, self._tick_s = open_at, tick_s
        self._names: list[str] = [name_of(url)] if only else []
        self._listed_at = float("-inf")
        self._listing = asyncio.Lock()
        self._pollers: dict[str, Poller] = {}

    def url_of(self, name: str) -> str:
        """Return the URL of a sweep."""
        return self.url if self.only else join(self.url, name)

    async def names(self, patience_s: float = 5.0) -> list[str]:
        """Return the names of the sweeps, as of the last five seconds where the storage answers in time."""
        if self.only:
            return self._names
        async with self._listing:
            if time.monotonic() - self._listed_at >= LISTING_S:
                self._listed_at = time.monotonic()
                try:
                    async with asyncio.timeout(patience_s):
                        self._names, self.latest = await asyncio.to_thread(self._list)
                    self.error = ""
                except SweepError as error:
                    self.error = str(error)
                except TimeoutError:
                    self.error = f"{self.url}: no answer within {patience_s:g} s"
        return self._names

    def _list(self) -> tuple[list[str], str]:
        names = sweep_names(self.url)
        if self._names and not names and not is_remote(self.url):
            folder = Path(local_path(self.url))
            if not folder.is_dir() or not any(folder.iterdir()):  # as a disk that is not mounted looks
                raise StoreUnavailable(f"{self.url}: the sweeps that were here are not here now")
        return names, latest_name(self.url)

    async def poller(self, name: str) -> Poller | None:
        """Return the poller of a sweep; None if the storage has no sweep of that very name."""
        if name not in self._pollers and name not in await self.names():
            return None
        if name not in self._pollers:
            self._pollers[name] = Poller(name, self._open_at(self.url_of(name)), tick_s=self._tick_s)
        return self._pollers[name]

    async def begin(self) -> None:
        """Read the sweep that is opened first: the only one, or the one initialised last."""
        names = await self.names()
        name = names[0] if len(names) == 1 else self.latest
        with suppress(SweepError):  # its page says what is wrong
            if (poller := await self.poller(name)) is not None:
                await poller.current(max_age_s=LISTING_S)

    @property
    def listeners(self) -> int:
        """Return how many clients listen to any sweep."""
        return sum(poller.listeners for poller in self._pollers.values())

    async def close(self) -> None:
        """End all pollers."""
        for poller in self._pollers.values():
            await poller.close()
