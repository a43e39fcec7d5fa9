"""Pages of a trial, of its files, and of trials compared."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiohttp import web

from analysis.labels import cell
from sweeps.dashboard.charts import Line, chart
from sweeps.dashboard.curves import AXES, Axis, Curves
from sweeps.dashboard.pages import SweepPages
from sweeps.dashboard.poller import Poller
from sweeps.dashboard.reader import View
from sweeps.dashboard.rendering import Rendered, render
from sweeps.dashboard.site import Site
from sweeps.dashboard.trial_table import select_trials
from sweeps.errors import InputError, SweepError
from sweeps.export import table
from sweeps.programs.base import LOG_FILE
from sweeps.programs.kinds import program_of
from sweeps.stages import sharing
from sweeps.trials.record import Trial
from sweeps.trials.redaction import redact

LOG_LINES = 60
COMPARED = 16
"""Trials that can be compared at once: more lines cannot be told apart."""
_SHOWN_FILE = 256 * 1024
_TITLES: Mapping[str, str] = {
    "seconds": "training seconds",
    "tokens": "tokens",
    "dollars": "US dollars",
    "steps": "steps",
}
_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("loss", ("loss", "held_out_loss")),
    ("lambda", ("lambda",)),
    ("learning rate", ("lr",)),
    ("gradient norms", ("grad_norm", "grad_norm_matrices", "grad_norm_ends", "grad_norm_gains")),
    ("tokens per second", ("tokens_per_second",)),
    ("memory (MiB)", ("memory_mib", "peak_memory_mib", "reserved_memory_mib")),
)
_LINEAR = frozenset(("lambda", "learning rate", "lr"))
"""Schedules, which end in 0: a logarithmic axis would show little else."""
_USUAL = ("loss", "held_out_loss", "lambda", "lr", "grad_norm", "tokens_per_second", "memory_mib")


class TrialPages:
    """Handlers of the pages about trials; `sweeps` has what the pages of a sweep share with them."""

    def __init__(self, site: Site, sweeps: SweepPages) -> None:
        self._site, self._sweeps = site, sweeps

    async def show_trial(self, request: web.Request) -> web.Response:
        """Answer with the page of one trial."""
        return await self._answer(
            request, self._trial_values, "trial.html.j2", lambda view: [_trial_of_path(view, request)]
        )

    async def compare(self, request: web.Request) -> web.Response:
        """Answer with trials compared: curves, and what differs."""
        given = request.query.getall("t", [])
        return await self._answer(
            request,
            self._compared_values,
            "compare.html.j2",
            lambda view: select_trials(view, given, most=COMPARED),
        )

    async def _answer(
        self,
        request: web.Request,
        values_of: Callable[[Poller, View, web.Request, list[Trial]], dict[str, Any]],
        template: str,
        shown: Callable[[View], list[Trial]],
    ) -> web.Response:
        """Answer with a page about trials; their files are read in the poller's thread."""
        poller = await self._site.poller(request)
        view = await poller.current()
        if view is None:
            return self._sweeps.waiting(request, poller)
        records = shown(view)
        running = any(record.status == "running" for record in records)
        every = (10 if poller.reader.store.is_remote else 2) if running else 0
        key = (request.path_qs, poller.mark, int(time.time() / max(1, every)) if running else 0)

        async def make() -> Rendered:
            def work() -> dict[str, Any]:
                return values_of(poller, view, request, records)

            found = self._site.common(poller) | {"view": view, "every": every} | await poller.read(work)
            return await asyncio.to_thread(lambda: Rendered.pack(render(template, found)))

        return (await self._site.pages.get(key, make)).answer(request)

    async def send_file(self, request: web.Request) -> web.Response:
        """Answer with the end of a text file of an attempt, named exactly as the store lists it."""
        poller = await self._site.poller(request)
        view = await poller.current()
        if view is None:
            raise web.HTTPServiceUnavailable(text="not read yet", headers={"Retry-After": "2"})
        record = _trial_of_path(view, request)
        text, name = request.query.get("attempt", ""), request.query.get("name", "")
        attempt = int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else 0
        if not 1 <= attempt <= record.attempt:
            raise web.HTTPNotFound(text="there is no such attempt")
        files, _ = self._site.files(poller)
        found = await poller.read(
            lambda: files.content(record, name, attempt=attempt, start=-_SHOWN_FILE, most=_SHOWN_FILE)
        )
        if found is None:
            raise web.HTTPNotFound(text="that attempt has no such file")
        shown = await asyncio.to_thread(redact, found.data.decode("utf-8", "replace"))
        return web.Response(text=shown, content_type="text/plain", headers={"Cache-Control": "no-store"})

    def _trial_values(
        self, poller: Poller, view: View, request: web.Request, records: list[Trial]
    ) -> dict[str, Any]:
        (record,) = records
        files, cache = self._site.files(poller)
        try:
            curves, names = cache.curves(record), files.names(record)
        except SweepError:  # the banner says so
            curves, names = None, []
        axis = _axis(request.query.get("axis", ""))
        price = self._price(record)
        found = {} if curves is None else {record.trial: curves}
        grouped = {name for _, names in _GROUPS for name in names}
        others = [name for name in (curves.series if curves else ()) if name not in grouped]
        cards, starts = [], [] if curves is None else curves.starts(axis, price)
        for title, series in (*_GROUPS, *((name, (name,)) for name in others)):
            lines = [_line(name, name, curves, axis, price) for name in series]
            if (card := _card(title, [line for line in lines if line.points], axis, starts)) is not None:
                cards.append(card)
        first = len([card for card in cards if card["title"] in {title for title, _ in _GROUPS}]) or 6
        best = table.best(view.space, view.records)
        return {
            "record": record,
            "best": None if best is None else best.trial,
            "seconds": table.seconds(record),
            "shared": sharing.trial_line(record),
            "warnings": [] if curves is None else curves.warnings,
            "axes": AXES,
            "axis": axis,
            "axis_note": _axis_note(found, axis, {record.trial: price}),
            "charts": cards[:first],
            "more": cards[first:],
            "stages": [] if curves is None else [stage for stage in curves.stages if stage.name],
            "remote": poller.reader.store.is_remote,
            "log": files.tail(record, LOG_FILE, LOG_LINES),
            "files": names,
            "command": program_of(view.space).command_line(record, run_dir=f"runs/trial-{record.trial}"),
        }

    def _compared_values(
        self, poller: Poller, view: View, request: web.Request, records: list[Trial]
    ) -> dict[str, Any]:
        _, cache = self._site.files(poller)
        try:
            found = cache.by_trial(records)
        except SweepError:
            found = {}
        axis = _axis(request.query.get("axis", ""))
        names = list(dict.fromkeys(name for curves in found.values() for name in curves.series))
        chosen = [name for name in request.query.getall("m", []) if name in names][:12]
        prices = {record.trial: self._price(record) for record in records}
        cards = []
        for name in chosen or [name for name in _USUAL if name in names] or names[:6]:
            lines = [
                _line(f"trial {record.trial}", name, found.get(record.trial), axis, prices[record.trial])
                for record in records
            ]
            if (card := _card(name, lines, axis)) is not None:
                cards.append(card)
        differing, same = [], []
        for name in dict.fromkeys(name for record in records for name in record.parameters):
            values = [table.flat_parameter(record, name) for record in records]
            # In full where `cell` would round: parameters that differ must not look equal.
            cells = [
                repr(v) if isinstance(v, int | float) and not isinstance(v, bool) else cell(v) for v in values
            ]
            if len(set(cells)) > 1:
                differing.append((name, cells))
            else:
                same.append((name, cells[0]))
        metrics = dict.fromkeys([*view.space.metrics(), *(name for r in records for name in r.metrics)])
        return {
            "records": records,
            "labels": [f"trial {record.trial}: {record.status.replace('_', ' ')}" for record in records],
            "axes": AXES,
            "axis": axis,
            "axis_note": _axis_note(found, axis, prices),
            "names": names,
            "chosen": chosen,
            "charts": cards,
            "differing": differing,
            "same": same,
            "results": [(name, [cell(r.metrics.get(name)) for r in records]) for name in list(metrics)[:40]],
        }

    def _price(self, record: Trial) -> float | None:
        """Return the dollars of a second of a trial's training, on all its hosts; None if not known."""
        if self._site.rate is not None:
            return record.nodes * self._site.rate.usd_per_hour / 3600
        usd, seconds = record.metrics.get("usd"), record.metrics.get("train_seconds")
        if usd is None:
            known = [(stage.usd, stage.seconds) for stage in record.stages if stage.usd and stage.seconds]
            usd, seconds = known[0] if known else (None, None)
        return usd / seconds if usd and seconds else None


