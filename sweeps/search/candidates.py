"""Choice of the next candidate from the records, without Ax and deterministic given the seed.

`optimizer` passes in the points of the Sobol sequence and of the surrogate, and gets back complete parameters
that are allowed and new.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Literal

from sweeps.errors import NothingToAsk
from sweeps.search.branches import Branches
from sweeps.search.determinism import stable_seed
from sweeps.search.encoding import Encoding
from sweeps.search.nested_design import (
    FEWEST,
    FIRST_TRIALS,
    SHARED_FIRST_TRIALS,
    by_new_options,
    first_stages,
    next_prefix,
)
from sweeps.search.outcomes import Outcomes, has_failed
from sweeps.search.prefixes import Prefixes
from sweeps.search.sequence import Point
from sweeps.search.stage_costs import StageCosts
from sweeps.search.stored import Stored
from sweeps.space.definition import Space, Value
from sweeps.trials.record import Trial

SOBOL_ATTEMPTS = 256
MOST = 0.5
"""Share from which the first stage is explored at the expense of later ones."""

NEXT_POINTS = 16
"""Points of the Sobol sequence among which a first stage with new options is found."""

NEGLIGIBLE = 0.05
"""Share of the first stage in a trial's cost, below which the search does not care whether it is shared."""


Joined = Callable[[Point], dict[str, Value] | None]  # a point, moved to what is stored; None: it cannot be


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Parameters for a new trial: the active ones, in the space's order, and who proposed them."""

    parameters: Mapping[str, Value]
    generator: Literal["sobol", "botorch"]


@dataclass(frozen=True, kw_only=True)
class RecordDelta:
    """New and changed records since the last call; with `reset`, all earlier state must be dropped first."""

    reset: bool
    changed: Sequence[Trial]
    added: Sequence[Trial]


