"""Bucket URLs. Names in them are literal: `%2e` stays three characters, as in the service."""

from __future__ import annotations

import re

from sweeps.errors import InputError
from sweeps.storage.keys import LONGEST, path_problem

SCHEME = "gs://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_LONGEST_PREFIX = 1024 - LONGEST  # bytes: the service's limit for an object's name, less the longest key


def parse_url(url: str) -> tuple[str, str]:
    """Return bucket and prefix of `gs://bucket/prefix`, without trailing slashes. Raises `InputError`."""
    bucket, _, rest = url.removeprefix(SCHEME).partition("/")
    if not url.startswith(SCHEME) or not _BUCKET.fullmatch(bucket):
        raise InputError(
            f"{url!r}: this names no bucket; write gs://BUCKET/PREFIX, "
            "the bucket in lower-case letters, digits, '-', '_' and '.'"
        )
    prefix = rest.rstrip("/")
    if prefix and (problem := path_problem(prefix, _LONGEST_PREFIX)):
        raise InputError(f"{url!r}: {problem}; write gs://{bucket}/PREFIX with plain folder names")
    return bucket, prefix
