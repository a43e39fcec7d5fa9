"""Text for people: sizes with their unit, lines on a stream, progress, and secrets behind stars.

A Hydra override may hold a secret (`${oc.env:HF_TOKEN}`, a URL with a password) that the run needs and its
records must not have. `sweeps.text.secret_patterns` defines what counts as one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from sweeps.text.secret_patterns import STARS, Redactor, is_secret_name, may_be_shown

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def byte_size(size: float) -> str:
    """Return a number of bytes as three digits and a unit: `128 GiB`, `0.55 GiB`, `93.8 MiB`.

    The unit is the largest of which there is at least a tenth: two decimals of a GiB would hide a small size.
    """
    if not size:
        return "0 MiB"
    unit, name = next((each for each in _UNITS if size >= each[0] / 10), _UNITS[-1])
    value = size / unit
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f} {name}"


class Lines:
    """Lines on a stream, each flushed; after the first that cannot be written, no more are tried.

    A closed pipe (`| head -1`) or a full disk behind `>` must not end a run.

    Args:
        out: the stream; None: nothing is written.
    """

    def __init__(self, out: TextIO | None) -> None:
        self._out = out

    def write(self, line: str) -> None:
        if self._out is None:
            return
        try:
            self._out.write(line + "\n")
            self._out.flush()
        except OSError:
            _redirect_to_null(self._out)
            self._out = None


def _redirect_to_null(out: TextIO) -> None:
    """Redirect the stream to the null device: Python flushes it at exit and would end with status 120."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: no file is behind this stream
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, out.fileno())
        finally:
            os.close(nowhere)


def progress_lines(
    out: TextIO | None, also: Callable[[str, float | None], None] | None = None
) -> Callable[[str, float | None], None]:
    """Return a progress callback that prints a line per tenth of whatever is being prepared.

    Args:
        also: called with every message and share.
    """
    printed, lines = set[tuple[str, int]](), Lines(out)

    def progress(message: str, fraction: float | None) -> None:
        if also:
            also(message, fraction)
        tenth = (message, int((fraction or 0.0) * 10))
        if fraction is not None and tenth not in printed:
            printed.add(tenth)
            lines.write(f"preparing {message}: {tenth[1] * 10} %")

    return progress


def redact(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the text with stars for what looks like a secret, and for what the environment says is one."""
    return Redactor(environment)(text)


def without_secrets(value: Any, environment: Mapping[str, str] = os.environ) -> Any:
    """Return the same tree of mappings and sequences, its texts with stars where a secret was."""
    return _redact(value, Redactor(environment))


def _redact(value: Any, redactor: Redactor, name: str = "") -> Any:
    if isinstance(value, str):
        return STARS if name and is_secret_name(name) and not may_be_shown(value) else redactor(value)
    if isinstance(value, Mapping):
        return {key: _redact(inner, redactor, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_redact(inner, redactor, name) for inner in value]
    return value
