"""The keys that an object may have: nothing may leave the sweep's prefix. Every store checks its keys here.

Keys are taken literally; a `%2e` stays three characters, and a backslash is a character like others.
"""

from __future__ import annotations

import re

LONGEST = 224
"""Bytes of a key in UTF-8: one folder's name takes 255, a bucket's object 1,024 with the sweep's prefix."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def checked_key(key: str) -> str:
    """The key itself. Raises `ValueError` for one that is empty or could mean an object outside the sweep."""
    if path_problem(key, LONGEST):
        raise ValueError(f"not a key: {key!r}")
    return key


def checked_prefix(prefix: str) -> str:
    """What keys may begin with: nothing, a key, or one and a slash. Raises `ValueError`."""
    if prefix:
        checked_key(prefix.removesuffix("/"))
    return prefix


def path_problem(path: str, longest: int) -> str | None:
    """Why a relative path of parts with `/` between them is none; None where nothing is wrong with it."""
    if _CONTROL.search(path):
        return "it holds a control character"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return "a part of the path is empty, '.' or '..'"
    if len(path.encode()) > longest:
        return f"it is longer than {longest} bytes"
    return None
