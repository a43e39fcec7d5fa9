"""Answers with pages: each page is rendered once per state, in a thread, however many clients ask for it."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

_REMEMBERED = 32
_SMALL = 1024


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A page as bytes, and packed."""

    plain: bytes
    packed: bytes
    kind: str

    @classmethod
    def pack(cls, data: bytes, kind: str = "text/html") -> Rendered:
        """Return a page of these bytes, compressed once for all clients."""
        packed = gzip.compress(data, 3, mtime=0) if len(data) > _SMALL else b""
        return cls(plain=data, packed=packed, kind=kind)

    def answer(self, request: web.Request, *, status: int = 200) -> web.Response:
        """Return the response to a request; 304 if the browser has this page already."""
        tag = f'"{hashlib.sha256(self.plain).hexdigest()[:32]}"'
        headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Accept-Encoding, Cookie"}
        if status == 200 and request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        body = self.plain
        if self.packed and "gzip" in request.headers.get("Accept-Encoding", ""):
            body, headers["Content-Encoding"] = self.packed, "gzip"
        return web.Response(
            body=body, status=status, headers=headers, content_type=self.kind, charset="utf-8"
        )


class PageCache:
    """Pages that were rendered last; who asks for one that is being rendered waits for it."""

    def __init__(self) -> None:
        self._pages: OrderedDict[tuple[object, ...], asyncio.Future[Rendered]] = OrderedDict()

    async def get(self, key: tuple[object, ...], make: Callable[[], Awaitable[Rendered]]) -> Rendered:
        """Return the page of the key, from `make` if it is not known."""
        found = self._pages.get(key)
        if found is None:
            found = asyncio.ensure_future(make())

            def forget_failed(ended: asyncio.Future[Rendered]) -> None:
                failed = ended.cancelled() or ended.exception() is not None
                if failed and self._pages.get(key) is ended:
                    del self._pages[key]

            found.add_done_callback(forget_failed)
            self._pages[key] = found
            while len(self._pages) > _REMEMBERED:
                self._pages.popitem(last=False)
        return await asyncio.shield(found)  # a client that leaves does not stop it for the others