def _trial_of_path(view: View, request: web.Request) -> Trial:
    """Return the trial that the address names; a page without one is not there (404)."""
    try:
        (record,) = select_trials(view, [request.match_info["index"]], most=1)
    except InputError as error:
        raise web.HTTPNotFound(text=str(error)) from None
    return record


def _axis(text: str) -> Axis:
    return next((axis for axis in AXES if axis == text), "steps")


def _line(label: str, name: str, curves: Curves | None, axis: Axis, price: float | None) -> Line:
    if curves is None:
        return Line(name=label, points=[])
    points, is_held_out = curves.points(name, axis, price), name == "held_out_loss"
    # Each stage has a loss of its own: joined, they look like a jump. On held-out text it is the same one.
    breaks = [] if is_held_out else [begins for _, begins in curves.starts(axis, price)[1:]]
    return Line(name=label, points=points, marks=is_held_out and len(points) <= 40, breaks=breaks)


def _card(
    title: str, lines: Sequence[Line], axis: Axis, stages: Sequence[tuple[str, float]] = ()
) -> dict[str, Any] | None:
    """Return a chart with its names; None if there is nothing to draw. Colours go by the place of a line."""
    if not any(line.points for line in lines):
        return None
    log_y = False if title in _LINEAR else None
    svg = chart(lines, title=title, x=_TITLES[axis], y=title, log_y=log_y, stages=stages)
    return {"title": title, "svg": svg, "names": [line.name for line in lines]}


def _axis_note(found: Mapping[int, Curves], axis: Axis, prices: Mapping[int, float | None]) -> str:
    """Return why nothing is drawn over an axis; "" if that is not because of the axis."""
    if not found or axis == "steps":
        return ""
    if axis == "dollars" and not any(prices.values()):
        return (
            "The price of a second is not known before a trial reports usd; --device NAME names a machine's."
        )
    return f"The curves do not say how many {axis} they took: metrics.jsonl has none of its fields for that."
