"""Paired comparison of two conditions, seed by seed, of bare values or of the trials of a table.

The sign test counts how often one of the two is lower and assumes nothing about the distribution of the
losses. With five seeds its smallest two-sided p is 2/32 = 0.0625: five of five is all that five seeds can
say. The interval gives the size of the difference, if differences are about normally distributed; where the
losses of each sequence are known, it also says how much the difference depends on the text.
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.errors import AnalysisError, MissingColumn
from analysis.labels import number
from analysis.table import PARAMETER, TableLike, TrialsTable, is_confirming
from analysis.table.files import OWN_COLUMNS
from sweeps.text.counted import counted

NORMAL_95 = 1.959963984540054
"""Half the width of a normal distribution's central 95 %, in standard deviations."""


@dataclass(frozen=True, kw_only=True)
class Paired:
    """Differences a - b by seed; negative where a's loss is lower.

    Args:
        differences: one for each seed.
        text_sem: standard error of their mean over the sequences that all were measured on; 0 if unknown.
    """

    differences: tuple[float, ...]
    text_sem: float = 0.0

    @property
    def mean(self) -> float:
        """Return the mean difference."""
        return statistics.fmean(self.differences)

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the mean difference; infinite for a single pair.

        Student's t over seeds, and the normal error from the text, in quadrature.
        """
        from scipy.special import stdtrit  # what t.ppf of scipy.stats calls, for a third of the memory

        if len(self.differences) < 2:
            return -np.inf, np.inf
        sem = statistics.stdev(self.differences) / len(self.differences) ** 0.5
        seeds = float(stdtrit(len(self.differences) - 1, 0.975)) * sem
        reach = float(np.hypot(seeds, NORMAL_95 * self.text_sem))
        return self.mean - reach, self.mean + reach

    @property
    def lower(self) -> int:
        """Return the number of seeds in which a is lower."""
        return sum(d < 0 for d in self.differences)

    @property
    def higher(self) -> int:
        """Return the number of seeds in which a is higher; ties are neither."""
        return sum(d > 0 for d in self.differences)

    @property
    def p(self) -> float:
        """Return the p of a two-sided sign test without ties (Dixon and Mood, 1946); 1 if all are ties."""
        from scipy.stats import binomtest

        decided = self.lower + self.higher
        return float(binomtest(self.lower, decided).pvalue) if decided else 1.0

    @property
    def verdict(self) -> str:
        """Return `lower` or `higher` if all seeds agree, `mostly …` if all but one, else `no difference`."""
        seeds = len(self.differences)
        for word, count in (("lower", self.lower), ("higher", self.higher)):
            if count == seeds:
                return word
            if seeds >= 4 and count == seeds - 1:
                return f"mostly {word}"
        return "no difference"

    def describe(self) -> str:
        """Return a line such as `-0.100 (lower in 5 of 5 seeds, p = 0.062)`."""
        word, count = ("lower", self.lower) if self.lower >= self.higher else ("higher", self.higher)
        seeds = counted(len(self.differences), "seed")
        size = abs(self.mean)
        shown = number(size, 3) if 0 < size < 0.01 else f"{size:.3f}"
        return f"{'-' if self.mean < 0 else '+'}{shown} ({word} in {count} of {seeds}, p = {self.p:.2g})"


def compare(a: Mapping[int, float], b: Mapping[int, float]) -> Paired:
    """Compare two conditions by their values per seed.

    Raises:
        ValueError: the seeds differ, or there are none.
    """
    if set(a) != set(b) or not a:
        raise ValueError(f"seeds differ: {sorted(a)} and {sorted(b)}")
    return Paired(differences=tuple(a[seed] - b[seed] for seed in sorted(a)))


def compare_trials(table: TableLike, parameter: str, a: object, b: object, metric: str) -> Paired:
    """Compare completed trials with `parameter` = a to those with b that are equal otherwise, seed included.

    A parameter that no trial of one side has is no difference: it depends on the compared one. One that is
    inactive in some trials of both sides is so in both trials of a pair, or in neither. Trials of `sweep
    confirm` are left out: they repeat what was selected.

    Args:
        parameter: its Hydra key, as in the search space.

    Raises:
        MissingColumn: there is no such parameter, or no such metric.
        NotNumeric: the metric is not a column of numbers.
        AnalysisError: the table is no sweep's, no two trials make a pair, or a trial has two partners.
    """
    column, table = PARAMETER + parameter, TrialsTable.from_frame(table)
    if column not in table:
        raise MissingColumn(column, table.columns)
    if not table.is_sweep:
        absent = ", ".join(sorted(OWN_COLUMNS - set(table.columns)))
        raise AnalysisError(f"the table is no sweep's, as `sweep export` writes it: it lacks {absent}")
    values = table.numbers(metric).astype("float64")
    done = table.completed & np.isfinite(values.to_numpy()) & ~is_confirming(table)
    trials, values = table.frame[done], values[done]
    others = [name for name in table.parameters if name != column]
    # What one side never has hangs on the compared parameter. Others may be inactive in some trials of both.
    both = [trials[trials[column] == value] for value in (a, b)]
    shared = [name for name in others if not any(len(rows) and rows[name].isna().all() for rows in both)]
    firsts, seconds = (_by_key(rows, values, shared) for rows in both)
    keys = [key for key in firsts if key in seconds]
    if not keys:
        raise AnalysisError(
            f"no pairs: no completed trial with {parameter} = {a!r} has a partner with {b!r} that is equal "
            "otherwise; a sweep with `method: grid` makes pairs"
        )
    sides = [[side[key][0] for key in keys] for side in (firsts, seconds)]
    # Rows of zeros if a trial's sequences are unknown: then nothing can be said.
    a_error, b_error = table.held_out.factors(metric, sides)
    known = a_error.any() and b_error.any()
    return Paired(
        differences=tuple(firsts[key][1] - seconds[key][1] for key in keys),
        text_sem=float(np.linalg.norm(a_error - b_error)) if known else 0.0,
    )


def _by_key(
    rows: pd.DataFrame, values: pd.Series[Any], names: Sequence[str]
) -> dict[Hashable, tuple[int, float]]:
    """Return trial and value of each row by its values of some parameters."""
    found: dict[Hashable, tuple[int, float]] = {}
    # Where a parameter is inactive, None: NaN does not equal itself.
    columns = [rows[name].astype(object).where(rows[name].notna(), None).tolist() for name in names]
    keys = list(zip(*columns, strict=True)) if names else [()] * len(rows)
    for key, row in zip(keys, rows.index, strict=True):
        if key in found:
            trial = rows.loc[row, "trial"]
            raise AnalysisError(
                f"trial {trial} has a duplicate with the same parameters: its pair is ambiguous"
            )
        found[key] = int(rows.loc[row, "trial"]), float(values.loc[row])
    return found


def mean_and_range(values: Sequence[float]) -> str:
    """Return mean, smallest and largest value: `3.264 [3.25, 3.28]`."""
    return f"{statistics.fmean(values):.3f} [{min(values):.3f}, {max(values):.3f}]"
