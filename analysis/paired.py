"""Two conditions compared seed by seed. Pure.

The sign test asks how often one of the two is lower, and nothing of how the losses are distributed. With five
seeds its smallest two-sided p is 2/32 = 0.0625: five of five is all that five seeds can say.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.stats import binomtest


@dataclass(frozen=True, kw_only=True)
class Paired:
    """Differences a - b by seed; a negative one says that a's loss is lower."""

    differences: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean difference."""
        return statistics.fmean(self.differences)

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
        return float(binomtest(self.lower, decided).pvalue) if decided else 1.0

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
        return f"{self.mean:+.3f} ({word} in {count} of {len(self.differences)} seeds, p = {self.p:.2g})"


def compare(a: Mapping[int, float], b: Mapping[int, float]) -> Paired:
    """Values by seed. Raises ValueError where the seeds differ."""
    if set(a) != set(b) or not a:
        raise ValueError(f"seeds differ: {sorted(a)} and {sorted(b)}")
    return Paired(differences=tuple(a[seed] - b[seed] for seed in sorted(a)))


def mean_and_range(values: Sequence[float]) -> str:
    """`3.264 [3.25, 3.28]`: mean, smallest and largest."""
    return f"{statistics.fmean(values):.3f} [{min(values):.3f}, {max(values):.3f}]"
