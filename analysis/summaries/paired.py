"""Two conditions compared seed by seed. `compare` takes bare values; `compare_trials` finds the pairs in a
table.

The sign test asks how often one of the two is lower, and nothing of how the losses are distributed. With five
seeds its smallest two-sided p is 2/32 = 0.0625: five of five is all that five seeds can say. The interval
says how large the difference is, if differences are about normally distributed. The ablation notebook and
`benchmarks.findings` call this.
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from analysis.errors import AnalysisError, MissingColumn
from analysis.labels import counted
from analysis.table import PARAMETER, is_trials_table, numbers


@dataclass(frozen=True, kw_only=True)
class Paired:
    """Differences a - b by seed; a negative one says that a's loss is lower."""

    differences: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean difference."""
        return statistics.fmean(self.differences)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean difference (Student's t); without end for a single pair."""
        if len(self.differences) < 2:
            return -np.inf, np.inf
        sem = statistics.stdev(self.differences) / len(self.differences) ** 0.5
        reach = float(stats.t.ppf(0.975, len(self.differences) - 1)) * sem
        return self.mean - reach, self.mean + reach

    @property
    def lower(self) -> int:
        """Seeds in which a is lower."""
        return sum(d < 0 for d in self.differences)

    @property
    def higher(self) -> int:
        """Seeds in which a is higher; ties are neither."""
        return sum(d > 0 for d in self.differences)

    @property
    def p(self) -> float:
        """Two-sided sign test; ties are left out (Dixon and Mood, 1946). 1 where all are ties."""
        decided = self.lower + self.higher
        return float(stats.binomtest(self.lower, decided).pvalue) if decided else 1.0

    @property
    def verdict(self) -> str:
        """`lower` or `higher` by every seed, `mostly …` by all but one, else `no difference`."""
        seeds = len(self.differences)
        for word, count in (("lower", self.lower), ("higher", self.higher)):
            if count == seeds:
                return word
            if seeds >= 4 and count == seeds - 1:
                return f"mostly {word}"
        return "no difference"

    def tell(self) -> str:
        """`-0.100 (lower in 5 of 5 seeds, p = 0.062)`."""
        word, count = ("lower", self.lower) if self.lower >= self.higher else ("higher", self.higher)
        seeds = counted(len(self.differences), "seed")
        return f"{self.mean:+.3f} ({word} in {count} of {seeds}, p = {self.p:.2g})"


def compare(a: Mapping[int, float], b: Mapping[int, float]) -> Paired:
    """Values by seed. Raises ValueError where the seeds differ."""
    if set(a) != set(b) or not a:
        raise ValueError(f"seeds differ: {sorted(a)} and {sorted(b)}")
    return Paired(differences=tuple(a[seed] - b[seed] for seed in sorted(a)))


def compare_trials(table: pd.DataFrame, parameter: str, a: object, b: object, metric: str) -> Paired:
    """Completed trials with `parameter` = a against those that have b and are equal otherwise, seed included.

    A parameter counts as equal, too, where one of the two trials does not have it (it is switched off there).

    Args:
        table: a sweep's own table.
        parameter: its Hydra key, as in the search space.
        metric: the column to compare.

    Raises:
        MissingColumn, NotNumeric: there is no such parameter, or the metric is not a column of numbers.
        AnalysisError: no two trials make a pair, or a trial has two partners.
    """
    column = PARAMETER + parameter
    if not is_trials_table(table) or column not in table.columns:
        raise MissingColumn(column, [str(name) for name in table.columns])
    values = numbers(table, metric).astype("float64")
    done = (table["status"] == "completed") & np.isfinite(values)
    told, values = table[done], values[done]
    others = [str(n) for n in table.columns if str(n).startswith(PARAMETER) and str(n) != column]
    # Only what both sides have can differ between them.
    left, right = told[told[column] == a], told[told[column] == b]
    shared = [name for name in others if left[name].notna().all() and right[name].notna().all()]
    firsts, seconds = (_by_key(rows, values, shared) for rows in (left, right))
    keys = [key for key in firsts if key in seconds]
    if not keys:
        raise AnalysisError(
            f"no pairs: no completed trial with {parameter} = {a!r} has a partner with {b!r} that is equal "
            "otherwise; a sweep with `method: grid` makes pairs"
        )
    return Paired(differences=tuple(firsts[key] - seconds[key] for key in keys))


def _by_key(rows: pd.DataFrame, values: pd.Series[Any], names: Sequence[str]) -> dict[Hashable, float]:
    found: dict[Hashable, float] = {}
    columns = [rows[name].tolist() for name in names]
    keys = list(zip(*columns, strict=True)) if names else [()] * len(rows)
    for key, row in zip(keys, rows.index, strict=True):
        if key in found:
            trial = rows.loc[row, "trial"]
            raise AnalysisError(f"trial {trial} has a twin that is equal in everything: pairs cannot be told")
        found[key] = float(values.loc[row])
    return found


def mean_and_range(values: Sequence[float]) -> str:
    """`3.264 [3.25, 3.28]`: mean, smallest and largest."""
    return f"{statistics.fmean(values):.3f} [{min(values):.3f}, {max(values):.3f}]"
