"""Server-sent events: a few bytes whenever a sweep's page would change; the browser then asks for the parts.

Only the newest state is ever sent, so a slow client has nothing queued up; one that takes nothing is cut off.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from sweeps.dashboard.site import Site

MOST = 300
"""Clients that may listen at once."""
GAP_S = 0.5
"""Seconds between two events of one client, at least."""
PING_S = 10.0
_TAKES_S = 10.0
_AGES_S = 15.0


class Events:
    """Handler of `/sweep/NAME/events`."""

    def __init__(self, site: Site, *, most: int = MOST) -> None:
        self._site, self._most = site, most

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send `changed` with the state's mark at once, then at each change, and a comment in between."""
        poller = await self._site.poller(request)
        if self._site.catalog.listeners >= self._most:
            raise web.HTTPServiceUnavailable(text="too many listen\n", headers={"Retry-After": "30"})
        response = web.StreamResponse(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        response.content_type = "text/event-stream"
        event = poller.listen()
        try:
            await response.prepare(request)
            sent = ""
            loop = asyncio.get_running_loop()
            refreshed = loop.time()
            while True:
                view, mark = poller.view, poller.mark
                # While a trial runs, the ages of heartbeats on a page grow.
                ages = view is not None and self._site.once_per_view(
                    poller, view, "running", lambda view: any(r.status == "running" for r in view.records)
                )
                if mark != sent or (ages and loop.time() - refreshed > _AGES_S):
                    text, sent, refreshed = f"event: changed\ndata: {mark}\n\n", mark, loop.time()
                else:
                    text = ": still here\n\n"
                event.clear()
                await asyncio.wait_for(response.write(text.encode()), _TAKES_S)
                await asyncio.sleep(GAP_S)
                try:
                    await asyncio.wait_for(event.wait(), PING_S)
                except TimeoutError:
                    continue
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            poller.forget(event)
        return response
