"""The ask of a sweep with `fidelity:`: trials at the cheap levels first, then those at the target.

At each level the search is that of the level's own space: what is searched there is learned from its own
trials alone. Upwards goes only where the level below is best, as a trial of the level above; with several
objectives some points of its front. Where trials below say nothing about the target, they cost their own
compute and that of the trials that they propose.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from sweeps.errors import NothingToAsk, SpaceError
from sweeps.search.arrays import Floats, Mask
from sweeps.search.determinism import one_thread, silence, stable_seed
from sweeps.search.encoding import Encoding
from sweeps.search.front import best_by_front, most_added
from sweeps.search.optimizer.generation import Candidate, Optimizer
from sweeps.search.optimizer.optimum import Optimum, SpacePoints
from sweeps.search.optimizer.surrogate import SURROGATE_FAILURES
from sweeps.search.optimizer.transfer import BEST_TRIALS, NEAR_POINTS
from sweeps.search.outcomes import SURVIVAL, Outcomes
from sweeps.space.constraints import parse
from sweeps.space.definition import Space, Value
from sweeps.space.domain import Domain
from sweeps.space.fidelity import Ladder
from sweeps.space.stages import Stages
from sweeps.trials.record import Trial

log = logging.getLogger(__name__)

LEAST_RESULTS = 3
"""Results of a level from which its best are trials of the next."""


class FidelityOptimizer:
    """Generator of candidates for one sweep with fidelities; the same records give the same candidate.

    Raises:
        SpaceError: Ax cannot search this space, or the cost of a trial at each level is not known.
    """

    def __init__(self, space: Space) -> None:
        self._seed, self._ladder = space.search.seed, Ladder(space)
        self._target = len(self._ladder.costs) - 1
        self._spaces = [self._ladder.at(level) for level in range(self._target + 1)]
        # The best of the level below are more trials than the first design has.
        planned = self._ladder.planned
        more = [self._ladder.promoted * any(planned[:level]) for level in range(self._target + 1)]
        self._optimizers = [
            Optimizer(each, more_first=count) for each, count in zip(self._spaces, more, strict=True)
        ]
        self._outcomes = Outcomes(space)
        self._bounds = [parse(text) for text in space.outcome_constraints]
        self._records: list[list[Trial]] = [[] for _ in self._spaces]
        stages = Stages(space)
        trunks = [stages.trunk(stage) for stage in stages.with_trunk]
        lengths = {trunk.length for trunk in trunks if trunk is not None}
        self._goes_on = all(each.parameter in lengths for each in space.fidelity)

    @property
    def first_at_target(self) -> int:
        """Return how many trials at the target come before those of the surrogate, without a baseline."""
        return self._optimizers[-1].first_trials

    @property
    def first_trials(self) -> int:
        """Return the same with those below the target."""
        return sum(self._ladder.planned) + self.first_at_target

    def observe(self, trials: Sequence[Trial]) -> None:
        """Take in all records of the sweep, in index order."""
        self._records = [[] for _ in self._spaces]
        for record in trials:
            if (level := self._ladder.level(record.parameters)) is not None:
                self._records[level].append(record)

    def generate(self, count: int = 1) -> list[Candidate]:
        """Return one candidate that no observed trial has. Raises NothingToAsk: the target has none left."""
        for level, planned in enumerate(self._ladder.planned):
            if sum(r.status != "abandoned" for r in self._records[level]) < planned:
                with suppress(NothingToAsk):  # fewer configurations than were planned: all are tried
                    return self._generate_at(level, count)
        return self._generate_at(self._target, count)

    def _generate_at(self, level: int, count: int) -> list[Candidate]:
        domain = Domain(self._spaces[level])
        tried = {domain.identity(record.parameters) for record in self._records[level]}
        promoted = self._promoted(level)
        best = None if promoted is None else self._best_below(level, promoted)
        if best is not None and domain.identity(best) not in tried and domain.allows(best):
            return [self._candidate(level, Candidate(parameters=best, generator="botorch"))]
        optimizer = self._optimizers[level]
        optimizer.observe(self._records[level])
        return [self._candidate(level, each) for each in optimizer.generate(count)]

    def optimum(self, candidates: Iterable[int], *, more: int) -> Optimum | None:
        """Return what the surrogate says of the best of some trials at the target: see `Optimizer`."""
        self._optimizers[-1].observe(self._records[-1])
        return self._optimizers[-1].optimum(candidates, more=more)

    def _candidate(self, level: int, found: Candidate) -> Candidate:
        return found if level == self._target else replace(found, generator="fidelity")

    def _promoted(self, level: int) -> list[Trial] | None:
        """Return the level's trials that the level below has proposed; None: it proposes no more.

        At the target they come before those of a surrogate, and have its generator; below, the first trials
        have their place or none.
        """
        records = self._records[level]
        if level == self._target:
            records = [record for record in records if record.generator == "botorch"]
        return records if len(records) < self._ladder.promoted else None

    def _best_below(self, level: int, promoted: Sequence[Trial]) -> dict[str, Value] | None:
        """Return the best parameters by the results of the nearest lower level that has enough of them.

        With several objectives they lie on the front, where they add most to those that were promoted.
        """
        for lower in reversed(range(level)):
            self._optimizers[lower].observe(self._records[lower])
            points = self._optimizers[lower].points()
            results = [
                record
                for record in self._records[lower]
                if record.trial in points and not self._outcomes.missing(record)
            ]
            if len(results) < max(LEAST_RESULTS, self._ladder.planned[lower] // 2):
                continue
            try:
                with one_thread(), silence("ax"):
                    found = self._best_of(lower, results, points, promoted)
            except SURROGATE_FAILURES as error:
                log.warning(
                    "the best of the level below is left out, because its surrogate failed: %s", error
                )
                return None
            return None if found is None else {**found, **Domain(self._spaces[level]).fixed}
        return None

    def _best_of(
        self,
        level: int,
        results: Sequence[Trial],
        points: Mapping[int, Mapping[str, Value]],
        promoted: Sequence[Trial],
    ) -> dict[str, Value] | None:
        """Return the parameters at a level that its surrogate takes for the best, near its best trials.

        Raises:
            one of SURROGATE_FAILURES: the fit failed.
        """
        encoding = Encoding(Domain(self._spaces[level]))
        seed = stable_seed(self._seed, level, "below") % 2**31
        signs = {name: 1.0 if low else -1.0 for name, low in self._outcomes.lower_is_better.items()}
        measured = [self._outcomes.means(record) for record in results]
        costs = np.array([[sign * each[name] for name, sign in signs.items()] for each in measured])
        ranked = [results[at] for at in best_by_front(costs, BEST_TRIALS)]
        tried = [dict(points[record.trial]) for record in ranked]
        candidates = [dict(record.parameters) for record in ranked]
        if not self._goes_on:
            near = SpacePoints(encoding, np.random.default_rng(seed), seed).near(tried, NEAR_POINTS)
            tried += near
            candidates += map(encoding.decode, near)
        fixed = encoding.domain.fixed
        before = [encoding.encode({**record.parameters, **fixed}) for record in promoted]
        others = [encoding.on_all_axes(point, seed) for point in before if point is not None]
        means = self._optimizers[level].view().means([*tried, *others])
        costs = np.stack([sign * means[name] for name, sign in signs.items()], axis=1)
        allowed = np.flatnonzero(self._within_constraints(means)[: len(tried)])
        if not len(allowed):  # a bound for the target that the level below does not reach
            allowed = np.arange(len(tried))
        chosen = most_added(costs[allowed], costs[len(tried) :])
        return None if chosen is None else candidates[allowed[chosen]]

    def _within_constraints(self, means: Mapping[str, Floats]) -> Mask:
        """Return for each point whether its predicted results hold the outcome constraints, and survive."""
        within = means[SURVIVAL] >= 0.5 if SURVIVAL in means else np.ones(len(means["m0"]), dtype=bool)
        metrics = {metric: means[name] for metric, name in self._outcomes.names.items()}
        for bound in self._bounds:
            within &= sum(f * metrics[name] for name, f in bound.coefficients.items()) <= bound.bound
        return within


def asker(space: Space) -> Optimizer | FidelityOptimizer:
    """Return the generator of a sweep's candidates. Raises SpaceError: see both."""
    return FidelityOptimizer(space) if space.fidelity else Optimizer(space)


def require_searchable(space: Space) -> int:
    """Return how many trials come before the surrogate's; `sweep init` calls it before compute is spent.

    Raises:
        SpaceError: Ax would refuse the space.
    """
    optimizer = asker(space)
    try:
        optimizer.generate()  # constraints that leave nothing to find only show when a point is drawn
    except NothingToAsk as error:
        raise SpaceError(str(error), file=space.name, key="parameters") from None
    return optimizer.first_trials if isinstance(optimizer, Optimizer) else optimizer.first_at_target
