"""Proxies in front of an S3 server, each on a port of its own: what goes through them can be made to fail.

A signature covers the header `Host`, so that is passed on as the client sent it.
"""

from __future__ import annotations

import asyncio
import io
import re
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

import aiohttp
from aiohttp import web
from fake_gcs.faults import Fault, Faults
from yarl import URL

T = TypeVar("T")
_OWN = ("Connection", "Keep-Alive", "Transfer-Encoding", "Content-Length", "Content-Encoding")
INJECTED = b"<Error><Code>Injected</Code></Error>"


class Entry(NamedTuple):
    """One request: `operation` is put, get, head, list, delete or post; status 0 if it had no answer."""

    door: str
    operation: str
    name: str
    status: int


class Doors:
    """Doors to the server at `url`, as a context manager. A door's name is that of its client.

    Attributes:
        ignores: headers that have no effect: a write with one succeeds. (It cannot be dropped, as it is signed.)
        refuses_versions: a PUT whose `If-Match` this matches is answered by 412, whatever is stored.
        names_no_parts_etag: the end of an upload in parts is answered without an ETag, as by Ceph 16.
        body: of answers of the fault `status`.
        adds: headers that each answer to a HEAD has beside its own.
    """

    def __init__(self, url: str, seed: int = 0) -> None:
        self._server = url
        self.faults = Faults(seed)
        self.entries: list[Entry] = []
        self.ignores: tuple[str, ...] = ()
        self.refuses_versions: re.Pattern[str] | None = None
        self.names_no_parts_etag = False
        self.body = INJECTED
        self.adds: dict[str, str] = {}
        self._doors: dict[str, int] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="s3-doors", daemon=True)

    def __enter__(self) -> Doors:
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def door(self, name: str) -> str:
        """Return the base URL of one client's own port, opened at its first use."""
        if name not in self._doors:
            self._doors[name] = self._run(self._listen())
        return f"http://127.0.0.1:{self._doors[name]}"

    @property
    def url(self) -> str:
        return self.door("front")

    def add(self, fault: Fault) -> int:
        return self.faults.add(fault)

    def remove(self, number: int) -> None:
        self.faults.remove(number)

    def reset(self) -> None:
        self.faults.clear()
        self.entries.clear()
        self.ignores, self.body, self.adds = (), INJECTED, {}
        self.refuses_versions, self.names_no_parts_etag = None, False

    def statuses(self, operation: str) -> list[int]:
        return [entry.status for entry in self.entries if entry.operation == operation]

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _start(self) -> None:
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        self._session = aiohttp.ClientSession(auto_decompress=False)

    async def _end(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _listen(self) -> int:
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return int(site._server.sockets[0].getsockname()[1])  # type: ignore[union-attr] # no public way to the port

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        path, _, query = request.raw_path.partition("?")
        operation = "list" if "list-type=2" in query else request.method.lower()
        name = (
            request.query.get("prefix", "") if operation == "list" else unquote(path).partition("bucket/")[2]
        )
        port = request.transport.get_extra_info("sockname")[1] if request.transport else 0
        door = next(name for name, number in self._doors.items() if number == port)
        fault = self.faults.draw(operation, name, door)
        if fault is not None and fault.action == "hang":
            self.entries.append(Entry(door, operation, name, 0))
            await asyncio.Event().wait()
        if fault is not None and fault.action == "delay":
            await asyncio.sleep(fault.delay_s)
        if fault is not None and fault.action == "status":
            answer = web.Response(status=fault.status, body=self.body)
        elif self.refuses_versions and self.refuses_versions.match(request.headers.get("If-Match", "")):
            answer = web.Response(status=412, body=b"<Error><Code>PreconditionFailed</Code></Error>")
        elif any(name in request.headers for name in self.ignores):
            answer = web.Response(headers={"ETag": '"d41d8cd98f00b204e9800998ecf8427e"'})
        elif fault is not None and fault.action == "lose_request":
            answer = None
        else:
            answer = await self._pass_on(request, body)
            if fault is not None and fault.action == "lose_response":
                answer = None
        self.entries.append(Entry(door, operation, name, 0 if answer is None else answer.status))
        if answer is None:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)
        return answer

    async def _pass_on(self, request: web.Request, body: bytes) -> web.Response:
        headers = [(name, value) for name, value in request.headers.items() if name not in _OWN]
        async with self._session.request(
            request.method,
            URL(self._server + request.raw_path, encoded=True),
            headers=headers,
            data=io.BytesIO(body),
            skip_auto_headers=("Content-Type", "User-Agent", "Accept", "Accept-Encoding"),
            allow_redirects=False,
        ) as found:
            content = await found.read()
            if self.names_no_parts_etag and request.method == "POST":
                content = re.sub(rb"<ETag>.*?</ETag>", b"<ETag></ETag>", content)
            kept = [(name, value) for name, value in found.headers.items() if name not in _OWN]
            if request.method == "HEAD":
                kept.append(("Content-Length", found.headers.get("Content-Length", "0")))
                kept += self.adds.items()
            return web.Response(
                status=found.status, headers=kept, body=None if request.method == "HEAD" else content
            )  # type: ignore[arg-type] # pairs are fine
