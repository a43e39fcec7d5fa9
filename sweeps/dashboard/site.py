"""State of a running dashboard that all its handlers share, and what every page has in common."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from aiohttp import web

from sweeps.dashboard.answers import Answers
from sweeps.dashboard.catalog import Catalog
from sweeps.dashboard.curves import CurveCache
from sweeps.dashboard.poller import Poller
from sweeps.dashboard.reader import View
from sweeps.dashboard.rendering import PageCache
from sweeps.dashboard.run_files import RunFiles
from sweeps.dashboard.security import Guard
from sweeps.text.shorten import timestamp

if TYPE_CHECKING:
    from analysis.summaries.costs import Rate

T = TypeVar("T")
STEP_S = 5.0
"""Ages of heartbeats on a page are as exact as that: so long a page may be shown to others."""


@dataclass(kw_only=True)
class Site:
    """A running dashboard.

    Args:
        rate: price of the trials' time; None for what they report.
        routes: of the application; a test checks that none of them writes.
        server: aiohttp's, with its connections; None before it is served.
    """

    catalog: Catalog
    guard: Guard
    rate: Rate | None = None
    control: bool = False
    pages: PageCache = field(default_factory=PageCache)
    answers: Answers = field(default_factory=Answers)
    routes: tuple[web.AbstractRoute, ...] = ()
    server: Any = None
    _cached: dict[tuple[str, str], tuple[int, Any]] = field(default_factory=dict)
    _files: dict[str, tuple[RunFiles, CurveCache]] = field(default_factory=dict)

    async def poller(self, request: web.Request) -> Poller:
        """Return the poller of the sweep in the address. Raises HTTPNotFound."""
        found = await self.catalog.poller(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound(text="there is no sweep of that name here")
        return found

    def once_per_view(self, poller: Poller, view: View, what: str, make: Callable[[View], T]) -> T:
        """Return what follows from a view, worked out once per view."""
        key = (poller.name, what)
        number, value = self._cached.get(key, (-1, None))
        if number != view.number:
            value = make(view)
            self._cached[key] = (view.number, value)
        return value  # type: ignore[no-any-return]

    def files(self, poller: Poller) -> tuple[RunFiles, CurveCache]:
        """Return the files and curves of a sweep, which the poller's thread alone uses."""
        if poller.name not in self._files:
            files = RunFiles(poller.reader.store)
            self._files[poller.name] = files, CurveCache(files)
        return self._files[poller.name]

    def common(self, poller: Poller | None = None) -> dict[str, object]:
        """Return what every page needs."""
        values: dict[str, object] = {
            "only": self.catalog.only,
            "control": self.control,
            "reload": 0,
            "events": "",
            "mark": "",
            "every": 0,
            "banner": self.catalog.error,
            "as_of": timestamp(time.time()),
        }
        if poller is not None:
            here = f"/sweep/{quote(poller.name, safe='')}"
            values |= {"name": poller.name, "here": here, "banner": banner(poller), "now": poller.now()}
            values |= {"events": f"{here}/events", "mark": poller.mark}
            values["as_of"] = timestamp(poller.read_at) if poller.read_at else ""
        return values


def banner(poller: Poller) -> str:
    """Return the warning of a sweep that cannot be read now, or only in parts; "" without one."""
    if poller.is_stale and poller.read_at:
        when = time.strftime("%H:%M", time.gmtime(poller.read_at))
        why = f": {poller.error}" if poller.error else ""
        return f"Not read since {when} UTC{why}. This is the last state."
    if poller.is_stale:
        return f"Not read yet: {poller.error}"
    damaged = poller.view.damaged if poller.view is not None else ()
    if damaged:
        more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
        return f"Left out here: {damaged[0]}{more}. `sweep doctor` says more."
    return ""
