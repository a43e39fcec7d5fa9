"""A dashboard on a free port over sweeps that a test has made, and a client of it. Test modules import it."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from published import put
from yarl import URL

from sweeps.dashboard.catalog import Catalog, reading_store
from sweeps.dashboard.security import Guard, guard_for
from sweeps.dashboard.server import serve
from sweeps.dashboard.site import Site
from sweeps.experiment import Experiment
from sweeps.space.definition import Space
from sweeps.storage.base import Store
from sweeps.storage.local import LocalStore
from sweeps.trials.record import Attempt, Trial


class CountingStore:
    """A store that counts its listings of trials' records, and fails when it is asked to."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.listings: list[float] = []
        self.fault: Exception | None = None
        self.writes: list[str] = []

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._store, name)
        if name in ("create", "replace", "delete", "folder"):
            self.writes.append(name)
        if name not in ("read", "read_many", "read_part", "list"):
            return inner

        def call(*given: Any) -> Any:
            if self.fault is not None:
                raise self.fault
            if name == "list" and given[0].startswith("trials"):
                self.listings.append(asyncio.run(_now()))
            return inner(*given)

        return call


async def _now() -> float:
    return asyncio.get_running_loop().time()


class Dashboard:
    """A served dashboard and a client."""

    def __init__(self, site: Site, port: int, session: aiohttp.ClientSession) -> None:
        self.site, self.port, self.session = site, port, session
        self.url = f"http://127.0.0.1:{port}"

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with self.session.get(f"{self.url}{path}", headers=headers, allow_redirects=False) as answer:
            return answer.status, await answer.text()

    async def page(self, path: str) -> str:
        """The page at the path, once it is read."""
        for _ in range(100):
            status, text = await self.get(path)
            assert status == 200, text
            if 'http-equiv="refresh"' not in text:
                return text
            await asyncio.sleep(0.05)
        raise AssertionError("it is never read")

    async def post(self, path: str, fields: Mapping[str, Any], **headers: str) -> tuple[int, str]:
        headers = {"Origin": self.url} | headers
        async with self.session.post(
            URL(f"{self.url}{path}", encoded=True), data=fields, headers=headers, allow_redirects=False
        ) as answer:
            return answer.status, await answer.text()

    async def do(self, path: str, **fields: str) -> tuple[int, str]:
        """Open the page that asks for confirmation, and send its form as a browser does."""
        status, text = await self.get(path)
        if status != 200:
            return status, text
        hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', text)
        form = aiohttp.FormData([*hidden, *fields.items()])
        action = re.search(r'<form method="post" action="([^"]*)"', text)[1]
        return await self.post(html.unescape(action), form)


@asynccontextmanager
async def dashboard(
    url: str | Path,
    *,
    only: bool = False,
    control: bool = False,
    guard: Guard | None = None,
    open_at: Callable[[str], Store] = reading_store,
    tick_s: float = 0.2,
    host: str = "127.0.0.1",
) -> AsyncIterator[Dashboard]:
    site = Site(
        catalog=Catalog(str(url), only=only, open_at=open_at, tick_s=tick_s),
        guard=guard or guard_for("127.0.0.1", (), with_token=False),
        control=control,
    )
    async with serve(site, host, 0) as port, aiohttp.ClientSession() as session:
        yield Dashboard(site, port, session)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def record(index: int, status: str = "completed", loss: float | None = None, **fields: Any) -> Trial:
    """A trial of the toy space, as a worker leaves it."""
    ended = status in ("completed", "failed", "early_stopped", "abandoned")
    values: dict[str, Any] = {
        "parameters": {"x": index / 100, "n": 1 + index % 100, "mode": "fast"},
        "generator": "sobol",
        "attempt": 0 if status == "pending" else 1,
        "metrics": {}
        if status != "completed"
        else {"loss": 1 / (1 + index) if loss is None else loss, "usd": 0.5},
        "worker": "host-1" if status == "running" else None,
        "heartbeat": 2e9 if status == "running" else None,
        "created": 1000.0 + index,
        "started": None if status == "pending" else 1000.0 + index,
        "ended": 1010.0 + index if ended else None,
        "error": "it broke at 12\nand again" if status == "failed" else None,
        "failure": "crashed" if status == "failed" else None,
    }
    if ended:
        attempt = Attempt(attempt=1, worker="host-1", start=1000.0 + index, end=1010.0 + index, reason=status)
        values["history"] = (attempt,)
    return Trial(trial=index, status=status, **(values | fields))


def make_sweep(folder: Path, space: Space, *records: Trial) -> LocalStore:
    """A sweep of the space's name in the folder, with these trials."""
    store = LocalStore(folder / space.name)
    Experiment.create(store, space)
    for one in records:
        put(store, one)
    return store


def run_file(store: LocalStore, index: int, name: str, content: str | list[Any], attempt: int = 1) -> Path:
    """A file of an attempt; a list is written as lines of JSON."""
    path = store.folder(f"runs/{index:06d}/attempt-{attempt}") / name
    text = content if isinstance(content, str) else "".join(json.dumps(line) + "\n" for line in content)
    path.write_text(text, encoding="utf-8")
    return path
