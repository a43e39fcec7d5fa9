"""Answers with pages: each page is rendered once per state, in a thread, however many clients ask for it.

In the templates everything that programs wrote is escaped, and nothing is a script or a style.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import hashlib
import shlex
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import jinja2
from aiohttp import web

import analysis.report
from analysis import labels
from analysis.summaries.compute import is_compute
from sweeps.text.counted import counted
from sweeps.text.shorten import timestamp

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


FOLDERS = (Path(__file__).parent / "templates", Path(analysis.report.__file__).parent / "templates")


@functools.cache
def environment() -> jinja2.Environment:
    """Return the templates' environment, with the report's formats of numbers."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDERS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["urlencode_all"] = lambda text: quote(str(text), safe="")
    made.filters["shell_quote"] = lambda text: shlex.quote(str(text))
    made.globals |= {
        "number": labels.number,
        "cell": labels.cell,
        "counted": counted,
        "title": labels.title,
        "timestamp": timestamp,
        "ago": ago,
        "hours": hours,
        "is_compute": is_compute,
    }
    return made


def render(name: str, values: dict[str, object]) -> bytes:
    """Return a page as UTF-8; half of a surrogate pair becomes a question mark."""
    return environment().get_template(name).render(values).encode("utf-8", "replace")


def ago(now: float, then: float | None) -> str:
    """Return how long ago something was: `12 s ago`, `3 h ago`."""
    if then is None:
        return labels.MISSING
    seconds = now - then
    if seconds < 0:
        return "now" if seconds > -5 else f"{-seconds:.0f} s in the future"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def hours(count: float) -> str:
    """Return a time in hours for people."""
    if count < 1:
        return f"{60 * count:.0f} minutes"
    return f"{count:.1f} hours" if count < 48 else f"{count / 24:.1f} days"
