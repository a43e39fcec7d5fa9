"""Redaction of secrets, which programs and libraries put into messages, from shared records and logs.

`Records.apply` redacts every event, the command line every log line, error and export; `sweep init` refuses a
search space that holds a secret. `secret_patterns` defines what counts as one. Programs get their secrets
from the worker's environment.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

from sweeps.errors import SpaceError
from sweeps.space.definition import Space
from sweeps.space.space_json import to_json
from sweeps.text.counted import counted
from sweeps.text.printable import escape_controls
from sweeps.text.secret_patterns import Redactor, is_secret_name, mask_spans, may_be_shown, secret_spans
from sweeps.trials import storable
from sweeps.trials.lifecycle import Event
from sweeps.trials.record import Attempt, Trial

Redact = Callable[[str], str]
_TEXTS = ("worker", "by", "error", "detail")
"""Fields of events that programs, libraries and people fill; the others are chosen by us."""
_Record = TypeVar("_Record", Trial, Attempt)

log = logging.getLogger(__name__)


def redact(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the text with stars for what looks like a secret, or is one of the environment's."""
    return Redactor(environment)(text)


def redacted_line(text: str) -> str:
    """Return the text as `storable.line` cuts it, masked before: half of a secret is not recognised."""
    return storable.line(redact(text))


def printable(text: str) -> str:
    """Return text that may hold a program's output without secrets and without escape sequences."""
    return escape_controls(redact(text))


def redact_event(event: Event) -> Event:
    """Return the event without secrets in its texts.

    Names of metrics are redacted, too. Where they become equal, one stays, with a warning.
    """
    redactor = Redactor(os.environ)
    redacted: dict[str, Any] = {}
    for name, value in vars(event).items():
        if name in _TEXTS:
            redacted[name] = redactor(value)
        elif name in ("metrics", "predicted", "progress"):
            redacted[name] = _redact_mapping(value, redactor)
    return replace(event, **redacted)


def redact_trials(records: Iterable[Trial]) -> list[Trial]:
    """Return the records without secrets, for exports: earlier versions may have stored some.

    Parameters stay as they are: results are useless without them, and `refuse_secrets` has checked them.
    """
    # Workers and errors are the same in many records; each text is looked through once.
    redactor, records = lru_cache(maxsize=4096)(Redactor(os.environ)), list(records)
    # The same name for a metric in all records, and so one column of a table.
    metrics = dict.fromkeys(chain.from_iterable(record.metrics for record in records))
    names = _redacted_names(metrics, redactor)
    renames = any(names.get(name) != name for name in metrics)
    return [_redact_record(record, names if renames else None, redactor) for record in records]


def _redact_record(record: Trial, names: Mapping[str, str] | None, redactor: Redact) -> Trial:
    clean: dict[str, Any] = {}
    # Most have none of these: of 10,000 records they are looked for in a tenth of a second.
    if names is not None:
        clean["metrics"] = {names[n]: v for n, v in record.metrics.items() if n in names}
    if record.worker is not None:
        clean["worker"] = redactor(record.worker)
    if record.error is not None:
        clean["error"] = redactor(record.error)
    if record.progress:
        clean["progress"] = _redact_mapping(record.progress, redactor)
    if record.history:
        clean["history"] = tuple(
            _replace_changed(
                attempt, {"worker": redactor(attempt.worker), "detail": redactor(attempt.detail)}
            )
            for attempt in record.history
        )
    return _replace_changed(record, clean)


def _replace_changed(one: _Record, values: Mapping[str, Any]) -> _Record:
    """Return the object with these values; itself if nothing changes, as for nearly all records."""
    if all(getattr(one, name) == value for name, value in values.items()):
        return one
    return replace(one, **values)


def redact_names(names: Iterable[str]) -> dict[str, str]:
    """Return the names that stay, each with its redacted name, as `redact_event` redacts them."""
    return _redacted_names(names, Redactor(os.environ))


def refuse_secrets(space: Space) -> None:
    """Raise `SpaceError` if the search space holds a secret, which every reader of the store could see."""
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
    """Return whether a text certainly holds a secret, or is the value of a variable whose name means one."""
    if is_secret_name(name) and not may_be_shown(text):
        return True
    return _without_certain(text, Redactor(os.environ)) != text


class RedactingFormatter(logging.Formatter):
    """Formatter of log records, tracebacks included, without secrets and control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_controls(redact(super().format(record)))


def _without_certain(text: str, redactor: Redactor) -> str:
    """Return the text with stars for certain secrets, including values that it assigns to variables."""
    text = redactor.certain(text)
    return mask_spans(text, secret_spans(text, flags=False))


def _redact_mapping(values: Mapping[str, Any], redactor: Redact) -> dict[str, Any]:
    """Return the values by their redacted names, texts among them redacted, too."""
    shown = {name: redactor(value) if isinstance(value, str) else value for name, value in values.items()}
    return {redacted: shown[name] for name, redacted in _redacted_names(shown, redactor).items()}


def _redacted_names(names: Iterable[str], redactor: Redact) -> dict[str, str]:
    """Return the names that stay, each with its redacted name; one without a secret always stays."""
    new_names = {name: redactor(name) for name in names}
    taken = {name for name, new in new_names.items() if name == new}
    kept = {}
    for name, new in new_names.items():
        if name == new or new not in taken:
            taken.add(new)
            kept[name] = new
    if left_out := len(new_names) - len(kept):
        log.warning(
            "%s left out: without the secrets in them they are the same as others", counted(left_out, "name")
        )
    return kept


def _texts(value: object, key: str) -> Iterator[tuple[str, str]]:
    """Yield every text in a JSON document, with its dotted path."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(name, key)
            yield from _texts(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, key)
