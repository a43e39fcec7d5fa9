"""Pages of the storage and of one sweep."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from aiohttp import web

from analysis.labels import number
from analysis.summaries.first_words import question
from sweeps.dashboard import parameter_page, sharing
from sweeps.dashboard import points as fronts
from sweeps.dashboard.charts import Line, chart, scatter
from sweeps.dashboard.poller import Poller
from sweeps.dashboard.reader import View
from sweeps.dashboard.rendering import Rendered, render
from sweeps.dashboard.site import STEP_S, Site, banner
from sweeps.dashboard.summary import observed_best, state_of, summary
from sweeps.dashboard.trial_table import Query, metric_column, trial_table
from sweeps.dashboard.workers import pools, workers
from sweeps.export import table
from sweeps.space.definition import cell_of
from sweeps.space.domain import Domain
from sweeps.text.columns import is_seed
from sweeps.text.shorten import timestamp
from sweeps.trials import budget
from sweeps.trials.record import STATUSES

TREE_AT_ONCE = 2000
"""With more trials the tree of prefixes has a page of its own: it takes seconds."""
_PICTURED = 1500
_SETTINGS = 8
_POOLS_S = 30.0
_LISTED_S = {False: 8.0, True: 60.0}
"""Age of what the list of sweeps shows, by whether it is in a bucket, where listings cost money."""


class SweepPages:
    """Handlers of the pages of all sweeps, and of one."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._pools: dict[str, tuple[float, list[dict[str, Any]]]] = {}
        self._asking: set[asyncio.Task[None]] = set()

    async def list_sweeps(self, request: web.Request) -> web.Response:
        """Answer with all sweeps under the storage, or lead to the only one."""
        catalog = self._site.catalog
        names = await catalog.names()
        if catalog.only:
            raise web.HTTPFound(f"/sweep/{quote(names[0], safe='')}")
        pollers = [poller for name in names if (poller := await catalog.poller(name)) is not None]
        views = await asyncio.gather(
            *(poller.current(2.0, max_age_s=_LISTED_S[poller.reader.store.is_remote]) for poller in pollers)
        )
        rows = [_row(poller, view) for poller, view in zip(pollers, views, strict=True)]
        hidden = 0 if "all" in request.query else sum(row["state"] == "in the archive" for row in rows)
        if hidden:
            rows = [row for row in rows if row["state"] != "in the archive"]
        values = self._site.common() | {"rows": rows, "hidden": hidden, "url": catalog.url}
        values |= {"latest": catalog.latest, "every": 10}
        return Rendered.pack(await asyncio.to_thread(render, "sweeps.html.j2", values)).answer(request)

    async def show_sweep(self, request: web.Request) -> web.Response:
        """Answer with the page of a sweep."""
        return await self.answer(request, self._sweep_values, "sweep.html.j2")

    async def show_prefixes(self, request: web.Request) -> web.Response:
        """Answer with the tree of prefixes."""

        def values(poller: Poller, view: View, request: web.Request) -> dict[str, Any]:
            return {
                "tree": self._site.once_per_view(poller, view, "tree", sharing.tree),
                "every": 30,
                "events": "",
            }

        return await self.answer(request, values, "prefixes.html.j2")

    async def show_parameters(self, request: web.Request) -> web.Response:
        """Answer with what the parameters do."""

        def values(poller: Poller, view: View, request: web.Request) -> dict[str, Any]:
            lines = self._site.once_per_view(poller, view, "lines", parameter_page.trial_lines)
            return parameter_page.values(view, self._site.answers.last(poller, "insight"), lines)

        page = await self.answer(request, values, "parameters.html.j2")
        poller = await self._site.poller(request)
        if poller.view is not None:
            self._site.answers.ask(poller, poller.view, "insight")
        return page

    async def answer(
        self,
        request: web.Request,
        values_of: Callable[[Poller, View, web.Request], dict[str, Any]],
        template: str,
    ) -> web.Response:
        """Answer with a page about a sweep, rendered once per state and address.

        Args:
            values_of: returns what the template needs; it runs in a thread.
        """
        poller = await self._site.poller(request)
        view = await poller.current()
        if view is None:
            return self.waiting(request, poller)
        key = (request.path_qs, poller.mark, int(time.time() / STEP_S))

        async def make() -> Rendered:
            def work() -> Rendered:
                values = self._site.common(poller) | {"view": view}
                return Rendered.pack(render(template, values | values_of(poller, view, request)))

            return await asyncio.to_thread(work)

        page = await self._site.pages.get(key, make)
        self._ask_pools(poller, view)  # not before: they would keep the first page waiting
        self._site.answers.ask(poller, view)
        return page.answer(request)

    def waiting(self, request: web.Request, poller: Poller) -> web.Response:
        """Answer with how far the first reading is; the page asks again by itself."""
        done, total = poller.reader.done, poller.reader.total
        text = f"Reading the records: {number(done)} of {number(total)}." if total else "Reading the sweep."
        if poller.error:
            text = f"It cannot be read: {poller.error}"
        values = self._site.common(poller) | {"heading": poller.name, "text": text, "sign_in": False}
        values |= {"reload": 5 if poller.error else 1, "events": ""}
        return Rendered.pack(render("message.html.j2", values)).answer(
            request, status=503 if poller.error else 200
        )

    async def send_points(self, request: web.Request) -> web.Response:
        """Answer with the points of the front as JSON, for the page's script."""
        poller = await self._site.poller(request)
        view = await poller.current()
        if view is None:
            raise web.HTTPServiceUnavailable(text="not read yet", headers={"Retry-After": "2"})

        async def make() -> Rendered:
            def work() -> Rendered:
                found = self._points(poller, view, Query.parse(request.query))
                text = json.dumps(fronts.document(found), separators=(",", ":"))
                return Rendered.pack(text.encode(), "application/json")

            return await asyncio.to_thread(work)

        return (await self._site.pages.get((request.path_qs, view.number), make)).answer(request)

    def _points(self, poller: Poller, view: View, query: Query) -> fronts.Points:
        known = self._site.once_per_view(poller, view, "columns", fronts.columns)
        x, y = fronts.default_axes(view)
        x, y = (query.x if query.x in known else x), (query.y if query.y in known else y)
        # One of a few kinds is remembered: whoever asks for all pairs of columns does not fill the memory.
        key = f"points {hash((x, y)) % 8}"
        found = self._site.once_per_view(poller, view, key, lambda view: fronts.points(view, x, y))
        return found if (found.x, found.y) == (x, y) else fronts.points(view, x, y)

    def _sweep_values(self, poller: Poller, view: View, request: web.Request) -> dict[str, Any]:
        site, query = self._site, Query.parse(request.query)
        numbers = site.once_per_view(poller, view, "summary", lambda view: summary(view, site.rate))
        found = self._points(poller, view, query)
        searched = site.once_per_view(poller, view, "search", sharing.search)
        metric = view.space.metrics()[0]
        names = [name for name in Domain(view.space).searched if not is_seed(name)]
        best = numbers["best"]
        of_best = best.record.parameters if best else {}
        shown = [name for name in names if name in of_best]  # but what another option has switched off
        tree = None
        if numbers["saved"] and len(view.records) <= TREE_AT_ONCE:
            tree = site.once_per_view(poller, view, "tree", sharing.tree)
        kept = {name: getattr(query, name) for name in ("status", "by", "q", "sort", "order")}
        return {
            "summary": numbers,
            "bar": _bar(numbers["counts"], numbers["most_trials"]),
            "query": query,
            "kept": {name: value for name, value in kept.items() if value != getattr(Query(), name)},
            "points": found,
            "points_address": Query(x=query.x, y=query.y).address().removesuffix("?"),
            "axes": site.once_per_view(poller, view, "columns", fronts.columns),
            "front_chart": _picture(found),
            "answer": site.answers.last(poller),
            "search": searched,
            "search_chart": chart(
                [Line(name=metric, points=searched.best, steps=True)],
                title=f"best {metric} so far",
                x=searched.unit,
                y=f"best {metric}",
            ),
            "workers": workers(view.records, view.space.lease, poller.now()),
            "pools": self._pools.get(poller.name, (0.0, []))[1],
            "tree": tree,
            "table": trial_table(view, query),
            "condition": f"{metric_column(metric)}<3.3",
            "statuses": STATUSES,
            "question": question([(metric_column(o.metric), o.goal) for o in view.space.objectives], names),
            "settings": {name: cell_of(of_best[name]) for name in shown[:_SETTINGS]},
        }

    def _ask_pools(self, poller: Poller, view: View) -> None:
        """Ask the engines about the pools in the background; a cluster may take long to answer."""
        when, known = self._pools.get(poller.name, (float("-inf"), []))
        if time.monotonic() - when < _POOLS_S:
            return
        self._pools[poller.name] = (time.monotonic(), known)

        async def ask() -> None:
            found = await asyncio.to_thread(pools, view.url, view.space.name)
            self._pools[poller.name] = (time.monotonic(), found)

        task = asyncio.get_running_loop().create_task(ask())
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)


