"""Times for people, `2026-11-25 08:00:00 UTC`, and for tables: the same on every machine."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(seconds: float) -> str:
    """Return seconds since the epoch as date and time in UTC; "?" for what is no time."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "?"


def iso(seconds: float) -> str:
    """Return seconds since the epoch as in ISO 8601, `2026-11-25T08:00:00Z`; "" for what is no time."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return ""
