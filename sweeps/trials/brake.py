"""When a sweep pauses itself: trial after trial fails for one reason, and the next would too. Pure.

`asking` asks before a trial is handed out, and turns the switch in `control`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sweeps.space.definition import Brake
from sweeps.text.counted import counted
from sweeps.trials.record import Trial

REMEDY = "mend the cause, then `sweep resume` goes on"

_SEARCHED = ("diverged", "out_of_memory")
"""What a search finds out about its space: normal among trials that complete."""

_LONGEST = 200
_PLACEHOLDERS = (
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "#"),  # addresses, as in the repr of an object
    (re.compile(r"(?<![\w.])(?:[A-Za-z]:)?[\w.~-]*(?:[/\\][\w.@+~-]+)+[/\\]?"), "PATH"),
    (re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{8,}\b"), "#"),  # tokens, hashes
    (re.compile(r"[+-]?\b(?:nan|inf(?:inity)?)\b", re.IGNORECASE), "#"),
    (re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"), "#"),
)


def reason_to_pause(limits: Brake, records: Sequence[Trial], *, since: float = 0.0) -> str:
    """Why the sweep should pause itself, in a few words; "" while it should go on.

    Trials are taken in the order in which they ended, those of all workers together. Divergence and lack of
    memory are results of a search, and count only while no trial has completed, up to `limits.later`.

    Args:
        since: the store's time when a person last turned the switch; trials begun before do not count.
    """
    if not last_failed(records):  # each ask comes by here, with all records
        return ""
    ended = sorted(
        (record for record in _judged(records) if (record.started or 0.0) >= since),
        key=lambda record: (record.ended or 0.0, record.trial),
        reverse=True,
    )
    if not ended or ended[0].status != "failed":
        return ""
    last, reason = ended[0], _reason(ended[0])
    row = next((i for i, record in enumerate(ended) if _reason(record) != reason), len(ended))
    has_completed = any(record.status == "completed" for record in _judged(records))
    if last.failure in _SEARCHED:
        limit = 0 if has_completed else limits.later
    else:
        limit = limits.later if has_completed else limits.first
    if not limit or row < limit:
        return ""
    return f"{counted(row, 'trial')} in a row failed with: {_first_line(last)}"


def last_failed(records: Sequence[Trial]) -> bool:
    """Whether the trial that ended last has failed."""
    last = max(_judged(records), key=lambda record: (record.ended or 0.0, record.trial), default=None)
    return last is not None and last.status == "failed"


def normalized(error: str) -> str:
    """The first line of an error without what differs from trial to trial: numbers, paths, addresses."""
    line = " ".join(error.partition("\n")[0].split())
    for pattern, placeholder in _PLACEHOLDERS:
        line = pattern.sub(placeholder, line)
    return line[:_LONGEST]


def _judged(records: Sequence[Trial]) -> list[Trial]:
    """Trials of this sweep that ended by themselves; what a person gave up says nothing."""
    return [r for r in records if r.finished and r.status != "abandoned" and r.generator != "imported"]


def _reason(record: Trial) -> tuple[str, str]:
    """What a trial failed of, equal for equal causes; of one that did not fail, a reason of its own."""
    if record.status != "failed":
        return record.status, str(record.trial)
    return record.failure or "", normalized(_error(record))


def _error(record: Trial) -> str:
    """A lost trial's own error names all its workers: what the last attempt died of says more."""
    if record.failure == "lost" and record.history:
        last = record.history[-1]
        return f"{last.reason}: {last.detail}"
    return record.error or ""


def _first_line(record: Trial) -> str:
    line = " ".join(_error(record).partition("\n")[0].split())
    line = "".join(c if c.isprintable() else " " for c in line)
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
