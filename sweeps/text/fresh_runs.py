"""Configurations that fail in a confirmation, by tables and by records alike."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import TypeVar

MIN_RUNS = 2
"""Least number of fresh runs that confirm a configuration."""

Configuration = TypeVar("Configuration", bound=Hashable)


def failed_configurations(runs: Sequence[tuple[Configuration, Hashable, bool | None]]) -> set[Configuration]:
    """Return the configurations that failed with a fresh seed, and did not do better when planned anew.

    `sweep confirm --again` may follow a mistake of the program that is mended. Its seeds are new, and in its
    first two rounds all finalists have the same. In the plan in which it failed, a configuration has no two
    such results after the failure: it gets no more seeds. Those that ran beside the failed one are its own
    alone until others take its place, and these begin with the seed of the failure.

    Args:
        runs: configuration, seed, and whether it has a result (True), failed by its own parameters (False) or
            neither (None), of each fresh run, in the order of their trials.
    """
    ends: dict[Hashable, int] = {}  # position of the last run of each seed
    holders: dict[Hashable, set[Configuration]] = defaultdict(set)
    for position, (configuration, seed, _) in enumerate(runs):
        ends[seed] = position
        holders[seed].add(configuration)
    failed: dict[Configuration, int] = {}
    later: Counter[Configuration] = Counter()
    for position, (configuration, seed, result) in enumerate(runs):
        if result is False:
            failed[configuration] = ends[seed]
            later[configuration] = 0
        elif result and position > failed.get(configuration, position) and len(holders[seed]) > 1:
            later[configuration] += 1
    return {configuration for configuration in failed if later[configuration] < MIN_RUNS}
