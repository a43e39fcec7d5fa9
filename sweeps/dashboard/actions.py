"""Pages that do something, with --control only: each asks first, and calls what the command line calls.

A confirmation is planned, and a pool scaled, by the command itself in a process of its own: the surrogate's
libraries and an engine's would stay in this server for good.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from aiohttp import web

from sweeps.dashboard.poller import Poller
from sweeps.dashboard.reader import View
from sweeps.dashboard.rendering import Rendered, render
from sweeps.dashboard.security import CSRF
from sweeps.dashboard.site import Site
from sweeps.dashboard.trial_table import select_trials
from sweeps.errors import InputError
from sweeps.experiment import Experiment
from sweeps.operations.control import USER, ByPeople, apply_to_all, require_allowed, set_state, user_name
from sweeps.storage.urls import open_store
from sweeps.text.counted import counted
from sweeps.trials import control, lifecycle, storable
from sweeps.trials.actions import about_trials
from sweeps.trials.record import Trial
from sweeps.trials.redaction import redact

log = logging.getLogger(__name__)

SWITCHES: Mapping[str, tuple[control.State, str]] = {
    "pause": ("paused", "Workers finish the trial they have, and wait until the sweep is resumed."),
    "resume": ("running", "Trials are handed out again."),
    "stop": ("stopped", "Workers finish the trial they have, and leave."),
}
EFFECTS: Mapping[str, str] = {
    "retry": "These trials go back for another try.",
    "abandon": "Workers stop these trials, and their parameters are not proposed again.",
    "confirm": "The best trials run again with fresh seeds, by the sweep's workers: `sweep confirm --plan`.",
    "scale": "The pool gets another number of workers; surplus ones hand their trials back.",
}
_EVENTS: Mapping[str, ByPeople] = {"retry": lifecycle.Retry, "abandon": lifecycle.Abandon}
MOST = 1000
"""Trials that one form may change."""
_COMMAND_S = 300.0
_FORM_S = 10.0
_OTHER_FIELDS = 16
_LONGEST = 200


class Asked(NamedTuple):
    """An action with what it is about."""

    name: str
    trials: tuple[Trial, ...] = ()
    runner: str = ""
    workers: int = 0

    @property
    def words(self) -> str:
        """Return the action in words, such as `retry trials 3, 5`."""
        if self.name == "scale":
            return f"scale the pool of {self.runner} to {counted(self.workers, 'worker')}"
        if not self.trials:
            return self.name
        return about_trials(self.name, [record.trial for record in self.trials])


class Actions:
    """Handlers of `/sweep/NAME/do/ACTION`: GET asks, POST acts."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def ask(self, request: web.Request) -> web.Response:
        """Answer with the page that asks for confirmation."""
        poller, view = await self._current(request)
        asked = _asked(request.match_info["action"], request.query, request.query.getall("t", []), view)
        if asked.name in _EVENTS:
            require_allowed(asked.trials, _EVENTS[asked.name](by="somebody"), poller.now())
        fields = [("t", str(record.trial)) for record in asked.trials]
        if asked.name == "scale":
            fields += [("runner", asked.runner), ("workers", str(asked.workers))]
        switch = SWITCHES.get(asked.name)
        lines = [f"trial {r.trial}: {r.status.replace('_', ' ')}" for r in asked.trials[:20]]
        if asked.name == "scale":
            lines = [await self._scale(poller, asked, "--dry-run", by=user_name())]
        heading = asked.words[:1].upper() + asked.words[1:]
        values: dict[str, Any] = self._site.common(poller) | {
            "action": asked.name,
            "heading": f"{heading}?",
            "effect": switch[1] if switch else EFFECTS[asked.name],
            "lines": lines,
            "path": request.rel_url.raw_path,
            "csrf": self._site.guard.csrf(request.path),
            "fields": fields,
            "asks_reason": asked.name == "abandon",
            "asks_yes": asked.name == "scale",
            "button": asked.words.partition(" ")[0],
            "events": "",
        }
        answer = Rendered.pack(render("action.html.j2", values)).answer(request)
        answer.headers["Cache-Control"] = "no-store"
        return answer

    async def act(self, request: web.Request) -> web.Response:
        """Do it, note by whom, and lead back to the sweep's page."""
        form = await _form(request)
        texts = dict(form)
        self._site.guard.require_own_form(request, texts.get(CSRF, ""))
        poller, view = await self._current(request)
        given = [value for field, value in form if field == "t"]
        asked = _asked(request.match_info["action"], texts, given, view)
        # Noted by whom: the name given and this server's user, and from where.
        name = storable.line(texts.get("who", ""))[:60].strip()
        who = f"{name} ({user_name()})" if name else user_name()
        by = redact(f"{who} by the dashboard from {request.remote or 'somewhere'}")
        url = self._site.catalog.url_of(poller.name)
        if asked.name in SWITCHES:
            state = SWITCHES[asked.name][0]
            await asyncio.to_thread(lambda: set_state(open_store(url), state, by))
            result = f"the sweep is {state}"
        elif asked.name == "confirm":
            result = await _command("confirm", "--plan", "--storage", url, by=by)
        elif asked.name == "scale":
            options = ["--yes"] if texts.get("yes") == "1" else []
            result = await self._scale(poller, asked, *options, by=by)
        else:
            reason = storable.line(texts.get("reason", ""))[:_LONGEST].strip()
            indices, kind = [record.trial for record in asked.trials], _EVENTS[asked.name]
            changed = await asyncio.to_thread(
                lambda: apply_to_all(Experiment.open(open_store(url)), indices, kind, by, reason)
            )
            result = f"now {changed[-1].status.replace('_', ' ')}"
        log.warning("%s: %s by %s: %s", poller.name, asked.words, by, result)
        await poller.reread(*(record.trial for record in asked.trials))
        raise web.HTTPSeeOther(str(self._site.common(poller)["here"]))

    async def _current(self, request: web.Request) -> tuple[Poller, View]:
        poller = await self._site.poller(request)
        view = await poller.current(5.0)
        if view is None:
            raise InputError("the sweep is not read yet; try again")
        return poller, view

    async def _scale(self, poller: Poller, asked: Asked, *options: str, by: str) -> str:
        url = self._site.catalog.url_of(poller.name)
        words = ("pool", "scale", str(asked.workers), asked.runner, *options, "--storage", url)
        return await _command(*words, by=by)


