"""Settings of a bucket of S3 that harm a sweep, by the answer to a HEAD of one of its objects. Pure.

That needs no right to read the bucket's configuration, and a rule for another prefix does not count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_RULE = re.compile(r'rule-id="([^"]*)"')


def refusal(headers: Mapping[str, str], bucket: str) -> str:
    """Return why no sweep can be kept there, or "": its records would go, or could never go.

    Args:
        headers: of an object of the sweep, by name in small letters.
    """
    if expires := headers.get("x-amz-expiration"):
        rule = _RULE.search(expires)
        named = f" {rule[1]!r}" if rule else ""
        return (
            f"the lifecycle rule{named} of bucket {bucket} deletes what is stored here, records of a running "
            "sweep, too; exclude this prefix from it, or take another bucket"
        )
    if headers.get("x-amz-object-lock-mode"):
        return (
            f"bucket {bucket} locks each object by default (object lock): every heartbeat would leave a "
            "version that nobody can remove; take a bucket without a default retention"
        )
    return ""


def warning(headers: Mapping[str, str], bucket: str) -> str:
    """Return what makes a sweep there expensive, or "": it works all the same."""
    if headers.get("x-amz-version-id") in (None, "", "null"):
        return ""
    return (
        f"bucket {bucket} keeps all versions of its objects, so that heartbeats and removed checkpoints are "
        "billed on; suspend versioning, or add a lifecycle rule for noncurrent versions"
    )
