"""First design of a sweep whose trials share a stage: few first stages, several later ones on the best."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set

from sweeps.search.outcomes import Outcomes
from sweeps.search.shared_stages import FEWEST, SharedStages
from sweeps.space.definition import Value
from sweeps.trials.record import Trial, has_failed

FIRST_TRIALS = 6
"""Trials before the surrogate proposes, unless the space says how many.

On landscapes of the real trainer the loss after 15 trials is 0.009 lower than with 12, and after 30 it is
not higher (benchmarks/RESULTS.md).
"""

SHARED_FIRST_TRIALS = 8
"""The same where trials share a first stage.

In simulation a loss is reached for 0.7 to 1.0 of the compute that 12 take. A plain search gets stuck more
often with 8 (docs/log.md).
"""


def first_stages(trials: int, share: float, options: int = 1) -> int:
    """Return how many of the design's trials have a first stage of their own.

    Args:
        share: of the first stage in the cost of a trial, from 0 to 1: the less it saves, the more of them
            explore the first stage too.
        options: the most that a choice of the first stage has: each is tried.
    """
    return min(trials, max(FEWEST, options, round(trials * (1.0 - share))))


def by_new_options(
    drawn: Iterable[dict[str, Value]], choices: Set[str], asked: Iterable[Mapping[str, Value]]
) -> list[dict[str, Value]]:
    """Return drawn parameters, those first with most options that were never asked, then those asked least.

    A few points of a Sobol sequence leave options of a choice out, which the surrogate may then take for as
    good as the others that were tried, and not try for the rest of the sweep.

    Args:
        drawn: parameters, in the order of the sequence, which remains among equals.
        choices: names of unordered parameters.
        asked: parameters of trials that were asked; of a trial for each first stage, where these are counted.
    """
    counts = Counter((name, parameters[name]) for parameters in asked for name in choices & parameters.keys())

    def order(parameters: Mapping[str, Value]) -> tuple[int, float]:
        found = [counts[name, parameters[name]] for name in choices & parameters.keys()]
        # The mean, as a branch of a condition with fewer choices would have the smaller sum.
        return -found.count(0), statistics.fmean(found) if found else 0.0

    return sorted(drawn, key=order)


def next_shared(
    wanted: int, shared: SharedStages, outcomes: Outcomes, records: Sequence[Trial], found: Iterable[Hashable]
) -> Trial | None:
    """Return the published record whose first stage the next trial of the design starts from.

    Args:
        wanted: number of different first stages in the design.
        found: first stages (`SharedStages.identity`) of candidates that have no record yet.

    Returns:
        None for a fresh first stage: too few were asked, or none is published (each of many workers then
        begins with its own).
    """
    asked = [r for r in records if r.status != "abandoned" and not has_failed(r) and r.generator != "confirm"]
    published = shared.stored_ends(records)
    keys = [shared.identity(record.parameters) for record in asked]
    if not published or len({*keys, *found}) < wanted:
        return None
    scores = _scores(outcomes, asked, keys)
    best = min(published, key=lambda key: (scores.get(key, math.inf), keys.count(key)))
    return published[best]


def _scores(
    outcomes: Outcomes, records: Sequence[Trial], keys: Sequence[Hashable]
) -> Mapping[Hashable, float]:
    """Return the best result at each first stage: its mean rank over the objectives, lower is better."""
    complete = [
        (key, means)
        for record, key in zip(records, keys, strict=True)
        if outcomes.lower_is_better.keys() <= (means := outcomes.means(record)).keys()
    ]
    scores: dict[Hashable, float] = {}
    for key, means in complete:
        rank = math.fsum(
            sum(
                (other[name] < means[name]) if lower else (other[name] > means[name]) for _, other in complete
            )
            for name, lower in outcomes.lower_is_better.items()
        )
        scores[key] = min(rank, scores.get(key, math.inf))
    return scores
