"""What the surrogate says of a sweep's best trial and of its parameters, fitted in a process of its own.

A fit takes seconds of CPU, and Ax 400 MB: no page waits for it, and the server loads no torch. A page shows
the last answer and of how many results it is; when a new one comes, the page changes like any other.

`python -m sweeps.dashboard.answers QUESTION` is that process: a search space and records in, an answer out,
as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sweeps.errors import SurrogateFailed, SweepError
from sweeps.export import insight, optimum
from sweeps.space.space_json import from_json, to_json
from sweeps.text import json_reader
from sweeps.trials import record

if TYPE_CHECKING:
    from sweeps.dashboard.poller import Poller
    from sweeps.dashboard.reader import View

log = logging.getLogger(__name__)

Question = Literal["optimum", "insight"]
"""Which trial is best, and what the parameters do: that takes longer, and has a page of its own."""

GAP_S = 30.0
"""Seconds from the end of a fit to the next one of the same sweep, at least."""
PATIENCE_S = 600.0
RETRY_S = 300.0
"""Seconds until a fit is tried again whose process has failed, without a new result."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the surrogate said last.

    Args:
        results: number of results that it was fitted to.
        trial: the choice; None if there is no answer.
        sentences: in words; without an answer, why.
        insight: the document of `export.insight`, if that was asked for.
        is_final: whether another fit to the same results would say the same; no, where its process failed.
    """

    results: int
    trial: int | None
    sentences: tuple[str, ...]
    insight: Mapping[str, Any] | None = None
    is_final: bool = True


class Answers:
    """The last answers of each sweep; one fit at a time, however many sweeps are shown.

    Args:
        fit: returns the answer for a view and a question.
        gap_s: see `GAP_S`.
        retry_s: see `RETRY_S`.
    """

    def __init__(
        self,
        fit: Callable[[View, Question], Awaitable[Answer]] | None = None,
        *,
        gap_s: float = GAP_S,
        retry_s: float = RETRY_S,
    ) -> None:
        self._fit, self._gap_s, self._retry_s = fit or fit_elsewhere, gap_s, retry_s
        self._found_at: dict[tuple[str, Question], float] = {}
        self._known: dict[tuple[str, Question], tuple[int, Answer]] = {}
        self._tasks: dict[tuple[str, Question], asyncio.Task[None]] = {}
        self._one = asyncio.Lock()

    def last(self, poller: Poller, question: Question = "optimum") -> Answer | None:
        """Return the last answer; None before the first one."""
        return self._known[poller.name, question][1] if (poller.name, question) in self._known else None

    def ask(self, poller: Poller, view: View, question: Question = "optimum") -> None:
        """Have the answer for this view found in the background, unless it is known or being found."""
        key = (poller.name, question)
        if key in self._tasks or not _applies(view, question):
            return
        if key in self._known:
            known, answer = self._known[key]
            is_new = answer.is_final or time.monotonic() < self._found_at[key] + self._retry_s
            if known == _results(view) and is_new:
                return
        find = self._find(poller, question)
        self._tasks[key] = asyncio.get_running_loop().create_task(find, name=f"{question} {poller.name}")
        self._tasks[key].add_done_callback(lambda _: self._tasks.pop(key, None))

    async def close(self) -> None:
        """Stop all fits."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _find(self, poller: Poller, question: Question) -> None:
        key = (poller.name, question)
        if key in self._known:
            await asyncio.sleep(self._gap_s)
        async with self._one:
            view = poller.view
            if view is None:
                return
            try:
                answer = await self._fit(view, question)
            except (OSError, SweepError) as error:  # no process can be started, for example
                why = f"the surrogate could not be fitted: {error}"
                answer = Answer(results=_count_completed(view), trial=None, sentences=(why,), is_final=False)
        self._known[key], self._found_at[key] = (_results(view), answer), time.monotonic()
        poller.change()


def _applies(view: View, question: Question) -> bool:
    if question == "optimum":
        return optimum.applies(view.space, view.records)
    return not insight.why_not(view.space, view.records)


def _count_completed(view: View) -> int:
    return sum(each.status == "completed" for each in view.records)


def _results(view: View) -> int:
    """Return what changes whenever the surrogate may say something else."""
    return hash(tuple((r.trial, r.status, tuple(r.metrics.items())) for r in view.records if r.finished))


async def fit_elsewhere(view: View, question: Question = "optimum") -> Answer:
    """Fit the surrogate in a new process of low priority."""
    results = _count_completed(view)
    begun = time.monotonic()
    given = await asyncio.to_thread(_given, view)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", __name__, question),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is the server's, which ends it
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            written, _ = await process.communicate(given)
        document = json_reader.parse(written)
    except TimeoutError:
        why = f"the surrogate was not fitted within {PATIENCE_S:.0f} s"
        return Answer(results=results, trial=None, sentences=(why,), is_final=False)
    except ValueError:  # killed for its memory, for example
        why = f"the surrogate could not be fitted: its process ended with status {process.returncode}"
        return Answer(results=results, trial=None, sentences=(why,), is_final=False)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    log.info("%s: the surrogate was fitted in %.1f s", view.url, time.monotonic() - begun)
    if question == "insight":
        return Answer(results=document["trials"], trial=None, sentences=(), insight=document)
    return Answer(results=results, trial=document["trial"], sentences=tuple(document["sentences"]))


def _given(view: View) -> bytes:
    """Return what the process reads; of thousands of records that takes a second."""
    records = [json_reader.parse(record.encode(each, "")) for each in view.records]
    return json.dumps({"space": to_json(view.space), "records": records}).encode()


def main(question: str) -> None:
    """Read a space and records from stdin, and write the answer to stdout."""
    os.nice(10)  # workers on this machine come first
    given = json_reader.parse(sys.stdin.buffer.read())
    records = [record.decode(json.dumps(each).encode()) for each in given["records"]]
    if question == "insight":
        sys.stdout.write(json.dumps(insight.insight(from_json(given["space"]), records)))
        return
    try:
        found = optimum.optimum(from_json(given["space"]), records) or {"trial": None, "sentences": []}
    except SurrogateFailed as error:
        found = {"trial": None, "sentences": [str(error)]}
    sys.stdout.write(json.dumps({key: found[key] for key in ("trial", "sentences")}))


if __name__ == "__main__":
    main(sys.argv[1])
