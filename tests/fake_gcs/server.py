"""HTTP server in a thread, with one port for each door."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Literal, TypeVar

from aiohttp import web

from fake_gcs import control, xml_api
from fake_gcs.api import Api, Call, Quirk, Reply, classify, failure
from fake_gcs.faults import Fault, Faults
from fake_gcs.journal import Entry, Journal
from fake_gcs.objects import ApiError, Objects

T = TypeVar("T")
FRONT_DOOR = "front"


class FakeGcs:
    """Running service, as a context manager. `latency_s` and the attributes of `objects` may be set any time."""

    def __init__(self, *, port: int = 0, seed: int = 0, buckets: tuple[str, ...] = ("bucket",)) -> None:
        self.objects, self.faults, self.journal = Objects(), Faults(seed), Journal()
        self.latency_s = 0.0
        for bucket in buckets:
            self.objects.make_bucket(bucket)
        self._api, self._xml_api = Api(self.objects), xml_api.XmlApi(self.objects)
        self._port = port
        self._doors: dict[str, int] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-gcs", daemon=True)

    def __enter__(self) -> FakeGcs:
        self._thread.start()
        self._run(self._start())
        self.open_door(FRONT_DOOR, self._port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        return self.door(FRONT_DOOR)

    def door(self, name: str) -> str:
        """Return the base URL of one client's own port, opened at its first use."""
        if name not in self._doors:
            self.open_door(name)
        return f"http://127.0.0.1:{self._doors[name]}"

    def open_door(self, name: str, port: int = 0) -> None:
        self._doors[name] = self._run(self._listen(port))

    def partition(self, door: str, how: Literal["hang", "lose_request"] = "lose_request") -> int:
        """Cut one door off until `faults.remove(number)`."""
        return self.faults.add(Fault(action=how, door=door, times=None))

    def reset(self) -> None:
        """Remove faults, journal, clock skew, limits and accent; objects stay."""
        self.faults.clear()
        self.journal.clear()
        self.latency_s = self.objects.clock_skew_s = 0.0
        self.objects.one_write_per_second = False
        self.speak()

    def speak(self, *accent: Quirk) -> None:
        """Imitate other implementations from now on."""
        self._api.accent = frozenset(accent)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _start(self) -> None:
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # A handler that hangs must end with its client's patience.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()

    async def _listen(self, port: int) -> int:
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        sockets = site._server.sockets  # type: ignore[union-attr] # aiohttp has no public way to the chosen port
        return int(sockets[0].getsockname()[1])

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        path = request.raw_path.partition("?")[0]
        if path.startswith("/_control/"):
            answer = await asyncio.to_thread(control.answer, self, path, request.method, body)
            return web.json_response(answer)
        host, port = request.transport.get_extra_info("sockname")[:2] if request.transport else ("", 0)
        door = next((name for name, number in self._doors.items() if number == port), FRONT_DOOR)
        call = Call(
            method=request.method,
            path=path,
            query=dict(request.query),
            headers=request.headers,
            body=body,
            base_url=f"http://{host}:{port}",
        )
        try:
            reply, fault = await self._serve(call if xml_api.classify(call) else classify(call), door)
        except ApiError as error:  # could not even be classified
            reply, fault = failure(error), None
        broken = fault is not None and fault.action in ("lose_request", "lose_response")
        status, sent = (0, 0) if broken else (reply.status, 0 if call.method == "HEAD" else len(reply.body))
        action = fault.action if fault else ""
        self.journal.write(Entry(door, call.operation, call.name, status, action, sent))
        if broken and request.transport is not None:
            request.transport.abort()
        return self._response(reply)

    async def _serve(self, call: Call, door: str) -> tuple[Reply, Fault | None]:
        fault = self.faults.draw(call.operation, call.name, door)
        await asyncio.sleep(self.latency_s + (fault.delay_s if fault else 0.0))
        match fault:
            case Fault(action="lose_request"):
                return Reply(status=500), fault
            case Fault(action="hang"):
                self.journal.write(Entry(door, call.operation, call.name, 0, "hang"))
                await asyncio.Event().wait()
            case Fault(action="status"):
                trouble = ApiError(fault.status, "injected", "This trouble was ordered.")
                return (xml_api.failure if call.is_xml else failure)(trouble), fault
        reply = self._answer(call)
        if fault is not None and fault.action == "damage" and reply.body:
            reply.body = bytes([reply.body[0] ^ 1]) + reply.body[1:]
        return reply, fault

    def _answer(self, call: Call) -> Reply:
        if not call.is_xml:
            return self._api.answer(call)
        try:
            reply = self._xml_api.answer(call)
        except ApiError as error:
            return xml_api.failure(error)
        accent = self._api.accent
        if "no_generation" in accent or ("no_generation_of_parts" in accent and call.operation == "complete"):
            reply.headers = {n: v for n, v in reply.headers.items() if n.lower() != "x-goog-generation"}
        return reply

    def _response(self, reply: Reply) -> web.Response:
        from email.utils import formatdate

        headers = reply.headers | {"Date": formatdate(self.objects.now(), usegmt=True)}
        if reply.status == 200:
            headers["Content-Length"] = str(len(reply.body))  # aiohttp leaves it out after HEAD of no bytes
        return web.Response(status=reply.status, body=reply.body, headers=headers)
