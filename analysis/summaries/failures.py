"""The trials without a result, and why. `contents` calls this."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import pandas as pd

from analysis import labels
from analysis.summaries.summary_line import missing

UNLUCKY = ("failed", "early_stopped", "abandoned")
SHOWN = 200
"""Beyond so many rows nobody reads on; the reasons are counted over all."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A trial without a result, and why."""

    trial: int
    status: str
    attempt: str
    reason: str
    last_words: str


def failures(table: pd.DataFrame) -> tuple[Failure, ...]:
    """The first SHOWN of them, in the table's order."""
    found = []
    for _, row in table[table["status"].isin(UNLUCKY)].head(SHOWN).iterrows():
        told = "" if missing(row["error"]) else str(row["error"]).strip()
        reason, _, rest = told.partition("\n")
        found.append(
            Failure(
                trial=int(row["trial"]),
                status=str(row["status"]).replace("_", " "),
                attempt=labels.cell(row["attempt"]),
                reason=reason or "no reason was recorded",
                last_words=rest.strip("\n"),
            )
        )
    return tuple(found)


def reasons(table: pd.DataFrame) -> tuple[tuple[str, int], ...]:
    """How often each reason was given, most often first; numbers in it count as one reason."""
    told = table.loc[table["status"].isin(UNLUCKY), "error"]
    counts = Counter(_kind("" if missing(error) else str(error)) for error in told)
    return tuple(counts.most_common(10))


def _kind(error: str) -> str:
    return re.sub(r"\d+", "…", error.strip().partition("\n")[0]) or "no reason was recorded"
