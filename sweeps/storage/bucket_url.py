"""Bucket URLs. Names in them are literal: `%2e` stays three characters, as in the service."""

from __future__ import annotations

import re

from sweeps.errors import InputError
from sweeps.storage.keys import LONGEST, path_problem

GS = "gs://"
S3 = "s3://"
AZ = "az://"
SCHEMES = (GS, S3, AZ)
_BUCKET = {
    GS: re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"),
    S3: re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
    AZ: re.compile(r"(?=.{3,63}$)[a-z0-9]+(-[a-z0-9]+)*"),
}
_CHARACTERS = {GS: "'-', '_' and '.'", S3: "'-' and '.'", AZ: "'-'"}
_LONGEST_PREFIX = 1024 - LONGEST  # bytes: the services' limit for an object's name, less the longest key


def parse_url(url: str, schemes: tuple[str, ...] = SCHEMES) -> tuple[str, str]:
    """Return bucket and prefix of `gs://bucket/prefix`, without trailing slashes. Raises `InputError`."""
    scheme = next((scheme for scheme in schemes if url.startswith(scheme)), schemes[0])
    bucket, _, rest = url.removeprefix(scheme).partition("/")
    if not url.startswith(scheme) or not _BUCKET[scheme].fullmatch(bucket):
        raise InputError(
            f"{url!r}: this names no bucket; write {scheme}BUCKET/PREFIX, "
            f"the bucket in lower-case letters, digits, {_CHARACTERS[scheme]}"
        )
    prefix = rest.rstrip("/")
    if prefix and (problem := path_problem(prefix, _LONGEST_PREFIX)):
        raise InputError(f"{url!r}: {problem}; write {scheme}{bucket}/PREFIX with plain folder names")
    return bucket, prefix
