"""The application: routes, headers, limits, and its life."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from analysis.report import page_scripts
from sweeps.dashboard.pages import SweepPages
from sweeps.dashboard.rendering import PageCache, Rendered, render
from sweeps.dashboard.security import HEADERS, TOKEN
from sweeps.dashboard.site import Site
from sweeps.dashboard.trial_pages import TrialPages
from sweeps.errors import InputError, SweepError
from sweeps.trials import storable

log = logging.getLogger(__name__)
_CLIENTS_FAULTS = (HttpProcessingError, web.RequestPayloadError, ConnectionError, TimeoutError)

STATIC = {
    "dashboard.css": "text/css",
    "dashboard.js": "text/javascript",
    "figures.css": "text/css",
    "figures.js": "text/javascript",
}
_FOLDER = Path(__file__).parent / "static"
_LARGEST_FORM = 64 * 1024
_KEEPALIVE_S = 20.0


def application(site: Site) -> web.Application:
    """Return the application; without `site.control` it has no route that takes anything but GET."""
    app = web.Application(
        middlewares=[_access_middleware(site), _error_middleware(site)], client_max_size=_LARGEST_FORM
    )
    sweeps = SweepPages(site)
    trials = TrialPages(site, sweeps)
    app.router.add_get("/", sweeps.list_sweeps)
    app.router.add_get("/sweep/{name}", sweeps.show_sweep)
    app.router.add_get("/sweep/{name}/prefixes", sweeps.show_prefixes)
    app.router.add_get("/sweep/{name}/parameters", sweeps.show_parameters)
    app.router.add_get("/sweep/{name}/points.json", sweeps.send_points)
    app.router.add_get("/sweep/{name}/events", Events(site).stream, allow_head=False)
    app.router.add_get("/sweep/{name}/compare", trials.compare)
    app.router.add_get(r"/sweep/{name}/trial/{index:\d+}", trials.show_trial)
    app.router.add_get(r"/sweep/{name}/trial/{index:\d+}/file", trials.send_file)
    app.router.add_get("/static/{file}", _Static().send)
    if site.control:
        from sweeps.dashboard.actions import Actions

        actions = Actions(site)
        app.router.add_get("/sweep/{name}/do/{action}", actions.ask)
        app.router.add_post("/sweep/{name}/do/{action}", actions.act)
    site.routes = tuple(app.router.routes())
    app.on_response_prepare.append(_add_headers)

    async def close(app: web.Application) -> None:
        await site.answers.close()
        await site.catalog.close()

    app.on_cleanup.append(close)
    return app


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
    response.headers.pop("Server", None)


def _access_middleware(site: Site) -> Middleware:
    """Return the middleware that refuses strangers and asks for the token."""

    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        guard = site.guard
        guard.refuse_strangers(request)
        if request.method == "GET" and guard.has_token(request):
            path = request.rel_url.raw_path
            left = [(name, value) for name, value in request.query.items() if name != TOKEN]
            answer = web.HTTPSeeOther(f"{path}?{urlencode(left)}" if left else path)
            answer.set_cookie(guard.cookie_name, guard.cookie, httponly=True, samesite="Strict", path="/")
            answer.headers["Cache-Control"] = "no-store"
            raise answer
        if not guard.is_known(request):
            text = "Open the address that the server printed when it started: it has the token."
            return _message(site, request, 401, "A token is needed", text, sign_in=True)
        return await handler(request)

    return checked


def _error_middleware(site: Site) -> Middleware:
    """Return the middleware that answers errors with a page."""

    @web.middleware
    async def explained(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
            heading = "Not here" if error.status == 404 else "Not allowed"
            return _message(site, request, error.status, heading, error.text or "")
        except InputError as error:
            return _message(site, request, 400, "That cannot be shown", str(error))
        except SweepError as error:
            return _message(site, request, 503, "The store does not answer", str(error))

    return explained


def _message(
    site: Site, request: web.Request, status: int, heading: str, text: str, *, sign_in: bool = False
) -> web.Response:
    values = site.common() | {"heading": heading, "text": text, "sign_in": sign_in}
    if sign_in:
        values["banner"] = ""  # what does not work here is nothing for strangers
    return Rendered.pack(render("message.html.j2", values)).answer(request, status=status)


class _Static:
    """Handler of the files of all pages; that of the report's figures is made when it is first asked for."""

    def __init__(self) -> None:
        self._made = PageCache()

    async def send(self, request: web.Request) -> web.Response:
        name = request.match_info["file"]
        if name not in STATIC:
            raise web.HTTPNotFound(text="there is no such file")

        async def make() -> Rendered:
            if name == "figures.js":
                data = await _figures_script()
            elif name == "figures.css":
                data = page_scripts.STYLE.encode()
            else:
                data = await asyncio.to_thread((_FOLDER / name).read_bytes)
            return Rendered.pack(data, STATIC[name])

        return (await self._made.get((name,), make)).answer(request)


