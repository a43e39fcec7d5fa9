"""Checks of object keys, which must not lead out of the sweep's prefix.

Keys are literal: `%2e` stays three characters, and a backslash has no special meaning.
"""

from __future__ import annotations

import re

SWEEP_KEY = "sweep.json"
"""Key of the search space: without this object there is no sweep."""

COPYING_KEY = "copying.json"
"""Key of the note of a copy that is not complete: `sweep copy` writes it first, and removes it last."""

LONGEST = 224
"""Most bytes of a key in UTF-8: file names may have 255, and objects in a bucket 1,024 with their prefix."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def checked_key(key: str) -> str:
    """Return the key. Raises `ValueError` if it is empty or could name an object outside the sweep."""
    if path_problem(key, LONGEST):
        raise ValueError(f"not a key: {key!r}")
    return key


def checked_prefix(prefix: str) -> str:
    """Return the prefix. Raises `ValueError` if it is neither "" nor a key, with or without a final slash."""
    if prefix:
        checked_key(prefix.removesuffix("/"))
    return prefix


def path_problem(path: str, longest: int) -> str | None:
    """Return why `path` is no relative path of at most `longest` bytes, or None if it is one."""
    if _CONTROL.search(path):
        return "it holds a control character"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return "a part of the path is empty, '.' or '..'"
    if len(path.encode()) > longest:
        return f"it is longer than {longest} bytes"
    return None
