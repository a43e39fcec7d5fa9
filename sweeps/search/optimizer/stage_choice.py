"""Choice between a fresh candidate and one that starts from a published first stage."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.quasirandom import SobolEngine

from sweeps.search.candidates import Candidate, Candidates
from sweeps.search.encoding import Encoding
from sweeps.search.optimizer.acquisition import ModelRows, OpenAcquisition, Point
from sweeps.search.optimizer.surrogate import SURROGATE_FAILURES
from sweeps.search.stage_costs import Costs
from sweeps.space.definition import Value
from sweeps.trials.record import Trial

LATER_POINTS = 64
"""Sobol points of the later stages, at which each published first stage is judged."""

FRESH_POINTS = 1024
"""Sobol points of all stages, among which the best fresh one is found where the maximiser is none."""

PLAIN_EVERY = 4
"""One in so many candidates of the surrogate ignores costs: expected improvement per cost alone can be
arbitrarily bad, since it never pays for an expensive region (PBGI, arXiv 2406.20062)."""

Filled = Callable[[Point, int], dict[str, Value]]


@dataclass(frozen=True, kw_only=True)
class Option:
    """A possible candidate, its point on all axes, and what it would cost now."""

    parameters: Mapping[str, Value]
    point: Point
    cost: float


class StageChoice:
    """Weighs fresh candidates and cached ones by acquisition value per cost that is still to be paid.

    Expected improvement per remaining cost with a cache is EEIPU's (arXiv 2411.03731); the comparison of two
    optimised candidates in one function, the separation and the share of plain improvement are ours.

    Args:
        candidates: with the records.
        encoding: of the space.
        filled: returns a point on all axes, given one on the active axes and the index of its trial.
        costs: of the stages.
        found: candidates that have no record yet.
    """

    def __init__(
        self,
        candidates: Candidates,
        encoding: Encoding,
        filled: Filled,
        costs: Costs,
        found: Sequence[Candidate] = (),
    ) -> None:
        self._encoding, self._prefixes = encoding, candidates.prefixes
        self._filled, self._costs = filled, costs
        self._published = candidates.published()
        self._keys = {self._prefixes.of(record.parameters) for record in self._published}
        self._points = candidates.points
        asked = [(record.generator, record.parameters) for record in candidates.known()]
        asked += [(candidate.generator, candidate.parameters) for candidate in found]
        self._asked = [parameters for _, parameters in asked]
        first = (position for position, (generator, _) in enumerate(asked) if generator == "botorch")
        self._designed = next(first, len(asked))

    def points(
        self, adapter: Any, fresh: Point, index: int, taken: Sequence[Point], *, plain: bool, seed: int
    ) -> Iterator[Point]:
        """Yield points to try in turn, the best first.

        Args:
            adapter: Ax's, whose acquisition is an `OpenAcquisition` that found `fresh`.
            fresh: maximiser of the acquisition function.
            index: of the new trial.
            taken: points of all trials.
            plain: whether costs do not count.
            seed: of the Sobol points.
        """
        if not self._published:
            return
        rows, acquisition = ModelRows(adapter), adapter.generator._acquisition
        options = [self._fresh(fresh, index)]
        if self._fresh_is_due(options[0]):
            yield from self._apart(rows, acquisition, fresh, index, seed)
        cached = self._cached(rows, acquisition, index, seed)
        separated = (o for o in cached if self._prefixes.separate(self._active(o), taken))
        options += [option for option in (next(separated, None),) if option is not None]
        inputs = rows.rows([option.point for option in options])
        if not self._is_cached(options[0]):
            inputs[0] = acquisition.found[0]
        values = acquisition.values(inputs).tolist()
        scores = [v - (0.0 if plain else math.log(o.cost)) for v, o in zip(values, options, strict=True)]
        if self._is_cached(options[0]) and not self._prefixes.separate(self._active(options[0]), taken):
            scores[0] = -math.inf
        for best in sorted(range(len(options)), key=lambda at: -scores[at]):
            yield self._active(options[best])

    def _fresh(self, point: Point, index: int) -> Option:
        """Return the maximiser, moved onto a published first stage that it nearly has."""
        parameters = self._prefixes.snapped(self._encoding.decode(point), self._published)
        return self._option(parameters, index)

    def _fresh_is_due(self, option: Option) -> bool:
        """Return whether published first stages have had as much compute as a fresh trial costs.

        Else a surrogate that takes ripples for noise hopes for a little more on the best of them for ever.
        """
        costs = math.fsum(self._costs(option.parameters))
        return self._since_fresh() >= costs

    def _since_fresh(self) -> float:
        """Return what the surrogate's candidates cost since its last one with a first stage of its own."""
        first_with: dict[Hashable, int] = {}
        for position, parameters in enumerate(self._asked):
            first_with.setdefault(self._prefixes.of(parameters), position)
        spent = 0.0
        for position in reversed(range(self._designed, len(self._asked))):
            parameters = self._asked[position]
            if first_with[self._prefixes.of(parameters)] == position:
                break
            spent += math.fsum(self._costs(parameters)[1:])
        return spent

    def _apart(
        self, rows: ModelRows, acquisition: OpenAcquisition, fresh: Point, index: int, seed: int
    ) -> Iterator[Point]:
        """Yield the maximiser, or the best Sobol point, whose first stage is not nearly a published one."""
        option = self._option(self._encoding.decode(fresh), index)
        if not self._is_near(option):
            yield self._active(option)
            return
        inputs = rows.rows(drawn := self._later(seed, FRESH_POINTS))
        for at in torch.argsort(acquisition.values(inputs), descending=True, stable=True).tolist():
            option = self._option(self._encoding.decode(drawn[at]), index)
            if not self._is_near(option) and self._encoding.domain.allows(option.parameters):
                break
        else:
            return
        try:
            fixed = rows.columns(inputs[at], self._prefixes.axes)
            yield self._active(
                self._option(self._encoding.decode(rows.point(acquisition.optimize_at(fixed)[0])), index)
            )
        except SURROGATE_FAILURES:
            pass  # the Sobol point is there
        yield self._active(option)

    def _is_near(self, option: Option) -> bool:
        """Return whether a published first stage is nearly that of the option."""
        return (
            self._prefixes.of(self._prefixes.snapped(dict(option.parameters), self._published)) in self._keys
        )

    def _cached(
        self, rows: ModelRows, acquisition: OpenAcquisition, index: int, seed: int
    ) -> Iterator[Option]:
        """Yield the maximiser on the best published first stage, then Sobol points on any, the best first."""
        later = self._later(seed, LATER_POINTS)
        firsts = [self._filled(self._points[record.trial], record.trial) for record in self._published]
        grid = [
            (record, {**point, **{axis: first[axis] for axis in self._prefixes.axes}})
            for record, first in zip(self._published, firsts, strict=True)
            for point in later
        ]
        inputs = rows.rows([point for _, point in grid])
        order = torch.argsort(acquisition.values(inputs), descending=True, stable=True).tolist()
        ranked = (
            (at, option)
            for at in order
            if (option := self._joined(grid[at][0], grid[at][1], index)) is not None
        )
        if (best := next(ranked, None)) is None:
            return
        fixed = rows.columns(inputs[best[0]], self._prefixes.axes)
        try:
            found = self._filled(rows.point(acquisition.optimize_at(fixed)[0]), index)
            if (option := self._joined(grid[best[0]][0], found, index)) is not None:
                yield option
        except SURROGATE_FAILURES:
            pass  # the Sobol points are there
        yield best[1]
        yield from (option for _, option in ranked)

    def _later(self, seed: int, count: int) -> list[Point]:
        """Return Sobol points on all axes."""
        axes = [axis.name for axis in self._encoding.axes]
        engine = SobolEngine(len(axes), scramble=True, seed=seed)  # type: ignore[no-untyped-call]
        shares = engine.draw(count, dtype=torch.double)
        return [self._encoding.placed(dict(zip(axes, row, strict=True))) for row in shares.tolist()]

    def _joined(self, prefix: Trial, point: Point, index: int) -> Option | None:
        parameters = self._prefixes.joined(prefix.parameters, point)
        if parameters is None or not self._encoding.domain.allows(parameters):
            return None
        return self._option(parameters, index)

    def _option(self, parameters: Mapping[str, Value], index: int) -> Option:
        point = self._filled(self._encoding.encode(parameters) or {}, index)
        costs = self._costs(parameters)
        cached = self._prefixes.of(parameters) in self._keys
        return Option(parameters=parameters, point=point, cost=math.fsum(costs[1:] if cached else costs))

    def _is_cached(self, option: Option) -> bool:
        return self._prefixes.of(option.parameters) in self._keys

    def _active(self, option: Option) -> Point:
        return self._encoding.encode(option.parameters) or {}
