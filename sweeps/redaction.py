"""Secrets out of what is written down: programs and libraries put them into messages, and records are shared.

`records` passes every report through here, the command line every log line and error; `sweep init` refuses a
search space that holds a secret. Programs get theirs from the environment that the worker was started in.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace

from sweeps.errors import SpaceError
from sweeps.lifecycle import Event, Fail, Heartbeat, Release, StopEarly
from sweeps.space import Space

STARS = "***"

_SECRET_WORDS = frozenset(
    ("KEY", "APIKEY", "TOKEN", "PAT", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIALS")
)
_SHORTEST = 8  # a shorter value would be found in innocent words
_NAMED = r"(?:api[_-]?key|key|token|secret|password|passwd|signature|credential|sig)"


def _rules(*rules: tuple[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern, re.DOTALL), replacement) for pattern, replacement in rules)


_CERTAIN = _rules(
    (r"(\b[A-Za-z][A-Za-z0-9+.-]*://)[^\s/@'\"<>]+@", rf"\1{STARS}@"),  # https://user:password@host
    (rf"(?i)([?&;][\w.-]*{_NAMED}=)[^\s&;'\"<>#]+", rf"\1{STARS}"),  # ?access_token=…, &X-Goog-Signature=…
    (r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", STARS),
    (r"\bya29\.[\w.-]+|\bAIza[\w-]{35}", STARS),  # Google's
    (r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]+", STARS),  # JSON web tokens
    (r"\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}|\bhf_\w{20,}", STARS),
    (r"\bsk-[\w-]{20,}|\bwandb_v\d_\w{20,}", STARS),
    (r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bxox[abprs]-[\w-]{10,}", STARS),
)
# Words that may be innocent, as in `--eos-token=</s>`: good enough for a message, not to refuse an input.
_LIKELY = _rules(
    (rf"(?i)(--(?:[\w-]*-)?{_NAMED}[= ])[^\s'\"]+", rf"\1{STARS}"),  # --api-key=…
    (r"(?i)(\bauthorization['\"]?\s*[:=]\s*['\"]?)(?:\w+ +)?[\w.~+/=*-]+", rf"\1{STARS}"),
    (r"(?i)(\bbearer\s+)[\w.~+/=-]{8,}", rf"\1{STARS}"),
    (r"(\b[A-Z][A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD)['\"]?\s*[=:]\s*['\"]?)[^\s'\",}]+", rf"\1{STARS}"),
)


def redact(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """The text with stars for whatever looks like a secret, and for what the environment says is one."""
    return _replaced(text, environment, (*_CERTAIN, *_LIKELY))


def _replaced(text: str, environment: Mapping[str, str], rules: Iterable[tuple[re.Pattern[str], str]]) -> str:
    for secret in sorted(_secrets(environment), key=len, reverse=True):
        text = text.replace(secret, STARS)
    for pattern, replacement in rules:
        text = pattern.sub(replacement, text)
    return text


def redact_event(event: Event) -> Event:
    """The event without secrets in what a program or a library said."""
    match event:
        case Fail(error=error):
            return replace(event, error=redact(error))
        case Release(detail=detail) | StopEarly(detail=detail):
            return replace(event, detail=redact(detail))
        case Heartbeat(progress=progress):
            said = {
                name: redact(value) if isinstance(value, str) else value for name, value in progress.items()
            }
            return replace(event, progress=said)
        case _:
            return event


def refuse_secrets(space: Space) -> None:
    """Raise `SpaceError` for a search space that holds a secret: it is stored for everybody to read."""
    document = {"program": asdict(space.program), "parameters": [asdict(p) for p in space.parameters]}
    for key, text in _texts(document, ""):
        if (shown := _replaced(text, os.environ, _CERTAIN)) != text:
            raise SpaceError(
                f"{shown!r} holds a secret, which the sweep would store for everybody to read; leave it in "
                "the environment: programs get the worker's",
                file=space.name,
                key=key,
            )


class RedactingFormatter(logging.Formatter):
    """Formats log records, tracebacks included, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def _secrets(environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in environment.items():
        is_secret = not _SECRET_WORDS.isdisjoint(name.upper().split("_"))
        # A path says where a secret is, which a person may have to know.
        if is_secret and len(value) >= _SHORTEST and not value.startswith(("/", "~", "./")):
            yield value


def _texts(value: object, key: str) -> Iterator[tuple[str, str]]:
    """Every text in a JSON document, with its dotted path."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, key)
