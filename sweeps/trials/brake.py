"""Brake of a sweep, which pauses itself when trial after trial fails for one reason. Pure.

`search.allocation` checks it before it hands out a trial, and pauses the sweep with `control.brake`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter

from sweeps.space.definition import Brake
from sweeps.text.counted import counted
from sweeps.trials.record import Trial

REMEDY = "fix the cause, then run `sweep resume`"

_EXPECTED = ("diverged", "out_of_memory")
"""Failures that a search finds in its space: normal among trials that complete."""

_LONGEST = 200
_PLACEHOLDERS = (
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "#"),  # addresses, as in the repr of an object
    (re.compile(r"(?<![\w.])(?:[A-Za-z]:)?[\w.~-]*(?:[/\\][\w.@+~-]+)+[/\\]?"), "PATH"),
    (re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{8,}\b"), "#"),  # tokens, hashes
    (re.compile(r"[+-]?\b(?:nan|inf(?:inity)?)\b", re.IGNORECASE), "#"),
    (re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"), "#"),
)


def reason_to_pause(limits: Brake, records: Sequence[Trial], *, since: float = 0.0) -> str:
    """Return why the sweep should pause itself, in a few words; "" while it should go on.

    Trials of all workers count in the order in which they ended. Divergence and lack of memory are results of
    a search: they count only while no trial has completed, up to `limits.later`.

    Args:
        since: the store's time when a user last resumed the sweep; trials started earlier do not count.
    """
    if not last_failed(records):
        return ""
    ended = sorted(
        (record for record in _ended_trials(records) if (record.started or 0.0) >= since),
        key=order,
        reverse=True,
    )
    if not ended or ended[0].status != "failed":
        return ""
    last, reason = ended[0], _reason(ended[0])
    others = (i for i, r in enumerate(ended) if r.status != "failed" or _reason(r) != reason)
    row = next(others, len(ended))
    has_completed = any(record.status == "completed" for record in _ended_trials(records))
    if last.failure in _EXPECTED:
        limit = 0 if has_completed else limits.later
    else:
        limit = limits.later if has_completed else limits.first
    if not limit or row < limit:
        return ""
    return f"{counted(row, 'trial')} in a row failed with: {_first_line(last)}"


def last_failed(records: Sequence[Trial]) -> bool:
    """Return whether the trial that ended last has failed."""
    if "failed" not in map(attrgetter("status"), records):
        return False
    last = max(_ended_trials(records), key=order, default=None)
    return last is not None and last.status == "failed"


def order(record: Trial) -> tuple[float, int]:
    """Return what trials that have ended are sorted by."""
    return record.ended or 0.0, record.trial


def has_ended(record: Trial) -> bool:
    """Return whether this sweep ran the trial to an end, and no user abandoned it."""
    return record.finished and record.status != "abandoned" and not record.is_imported


def error_pattern(error: str) -> str:
    """Return the first line of an error with placeholders for numbers, paths and addresses."""
    line = " ".join(error.partition("\n")[0].split())
    for pattern, placeholder in _PLACEHOLDERS:
        line = pattern.sub(placeholder, line)
    return line[:_LONGEST]


def _ended_trials(records: Sequence[Trial]) -> list[Trial]:
    return list(filter(has_ended, records))


def _reason(record: Trial) -> tuple[str | None, str]:
    """Return the cause of a failure, equal for equal causes."""
    return record.failure, error_pattern(_error(record))


def _error(record: Trial) -> str:
    """Return the error, that of the last attempt for a lost trial, whose own error lists its workers."""
    if record.failure == "lost" and record.history:
        last = record.history[-1]
        return f"{last.reason}: {last.detail}"
    return record.error or ""


def _first_line(record: Trial) -> str:
    line = " ".join(_error(record).partition("\n")[0].split())
    line = "".join(c if c.isprintable() else " " for c in line)
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
