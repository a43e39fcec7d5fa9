"""Standard error of a mean loss over sequences of text, in the trainer's metrics and in `sweep best`."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence


def standard_error(values: Sequence[float], groups: Sequence[float] = ()) -> float:
    """Return the standard error of the mean of values, of which those of one group are alike.

    With G groups of n values it is √(G/(G-1) Σ_g (Σ_i∈g e_i)²)/n, where e_i is a value less the mean (Liang
    and Zeger, Biometrika 73, 1986); with one value in each group that is s/√n. Sequences of one document are
    such a group: on the standard library s/√n was a third to a half of the true error.

    Args:
        values: two or more.
        groups: label of each value's group; empty, or one for all: each value is its own.
    """
    if independent(len(values), groups) == len(values):
        return statistics.stdev(values) / math.sqrt(len(values))
    mean, sums = statistics.fmean(values), defaultdict[float, float](float)
    for group, value in zip(groups, values, strict=True):
        sums[group] += value - mean
    count = len(sums)
    return math.sqrt(count / (count - 1) * math.fsum(each**2 for each in sums.values())) / len(values)


def independent(count: int, groups: Sequence[float]) -> int:
    """Return how many of so many values are independent of one another: their groups, if there are two."""
    found = len(set(groups))
    return found if found > 1 else count
