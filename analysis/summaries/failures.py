"""Trials without a result, and why."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from analysis import labels
from analysis.summaries.summary_line import is_missing
from analysis.table import TrialsTable

UNSUCCESSFUL = ("failed", "early_stopped", "abandoned")
SHOWN = 200
"""Most trials listed; the reasons are counted over all."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A trial without a result, and why."""

    trial: int
    status: str
    attempt: str
    reason: str
    last_words: str


def failures(table: TrialsTable) -> tuple[Failure, ...]:
    """Return the first SHOWN trials without a result, in the table's order."""
    found = []
    for _, row in table.frame[table.has_status(*UNSUCCESSFUL)].head(SHOWN).iterrows():
        error = "" if is_missing(row["error"]) else str(row["error"]).strip()
        reason, _, last_words = error.partition("\n")
        found.append(
            Failure(
                trial=int(row["trial"]),
                status=str(row["status"]).replace("_", " "),
                attempt=labels.cell(row["attempt"]),
                reason=reason or "no reason was recorded",
                last_words=last_words.strip("\n"),
            )
        )
    return tuple(found)


def reasons(table: TrialsTable) -> tuple[tuple[str, int], ...]:
    """Count the ten most frequent reasons; of those that differ in numbers alone the first is returned."""
    errors = table.frame.loc[table.has_status(*UNSUCCESSFUL), "error"]
    lines = [first_line("" if is_missing(error) else str(error)) for error in errors]
    examples = {kind_of(line): line for line in reversed(lines)}
    return tuple((examples[kind], count) for kind, count in Counter(map(kind_of, lines)).most_common(10))


def first_line(error: str) -> str:
    """Return the first line of an error, or that it has none."""
    return error.strip().partition("\n")[0] or "no reason was recorded"


def kind_of(reason: str) -> str:
    """Return a reason without its numbers: those of one kind are equal."""
    return re.sub(r"\d+", "…", reason)
