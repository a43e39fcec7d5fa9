"""Connections that do not read, or are too many, are cut: a client must not hold the server's memory."""

from __future__ import annotations

import asyncio
from typing import Any

CONNECTIONS = 600
"""At most so many at once: 200 clients with two each, and a margin."""
STALLED_S = 30.0
"""A client that has taken nothing of what waits for it for so long is cut off."""
_EVERY_S = 5.0


class Watch:
    """Watch over the connections of a server.

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