class Candidates:
    """Records of a sweep, and the candidates to propose after them.

    Args:
        space: the search space.
        encoding: translates parameters to points on the axes of the search.
        outcomes: the metrics that count.
        sobol: returns the point at a position of the Sobol sequence, or None past its end.
        surrogate: yields points to try in turn, given the new trial's index and the candidates proposed in
            this call; yields none if the surrogate fails.

    Attributes:
        records: all observed records, in index order.
        points: by index, the encoded parameters of the records that lie in this space.
        origins: by the same index, that of the first record at this point: repeats with other seeds are
            one arm with several observations.
        prefixes: first stages that trials share.
        branches: trunks that trials share.
        costs: of the stages; None where trials share none.
    """

    def __init__(
        self,
        space: Space,
        encoding: Encoding,
        outcomes: Outcomes,
        *,
        sobol: Callable[[int], Point | None],
        surrogate: Callable[[int, Sequence[Candidate]], Iterator[Point]],
    ) -> None:
        self._search, self._has_baseline = space.search, space.baseline is not None
        self._domain, self._encoding, self._outcomes = encoding.domain, encoding, outcomes
        self._sobol, self._surrogate = sobol, surrogate
        self._configurations = self._domain.configurations()
        self.prefixes = Prefixes(space, encoding)
        self.branches = Branches(space, self.prefixes.stages, encoding)
        shared = self.prefixes.searched or self.branches.staged
        self.costs = StageCosts(self.prefixes.stages, encoding) if shared else None
        self._start_over()

    def observe(self, trials: Sequence[Trial]) -> RecordDelta:
        """Take in all records of the sweep, in index order, and return what is new since the last call."""
        follows = all(_may_follow(old, new) for old, new in zip(self.records, trials, strict=False))
        reset = not follows or len(trials) < len(self.records)
        if reset:
            self._start_over()
        known = len(self.records)
        changed = [new for old, new in zip(self.records, trials, strict=False) if old.status != new.status]
        self.records[:known] = trials[:known]
        for record in trials[known:]:
            self._add(record)
        return RecordDelta(reset=reset, changed=changed, added=trials[known:])

    def _start_over(self) -> None:
        self.records: list[Trial] = []
        self.points: dict[int, dict[str, Value]] = {}
        self.origins: dict[int, int] = {}
        self._first_at: dict[Hashable, int] = {}
        self._known_identities: set[Hashable] = set()

    def _add(self, record: Trial) -> None:
        """Add a record; an imported one outside this space is never proposed again, but not learned from."""
        self.records.append(record)
        self._known_identities.add(self._domain.identity(record.parameters))
        configuration = self._domain.configuration(record.parameters, repeat=record.generator == "confirm")
        if (point := self._encoding.encode(configuration)) is not None:
            self.points[record.trial] = point
            arm = frozenset(point.items())
            self.origins[record.trial] = self._first_at.setdefault(arm, record.trial)

    def known(self) -> list[Trial]:
        """Return the records that the search learns from."""
        return [record for record in self.records if record.trial in self.points]

    def waiting(self, found: Sequence[Candidate]) -> Iterator[tuple[int, dict[str, Value], list[str]]]:
        """Yield (index, point, missing metrics) of records, then candidates, without complete results."""
        for index, record in enumerate(self.records):
            if (missing := self._outcomes.missing(record)) and record.trial in self.points:
                yield index, self.points[record.trial], missing
        for index, candidate in enumerate(found, start=len(self.records)):
            if (point := self._encoding.encode(candidate.parameters)) is not None:
                yield index, point, list(self._outcomes.names.values())

    def next(self, found: Sequence[Candidate]) -> Candidate:
        """Return the candidate that follows the records and the candidates `found` so far in this call.

        Raises:
            NothingToAsk: the space is used up, or no new candidate was found in `SOBOL_ATTEMPTS` attempts.
        """
        index = len(self.records) + len(found)
        identities = self._known_identities | {
            self._domain.identity(candidate.parameters) for candidate in found
        }
        left = self._left(identities)
        if enough := self._has_enough_results(found):
            stored = self.stored()
            for point in self._surrogate(index, found):
                parameters = stored.snapped(self._encoding.decode(point))
                if self._is_new(parameters, identities):
                    return Candidate(parameters=parameters, generator="botorch")
        prefix = None if enough else self._designed(found)
        joined = None if prefix is None else partial(self.prefixes.joined, prefix.parameters)
        drawn = self._first_candidates(index, joined)
        if prefix is None and not enough and index and self._shares_ends():
            drawn = self._with_new_options(drawn, found)
        for parameters in drawn:
            if self._is_new(parameters, identities):
                return Candidate(parameters=parameters, generator="sobol")
        if left:
            chosen = left[stable_seed(self._search.seed, index, "left") % len(left)]
            return Candidate(parameters=chosen, generator="sobol")
        raise NothingToAsk(
            f"trial {index}: no new candidate in {SOBOL_ATTEMPTS} attempts; "
            "widen the ranges or loosen the parameter constraints"
        )

    def first_trials(self) -> int:
        """Return how many trials come before those of the surrogate, the baseline not counted."""
        if self._search.sobol is not None:
            return self._search.sobol
        return SHARED_FIRST_TRIALS if self._shares_ends() else FIRST_TRIALS

    def shares(self) -> bool:
        """Return whether the search weighs what a trial can share: a trunk, or a dear first stage."""
        return (bool(self.branches.staged) and self._search.method == "bayes") or self._shares_ends()

    def _shares_ends(self) -> bool:
        """Return whether trials can share a first stage that costs something."""
        bayes = self.prefixes.searched and self._search.method == "bayes"
        return bayes and self._first_share() >= NEGLIGIBLE

    def _first_share(self) -> float:
        return self.costs.first_share(self.known()) if self.costs is not None else 0.0

    def stored(self) -> Stored:
        """Return what new trials can start from, as the records say."""
        known = self.known()
        ends = self.prefixes.published(known).values() if self._shares_ends() else ()
        trunks = self.branches.stored(known) if self.shares() else ()
        return Stored(self.prefixes, self.branches, tuple(ends), tuple(trunks))

    def _designed(self, found: Sequence[Candidate]) -> Trial | None:
        """Return the record whose first stage the next first candidate shares; None for a fresh one."""
        if not self._shares_ends():
            return None
        keys = [self.prefixes.key(candidate.parameters) for candidate in found]
        options = max(self.prefixes.choices.values(), default=1)
        wanted = first_stages(self.first_trials(), self._first_share(), options)
        return next_prefix(wanted, self.prefixes, self._outcomes, self.known(), keys)

    def _left(self, identities: set[Hashable]) -> list[dict[str, Value]]:
        """Return the unused configurations of a small finite space; [] if they cannot be listed."""
        if self._configurations is None:
            return []
        left = [
            parameters for identity, parameters in self._configurations.items() if identity not in identities
        ]
        if not left:
            total = len(self._configurations)
            raise NothingToAsk(
                f"every configuration of the search space ({total}) was tried; add values to it"
            )
        return left

    def _has_enough_results(self, found: Sequence[Candidate]) -> bool:
        if self._search.method == "random" or not self._encoding.axes:
            return False
        live = sum(
            r.status not in ("failed", "abandoned") and r.generator not in ("baseline", "confirm")
            for r in self.records
        )
        complete = sum(r.generator != "confirm" and not self._outcomes.missing(r) for r in self.known())
        first = self.first_trials()
        return live + len(found) >= first and complete >= max(1, first // 2)

    def _first_candidates(self, count: int, joined: Joined | None) -> Iterator[dict[str, Value]]:
        """Yield the middle of the space unless there is a baseline, then the Sobol points from `count` on.

        With `joined`, each point is moved to what is stored.
        """
        if count == 0 and not self._has_baseline:
            yield self._domain.middle()
        if not self._encoding.axes:
            return
        # The first candidate is the baseline or the middle; the sequence is balanced only from its own start.
        start = max(count - 1, 0)
        for position in range(start, start + SOBOL_ATTEMPTS):
            if (point := self._sobol(position)) is None:
                return
            if joined is None:
                yield self._encoding.decode(point)
                continue
            filled = self._encoding.on_all_axes(point, stable_seed(self._search.seed, position, "inactive"))
            if (parameters := joined(filled)) is not None:
                yield parameters

    def _with_new_options(
        self, drawn: Iterator[dict[str, Value]], found: Sequence[Candidate]
    ) -> Iterator[dict[str, Value]]:
        """Yield the same parameters, of the next ones those first whose options were asked least.

        Where the first stage is most of the cost, the first few get the later stages of the first trial that
        has not failed, so that first stages can be compared.
        """
        live = (r for r in self.known() if r.status != "abandoned" and not has_failed(r))
        asked = [*(r.parameters for r in live), *(candidate.parameters for candidate in found)]
        prefixes = {self.prefixes.key(parameters): parameters for parameters in asked}
        choices = self.prefixes.choices
        following = by_new_options(islice(drawn, NEXT_POINTS), choices.keys(), prefixes.values())
        # An earlier trial may have taken the first stage of a point that comes only now.
        following.sort(key=lambda parameters: self.prefixes.key(parameters) in prefixes)
        points = [point for parameters in asked if (point := self._encoding.encode(parameters)) is not None]
        compared = max(FEWEST, *choices.values(), 0) if self._first_share() >= MOST else 0
        if points and len(prefixes) < compared:
            later = self._encoding.on_all_axes(points[0], stable_seed(self._search.seed, "inactive"))
            for parameters in filter(None, (self.prefixes.joined(each, later) for each in following)):
                point = self._encoding.encode(parameters)
                if point is not None and self.prefixes.separate(point, points):
                    yield parameters
        yield from following
        yield from drawn

    def _is_new(self, parameters: Mapping[str, Value], identities: set[Hashable]) -> bool:
        return self._domain.identity(parameters) not in identities and self._domain.allows(parameters)


def _may_follow(old: Trial, new: Trial) -> bool:
    """Return whether state built from the old record can be updated to the new one (not after a retry)."""
    if old is new:
        return True
    if (old.trial, old.generator, old.parameters) != (new.trial, new.generator, new.parameters):
        return False
    same_end = (old.status, old.failure, old.metrics) == (new.status, new.failure, new.metrics)
    return not old.finished or same_end
