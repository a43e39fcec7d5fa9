"""Secrets out of the configuration before it leaves the machine. Called by `wandb_run` and `checkpoint.pin`.

A Hydra override may hold one (`${oc.env:HF_TOKEN}`, a URL with a password). The run itself needs it; whoever
looks at the run does not. The sweeps have a fuller version for messages of programs; no room imports another.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

STARS = "***"

_SECRET_WORDS = frozenset(("KEY", "APIKEY", "TOKEN", "PAT", "SECRET", "PASSWORD", "PASSWD", "CREDENTIALS"))
_SHORTEST = 8  # a shorter value would be found in innocent words
_USERINFO = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://)[^\s/@'\"<>]+@")
_PARAMETER = re.compile(r"(?i)([?&;][\w.-]*(?:key|token|secret|password|signature|credential|sig)=)[^\s&;#]+")


def without_secrets(value: Any, environment: Mapping[str, str] = os.environ) -> Any:
    """The same tree of mappings and sequences, its texts with stars where a secret was."""
    if isinstance(value, str):
        for secret in sorted(_secrets(environment), key=len, reverse=True):
            value = value.replace(secret, STARS)
        return _PARAMETER.sub(rf"\1{STARS}", _USERINFO.sub(rf"\1{STARS}@", value))
    if isinstance(value, Mapping):
        return {name: without_secrets(inner, environment) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(inner, environment) for inner in value]
    return value


def _secrets(environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in environment.items():
        is_secret = not _SECRET_WORDS.isdisjoint(name.upper().split("_"))
        if is_secret and len(value) >= _SHORTEST and not value.startswith(("/", "~", "./")):
            yield value
