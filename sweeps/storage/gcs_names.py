"""The names that a bucket, a prefix and a key may have: nothing may leave the sweep's prefix.

Called by `gcs` and `urls`. Names are taken literally; a `%2e` stays three characters, here as in the service.
"""

from __future__ import annotations

import re

from sweeps.errors import InputError

SCHEME = "gs://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_LONGEST = 1024  # bytes of an object's name in UTF-8, by the service's rules
_LONGEST_PREFIX = 800  # leaves room for the longest key of a sweep


def parse_url(url: str) -> tuple[str, str]:
    """Bucket and prefix of `gs://bucket/prefix`, without slashes at their ends. Raises `InputError`."""
    bucket, _, rest = url.removeprefix(SCHEME).partition("/")
    if not url.startswith(SCHEME) or not _BUCKET.fullmatch(bucket):
        raise InputError(
            f"{url!r}: this names no bucket; write gs://BUCKET/PREFIX, "
            "the bucket in lower-case letters, digits, '-', '_' and '.'"
        )
    prefix = rest.rstrip("/")
    if prefix and (problem := _problem(prefix, _LONGEST_PREFIX)):
        raise InputError(f"{url!r}: {problem}; write gs://{bucket}/PREFIX with plain folder names")
    return bucket, prefix


def checked_key(key: str) -> str:
    """The key itself. Raises `ValueError` for one that is empty or could mean an object outside the sweep."""
    problem = _problem(key.rstrip("/"), _LONGEST - _LONGEST_PREFIX)
    if problem or key.endswith("//"):
        raise ValueError(f"not a key: {key!r}")
    return key


def _problem(name: str, longest: int) -> str | None:
    if _CONTROL.search(name):
        return "it holds a control character"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "a part of the path is empty, '.' or '..'"
    if len(name.encode()) > longest:
        return f"it is longer than {longest} bytes"
    return None
