"""Held-out losses of each sequence, for the errors that trials have in common.

All trials of a sweep are measured on the same sequences. Their mean losses then have the covariance
cov(loss of trial i, loss of trial j) / n over the n sequences, those of one document taken together
(`sweeps.text.standard_error`), and what is hard about the text cancels in
differences: with common random numbers, Var(a - b) = Var(a) + Var(b) - 2 Cov(a, b) (Law, Simulation Modeling
and Analysis, 2015, section 11.2). The losses are reduced by the teacher's on the same sequences, the control
variate of the trainer's `final_loss_sem`, which leaves all differences between trials as they are.

The data come from a file: malformed parts count as missing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.statistics.pareto import Floats
from sweeps.text.standard_error import independent

LOSSES = (("final_loss", "final", "teacher"), ("test_loss", "test", "test_teacher"))
"""Columns that are means over sequences, and the names of their losses and of the reference's."""

SAME_TEXT = 0.9
"""Least correlation of two teachers' losses that were measured on the same text. What is hard for one is hard
for another; losses on different texts are uncorrelated."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Errors of trials that were measured on the same text, by column and trial.

    Args:
        errors: [G] for each trial, one for each document, or for each sequence where these are not known:
            the products of two trials' sum to the covariance of their losses. Trials that were measured on
            another text, or of which nothing is known, are missing.
    """

    errors: Mapping[str, Mapping[int, Floats]]

    @classmethod
    def from_document(cls, document: object) -> HeldOut:
        """Read field `held_out` of an export document: `{TRIAL: {"final": [...], "teacher": [...]}}`."""
        entries = document if isinstance(document, Mapping) else {}
        trials = {int(t): e for t, e in entries.items() if str(t).isdecimal() and isinstance(e, Mapping)}
        return cls({column: _errors(trials, own, other) for column, own, other in LOSSES})

    def factors(self, column: str, runs: Sequence[Sequence[int]]) -> Floats:
        """Return [N, G] factors F: F @ F.T is the covariance of N means of this column over runs.

        Args:
            runs: N groups of trials; the value of a row is the mean over its group.

        Returns:
            A row of zeros for each group with a trial of which no sequences are known; G is 0 without any.
        """
        known = self.errors.get(column, {})
        count = len(next(iter(known.values()), ()))
        found = np.zeros((len(runs), count))
        for row, group in zip(found, runs, strict=True):
            if group and all(trial in known for trial in group):
                row += np.mean([known[trial] for trial in group], axis=0)
        return found


def _errors(entries: Mapping[int, Mapping[str, object]], own: str, other: str) -> dict[int, Floats]:
    pairs = {trial: (_losses(entry.get(own)), _losses(entry.get(other))) for trial, entry in entries.items()}
    pairs = {t: (a, b) for t, (a, b) in pairs.items() if a.size == b.size >= 2}
    if not pairs:
        return {}
    # Runs with another length of the text cannot be paired; those with the most frequent one may be.
    (count, _), *_ = Counter(a.size for a, _ in pairs.values()).most_common(1)
    pairs = {trial: pair for trial, pair in pairs.items() if pair[0].size == count}
    reference = np.median([theirs for _, theirs in pairs.values()], axis=0)
    labels = next((label for trial in pairs if (label := _documents(entries[trial], own, count))), [])
    groups = np.unique(
        labels if independent(count, labels) < count else np.arange(count), return_inverse=True
    )[1]
    size = int(groups.max()) + 1
    scale = math.sqrt(size / (size - 1)) / count
    found: dict[int, Floats] = {}
    for trial, (ours, theirs) in pairs.items():
        a, b = theirs - theirs.mean(), reference - reference.mean()
        if a @ b >= SAME_TEXT * math.sqrt((a @ a) * (b @ b)) > 0 or np.allclose(a, b):
            difference = ours - reference
            sums = np.bincount(groups, difference - difference.mean())
            found[trial] = np.asarray(scale * sums, dtype=np.float64)
    return found


def _documents(entry: Mapping[str, object], own: str, count: int) -> list[int]:
    """Return the number of each sequence's document; none where they are not known."""
    labels = _losses(entry.get(f"{own}_documents"))
    return labels.astype(int).tolist() if labels.size == count else []


def _losses(values: object) -> Floats:
    """Return a list of finite numbers as an array, an empty one for anything else."""
    listed = values if isinstance(values, list) else []
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in listed):
        return np.empty(0)
    return np.array(listed, dtype=np.float64)