def _row(poller: Poller, view: View | None) -> dict[str, str]:
    """Return the row of a sweep in the list."""
    row = dict.fromkeys(("trials", "running", "failed", "best", "changed"), "")
    row["name"] = poller.name
    if view is None:
        return row | {"state": poller.error or "reading"}
    best, metric = table.best(view.space, view.records), view.space.metrics()[0]
    counts = table.counts(view.records)
    most, trials = view.most_trials, f"{len(view.records):,}"
    if most is not None:
        trials = f"{budget.run_cap_count(view.space, view.records):,} of {most:,}"
    times = ((r.created, r.started, r.heartbeat, r.ended) for r in view.records)
    changed = max((time for each in times for time in each if time is not None), default=None)
    warning = f"; {banner(poller)}" if poller.is_stale else "; damaged records" if view.damaged else ""
    return row | {
        "state": f"{state_of(view)}{warning}",
        "trials": trials,
        "running": str(counts["running"]),
        "failed": str(counts["failed"]),
        "best": "" if best is None else f"{metric} {observed_best(view.space, best).value}",
        "changed": "" if changed is None else timestamp(changed),
    }


def _bar(counts: Mapping[str, int], most: int | None) -> list[dict[str, str]]:
    """Return the parts of the progress bar, in hundredths of its width."""
    total = max(most or 0, sum(counts.values()), 1)
    parts, at = [], 0.0
    kinds = {"completed": "completed", "running": "running", "failed": "failed"}
    for status, count in sorted(counts.items(), key=lambda pair: pair[0] != "completed"):
        if status == "pending":
            continue
        width = 100 * count / total
        parts.append({"kind": kinds.get(status, "other"), "x": f"{at:.2f}", "width": f"{width:.2f}"})
        at += width
    return parts


def _picture(found: fronts.Points) -> object:
    """Return the front as SVG: all of the front, and so many of the others that the page stays small."""
    on_front = set(found.front)
    others = [at for at in range(len(found.xs)) if at not in on_front]
    stride = -(-len(others) // _PICTURED) if others else 1
    pale = [(found.xs[at], found.ys[at]) for at in others[::stride]]
    front = [(found.xs[at], found.ys[at]) for at in found.front[:_PICTURED]]
    if not found.xs:
        return "No completed trial has both."
    title = f"{found.y} against {found.x}"
    goal, _ = found.goals
    return scatter(
        pale, front, title=title, x=found.x, y=found.y, goal=goal, log=found.log, names=found.names
    )
