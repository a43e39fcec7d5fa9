"""Redaction of secrets in whatever leaves the process. Called by `wandb_run`, `config_pin` and `__main__`.

A Hydra override may hold a secret (`${oc.env:HF_TOKEN}`, a URL with a password) that the run needs and its
records must not have. `secret_patterns` defines what counts as one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from sweeps.text.secret_patterns import STARS, Redactor, is_secret_name, may_be_shown


def redact(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the text with stars for what looks like a secret, and for what the environment says is one."""
    return Redactor(environment)(text)


def without_secrets(value: Any, environment: Mapping[str, str] = os.environ) -> Any:
    """Return the same tree of mappings and sequences, its texts with stars where a secret was."""
    return _without(value, Redactor(environment))


def _without(value: Any, redactor: Redactor, name: str = "") -> Any:
    if isinstance(value, str):
        return STARS if name and is_secret_name(name) and not may_be_shown(value) else redactor(value)
    if isinstance(value, Mapping):
        return {key: _without(inner, redactor, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without(inner, redactor, name) for inner in value]
    return value