async def _figures_script() -> bytes:
    """Return Vega and what draws the figures of a page, from a process of its own: it takes 100 MB.

    Raises OSError.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", page_scripts.__name__),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is the server's
    )
    script, _ = await process.communicate()
    if process.returncode:
        raise OSError(f"the process that writes figures.js ended with status {process.returncode}")
    return script


class _ServerLog(logging.LoggerAdapter[logging.Logger]):
    """Log of aiohttp's server in which a client's fault is one line: it would write a traceback for each."""

    def exception(self, msg: object, *args: object, exc_info: Any = True, **options: Any) -> None:
        if isinstance(exc_info, _CLIENTS_FAULTS):
            line = storable.line(f"{type(exc_info).__name__}: {exc_info}")
            self.info(f"{msg}: %s", *args, line)
        else:
            super().exception(msg, *args, exc_info=exc_info, **options)


@asynccontextmanager
async def serve(site: Site, host: str, port: int) -> AsyncIterator[int]:
    """Serve while the context is open; yields the port, which is a free one for 0.

    Raises:
        InputError: the address cannot be listened on.
    """
    runner = web.AppRunner(
        application(site),
        access_log=None,
        logger=_ServerLog(log),
        handler_cancellation=True,
        keepalive_timeout=_KEEPALIVE_S,
        shutdown_timeout=1.0,
    )
    await runner.setup()
    site.server = runner.server
    watch = Watch(runner.server)
    try:
        listener = web.TCPSite(runner, host, port, backlog=256)
        try:
            await listener.start()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise InputError(
                f"--host {host} --port {port}: {reason}; choose another port, or 0 for any"
            ) from None
        watch.start()
        yield runner.addresses[0][1]
    finally:
        watch.stop()
        await runner.cleanup()


CONNECTIONS = 600
"""At most so many at once: 200 clients with two each, and a margin."""
STALLED_S = 30.0
"""A client that has taken nothing of what waits for it for so long is cut off."""
_EVERY_S = 5.0


class Watch:
    """Watch over the connections of a server: a client that does not read, or is one too many, is cut off.

    It must not hold the server's memory.

    Args:
        server: aiohttp's, whose `connections` are handlers with a `transport`.
    """

    def __init__(self, server: Any, *, stalled_s: float = STALLED_S, most: int = CONNECTIONS) -> None:
        self._server, self._stalled_s, self._most = server, stalled_s, most
        self._waiting: dict[int, tuple[int, float]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(min(_EVERY_S, self._stalled_s / 2))
            self.cut()

    def cut(self) -> int:
        """Abort what is stalled or too much, and return how many connections that was."""
        now = asyncio.get_running_loop().time()
        transports = [c.transport for c in self._server.connections if c.transport is not None]
        waiting: dict[int, tuple[int, float]] = {}
        stalled = []
        for transport in transports:
            size = transport.get_write_buffer_size()
            if not size:
                continue
            before, since = self._waiting.get(id(transport), (size + 1, now))
            since = since if size >= before else now  # what shrinks is being read
            waiting[id(transport)] = (size, since)
            if now - since >= self._stalled_s:
                stalled.append(transport)
        self._waiting = waiting
        cut = {id(transport): transport for transport in (*stalled, *transports[self._most :])}
        for transport in cut.values():
            transport.abort()
        return len(cut)


MOST = 300
"""Clients that may listen at once."""
GAP_S = 0.5
"""Seconds between two events of one client, at least."""
PING_S = 10.0
_TAKES_S = 10.0
_AGES_S = 15.0


class Events:
    """Handler of `/sweep/NAME/events`: a few bytes whenever a page changes; the browser asks for the parts.

    Only the newest state is sent, so a slow client has nothing queued up; one that takes nothing is cut off.
    """

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
