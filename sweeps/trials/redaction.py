"""Secrets out of what is written down: programs and libraries put them into messages, and records are shared.

`records` passes every report through here, the command line every log line, error and export; `sweep init`
refuses a search space that holds a secret. What counts as one, `secret_patterns` says. Programs get theirs
from the environment that the worker was started in.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from sweeps.errors import SpaceError
from sweeps.space.definition import Space, Value, to_json
from sweeps.text.counted import counted
from sweeps.text.printable import escape_controls
from sweeps.text.secret_patterns import STARS, Redactor, assigned, is_secret_name, may_be_shown
from sweeps.trials.lifecycle import (
    Abandon,
    Claim,
    Complete,
    Event,
    Expire,
    Fail,
    Heartbeat,
    Release,
    Retry,
    StopEarly,
)
from sweeps.trials.record import Trial

log = logging.getLogger(__name__)


def redact(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the text with stars for what looks like a secret, and for what the environment says is one."""
    return Redactor(environment)(text)


def redact_event(event: Event) -> Event:
    """Return the event without secrets in what a program, a library or a person said.

    Names of metrics are redacted, too. Where they become the same, one stays and a warning says so.
    """
    redactor = Redactor(os.environ)
    match event:
        case Fail():
            event = replace(event, error=redactor(event.error))
        case Complete():
            event = replace(event, metrics=_renamed(event.metrics, redactor))
        case StopEarly():
            event = replace(event, metrics=_renamed(event.metrics, redactor), detail=redactor(event.detail))
        case Release():
            event = replace(event, detail=redactor(event.detail))
        case Heartbeat():
            event = replace(event, progress=_progress(event.progress, redactor))
    match event:
        case Expire():
            return event
        case Abandon(by=by) | Retry(by=by):
            return replace(event, by=redactor(by))
        case Claim(worker=worker):
            return replace(event, worker=redactor(worker))
        case _:
            return replace(event, worker=redactor(event.worker))


def redact_trials(records: Iterable[Trial]) -> list[Trial]:
    """Return the records without secrets, for what leaves the store: an earlier version may have let some in.

    Parameters stay as they are: a result is of no use without them, and `refuse_secrets` has seen them.
    """
    redactor, records = Redactor(os.environ), list(records)
    # One name for one metric over all records, and so one column of a table.
    names = _redacted_names(dict.fromkeys(name for record in records for name in record.metrics), redactor)
    return [_redacted(record, names, redactor) for record in records]


def _redacted(record: Trial, names: Mapping[str, str], redactor: Redactor) -> Trial:
    return replace(
        record,
        worker=None if record.worker is None else redactor(record.worker),
        error=None if record.error is None else redactor(record.error),
        metrics={names[name]: value for name, value in record.metrics.items() if name in names},
        progress=_progress(record.progress, redactor),
        history=tuple(
            replace(attempt, worker=redactor(attempt.worker), detail=redactor(attempt.detail))
            for attempt in record.history
        ),
    )


def redact_names(names: Iterable[str]) -> dict[str, str]:
    """Return the names that stay, each with what it becomes without secrets, as `redact_event` does it."""
    return _redacted_names(names, Redactor(os.environ))


def refuse_secrets(space: Space) -> None:
    """Raise `SpaceError` for a search space that holds a secret: it is stored for everybody to read."""
    redactor = Redactor(os.environ)
    for key, text in _texts(to_json(space), ""):
        if (shown := _without_certain(text, redactor)) != text:
            raise SpaceError(
                f"{shown!r} holds a secret, which the sweep would store for everybody to read; leave it in "
                "the environment: programs get the worker's",
                file=redactor(space.name),
                key=key,
            )


def holds_secret(text: str, name: str = "") -> bool:
    """Return whether a text that others can read holds a secret for certain, or is the value of one."""
    if is_secret_name(name) and not may_be_shown(text):
        return True
    return _without_certain(text, Redactor(os.environ)) != text


class RedactingFormatter(logging.Formatter):
    """Formats log records, tracebacks included, without secrets and without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_controls(redact(super().format(record)))


def _without_certain(text: str, redactor: Redactor) -> str:
    """The text with stars where nothing innocent can stand, values that it gives to variables included."""
    shown, at = "", 0
    text = redactor.certain(text)
    for start, end in assigned(text, flags=False):
        shown, at = shown + text[at:start] + STARS, end
    return shown + text[at:]


def _renamed(metrics: Mapping[str, float | None], redactor: Redactor) -> dict[str, float | None]:
    shown = _redacted_names(metrics, redactor)
    return {told: metrics[name] for name, told in shown.items()}


def _progress(progress: Mapping[str, Value], redactor: Redactor) -> dict[str, Value]:
    said = {name: redactor(value) if isinstance(value, str) else value for name, value in progress.items()}
    return {told: said[name] for name, told in _redacted_names(said, redactor).items()}


def _redacted_names(names: Iterable[str], redactor: Redactor) -> dict[str, str]:
    """The names that stay, each with what it becomes; an innocent one is never left out for another."""
    shown = {name: redactor(name) for name in names}
    taken = {name for name, told in shown.items() if name == told}
    kept = {}
    for name, told in shown.items():
        if name == told or told not in taken:
            taken.add(told)
            kept[name] = told
    if left_out := len(shown) - len(kept):
        log.warning(
            "%s left out: without the secrets in them they are the same as others", counted(left_out, "name")
        )
    return kept


def _texts(value: object, key: str) -> Iterator[tuple[str, str]]:
    """Every text in a JSON document, with its dotted path."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(name, key)
            yield from _texts(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, key)
