"""The ask of a sweep with `fidelity:`: trials at the cheap levels first, then those at the target.

At each level the search is that of the level's own space: what is searched there is learned from its own
trials alone. Upwards goes only where the level below is best, as a trial of the level above. So trials below
the target that say nothing about it cost what they cost, and one trial more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from sweeps.errors import NothingToAsk, SpaceError
from sweeps.search.determinism import stable_seed
from sweeps.search.encoding import Encoding
from sweeps.search.optimizer.generation import Candidate, Optimizer
from sweeps.search.optimizer.optimum import Optimum
from sweeps.search.optimizer.surrogate import SURROGATE_FAILURES
from sweeps.search.optimizer.transfer import SourceModel
from sweeps.search.outcomes import Outcomes
from sweeps.space.definition import Result, Source, Space, Value
from sweeps.space.domain import Domain
from sweeps.space.fidelity import Ladder
from sweeps.space.stages import Stages
from sweeps.trials.record import Trial

log = logging.getLogger(__name__)

LEAST_RESULTS = 3
"""Results of a level from which its best is a trial of the next."""


class FidelityOptimizer:
    """Generator of candidates for one sweep with fidelities; the same records give the same candidate.

    Raises:
        SpaceError: Ax cannot search this space, or the cost of a trial at each level is not known.
    """

    def __init__(self, space: Space) -> None:
        self._seed, self._ladder = space.search.seed, Ladder(space)
        self._target = len(self._ladder.costs) - 1
        self._spaces = [self._ladder.at(level) for level in range(self._target + 1)]
        # The best of the level below is a trial more than the first design has.
        self._optimizers = [Optimizer(each, more_first=min(at, 1)) for at, each in enumerate(self._spaces)]
        self._outcomes = Outcomes(space)
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
        best = self._best_below(level) if self._wants_promoted(level) else None
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

    def _wants_promoted(self, level: int) -> bool:
        """Return whether the level has no trial yet that the level below has proposed.

        At the target it is the first by a surrogate; below, a first trial has its place or none.
        """
        if level == self._target:
            return not any(record.generator == "botorch" for record in self._records[level])
        return not self._records[level]

    def _best_below(self, level: int) -> dict[str, Value] | None:
        """Return the best parameters by the results of the nearest lower level that has enough of them."""
        (metric,) = self._outcomes.lower_is_better
        for lower in reversed(range(level)):
            domain, results = Domain(self._spaces[lower]), []
            for record in self._records[lower]:
                if (
                    metric in (means := self._outcomes.means(record))
                    and domain.misfit(record.parameters) is None
                ):
                    searched = {n: v for n, v in record.parameters.items() if n in domain.searched}
                    results.append(Result(parameters=searched, value=means[metric]))
            if len(results) < max(LEAST_RESULTS, self._ladder.planned[lower] // 2):
                continue
            source = Source(url=f"level {lower}", results=tuple(results))
            encoding = Encoding(Domain(self._spaces[level]))
            seed = stable_seed(self._seed, lower, "below") % 2**31
            try:
                model = SourceModel(source, encoding, self._outcomes, seed, tried_only=self._goes_on)
                return model.best(self._spaces[level].baseline or {})
            except SURROGATE_FAILURES as error:
                log.warning(
                    "the best of the level below is left out, because its surrogate failed: %s", error
                )
                return None
        return None


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