async def _form(request: web.Request) -> list[tuple[str, str]]:
    """Return the fields of a form as a page of ours sends it. Raises an HTTP error for another body."""
    kind, charset = request.content_type, (request.charset or "utf-8").lower()
    if kind != "application/x-www-form-urlencoded" or charset not in ("utf-8", "utf8"):
        raise web.HTTPUnsupportedMediaType(text="a form is taken as browsers send it, in UTF-8\n")
    try:
        body = await asyncio.wait_for(request.read(), _FORM_S)
        return parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST + _OTHER_FIELDS)
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the form did not arrive within {_FORM_S:g} s\n") from None
    except (ValueError, web.RequestPayloadError):
        raise web.HTTPBadRequest(text="this form cannot be read: not UTF-8, or too many fields\n") from None


def _asked(name: str, texts: Mapping[str, str], given: Sequence[str], view: View) -> Asked:
    """Return the action that was asked for. Raises HTTPNotFound or InputError."""
    if name in SWITCHES or name == "confirm":
        return Asked(name)
    if name == "scale":
        from runners.pools.engines import ENGINES

        runner, workers = texts.get("runner", ""), texts.get("workers", "")
        if runner not in ENGINES:
            raise InputError(f"there is no runner {runner[:40]!r}")
        short = workers.isascii() and workers.isdecimal() and len(workers) <= 5
        if not (short and 1 <= int(workers) <= 10_000):
            raise InputError("workers: give a whole number from 1 to 10000")
        return Asked(name, runner=runner, workers=int(workers))
    if name not in EFFECTS:
        raise web.HTTPNotFound(text="there is no such action")
    if name == "retry" and texts.get("failed") == "1":
        trials = [record for record in view.records if record.status == "failed"][:MOST]
    else:
        trials = select_trials(view, given, most=MOST)
    if not trials:
        raise InputError(f"{name}: pick at least one trial")
    return Asked(name, trials=tuple(trials))


async def _command(*words: str, by: str) -> str:
    """Run a command of `sweep` on behalf of a person and return its last line.

    Raises:
        InputError: the command failed, with its own error, or did not end in time.
    """
    environment = {
        name: value for name, value in os.environ.items() if name not in ("SWEEP_NAME", "SWEEP_STORAGE")
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "sweeps", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment | {USER: by},
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), _COMMAND_S)
    except TimeoutError:
        process.kill()
        raise InputError(f"`sweep {words[0]}` did not end within {_COMMAND_S:g} s") from None
    lines = [line for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    last = redact(lines[-1])[:500] if lines else ""
    if process.returncode:
        raise InputError(last.removeprefix("sweep: error: ") or f"`sweep {words[0]}` failed")
    return last.removeprefix("sweep: ")
