"""Choice between a fresh candidate and those that start from a stored checkpoint.

Expected improvement per remaining cost with a cache is EEIPU's (arXiv 2411.03731). The comparison of all
candidates in one function, the separation and the share of plain improvement are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from sweeps.search.encoding import Encoding
from sweeps.search.optimizer.rows import ModelRows
from sweeps.search.optimizer.surrogate import SURROGATE_FAILURES
from sweeps.search.sequence import Point
from sweeps.search.shared_stages import RemainingCost, SharedStages, Start, Starts
from sweeps.search.stage_costs import Costs
from sweeps.space.definition import Value

LATER_POINTS = 64
"""Sobol points of the later stages, at which each stored first stage is judged."""

BRANCH_POINTS = 16
"""Sobol points of a later stage's length and decay, at which each stored trunk of it is judged."""

TRUNK_ROWS = 256
"""Points at which all starts together are judged where stages have trunks, of which there soon are many: else
that takes as long as all the rest of an ask."""

FEWEST_POINTS = 4
"""Points at which each start is judged, however many there are."""

FRESH_POINTS = 1024
"""Sobol points of all stages, among which the best fresh one is found where the maximiser is none."""

FRESH_SEPARATION = 0.08
"""Share of some range by which a first stage that is due differs from every stored one. Under noise the
maximiser often lies just outside of `SEPARATION` of a stored one, where another tells little that is new."""

PLAIN_EVERY = 4
"""One in so many candidates of the surrogate ignores costs: expected improvement per cost alone can be
arbitrarily bad, since it never pays for an expensive region (PBGI, arXiv 2406.20062)."""

OnAllAxes = Callable[[Point, int], dict[str, Value]]


@dataclass(frozen=True, kw_only=True)
class Option:
    """A possible candidate, its point on all axes, what it would cost now, and whether that is a part."""

    parameters: Mapping[str, Value]
    point: Point
    cost: float
    is_cached: bool


class StageChoice:
    """Ranks the fresh candidate and cached ones by acquisition value per cost that is still to be paid.

    Args:
        adapter: Ax's, whose acquisition is an `OpenAcquisition` that has been optimised.
        on_all_axes: returns a point on all axes, given one on the active axes and the index of its trial.
        points: by index, the encoded parameters of the records.
        asked: generator and parameters of the records, then of candidates that have no record yet.
        plain: whether costs do not count.
    """

    def __init__(
        self,
        adapter: Any,
        encoding: Encoding,
        on_all_axes: OnAllAxes,
        shared: SharedStages,
        starts: Starts,
        costs: Costs,
        *,
        points: Mapping[int, Point],
        asked: Sequence[tuple[str, Mapping[str, Value]]],
        index: int,
        plain: bool,
        seed: int,
    ) -> None:
        self._rows, self._acquisition_function = ModelRows(adapter), adapter.generator._acquisition
        self._encoding, self._on_all_axes, self._points = encoding, on_all_axes, points
        self._shared, self._starts = shared, starts
        self._remaining = RemainingCost(shared, costs, starts)
        self._asked, self._index, self._plain, self._seed = asked, index, plain, seed

    def ranked(self, fresh: Point, others: Sequence[Point]) -> Iterator[Point]:
        """Yield points to try in turn, the best first; none where nothing is stored.

        Args:
            others: points of all trials, of which the chosen one is no near copy.
        """
        if not self._starts:
            return
        # The fresh one, moved onto a stored checkpoint that it nearly has.
        options = [self._option(self._starts.snap(self._encoding.decode(fresh)))]
        # A first stage of its own is due once the stored ones have had as much compute as a fresh trial
        # costs: else a surrogate that takes ripples for noise hopes for a little more on the best of them for
        # ever.
        if self._spent_since_fresh() >= self._remaining.full(options[0].parameters):
            yield from self._apart_from_stored(fresh)
        for cached in self._cached():
            separate = (o for o in cached if self._shared.is_separate(self._active(o), others))
            options += [option for option in (next(separate, None),) if option is not None]
        inputs = self._rows.rows([option.point for option in options])
        if not options[0].is_cached:
            inputs[0] = self._acquisition_function.found[0]
        values = self._acquisition_function.values(inputs).tolist()
        prices = [0.0 if self._plain else math.log(option.cost) for option in options]
        scores = [value - price for value, price in zip(values, prices, strict=True)]
        if options[0].is_cached and not self._shared.is_separate(self._active(options[0]), others):
            scores[0] = -math.inf
        for best in sorted(range(len(options)), key=lambda at: -scores[at]):
            yield self._active(options[best])

    # ---- a fresh first stage that is due

    def _spent_since_fresh(self) -> float:
        """Return what the surrogate's candidates cost since its last one with a first stage of its own."""
        first_with: dict[Hashable, int] = {}
        for position, (_, parameters) in enumerate(self._asked):
            for key in self._shared.identities(parameters):
                first_with.setdefault(key, position)
        by_surrogate = (at for at, (generator, _) in enumerate(self._asked) if generator == "botorch")
        designed = next(by_surrogate, len(self._asked))
        spent = 0.0
        for position in reversed(range(designed, len(self._asked))):
            _, parameters = self._asked[position]
            keys = [key for key in self._shared.identities(parameters) if first_with[key] < position]
            if not keys:
                break
            spent += self._remaining.at_most(parameters, keys)
        return spent

    def _apart_from_stored(self, fresh: Point) -> Iterator[Point]:
        """Yield the maximiser, or the best Sobol point, whose first stage is far from the stored ones."""
        option = self._option(self._encoding.decode(fresh))
        if not self._is_near_stored(option):
            yield self._active(option)
            return
        inputs = self._rows.rows(drawn := self._sobol_points(FRESH_POINTS))
        for at in torch.argsort(
            self._acquisition_function.values(inputs), descending=True, stable=True
        ).tolist():
            option = self._option(self._encoding.decode(drawn[at]))
            if not self._is_near_stored(option) and self._encoding.domain.allows(option.parameters):
                break
        else:
            return
        if (tuned := self._maximiser(inputs[at], self._shared.axes)) is not None:
            yield self._active(self._option(self._encoding.decode(tuned)))
        yield self._active(option)

    def _maximiser(self, row: Tensor, held: frozenset[str]) -> Point | None:
        """Return the best point with the row's values on the axes that are held; None: the search failed."""
        try:
            found = self._acquisition_function.optimize_at(self._rows.columns(row, held))
            return self._rows.point(found[0])
        except SURROGATE_FAILURES:
            return None  # the Sobol points are there

    def _is_near_stored(self, option: Option) -> bool:
        return self._starts.is_near_first(dict(option.parameters), FRESH_SEPARATION)

    # ---- candidates that start from a checkpoint

    def _cached(self) -> Iterator[Iterator[Option]]:
        """Yield options on the ends and trunks of the first stage, then on trunks of later ones."""
        points = self._sobol_points(LATER_POINTS)
        yield self._polished([*self._starts.ends, *self._starts.of_first_stage], points)
        later = self._by_value(self._starts.of_later_stages, points[:BRANCH_POINTS])
        yield (option for _, _, option in later)

    def _polished(self, starts: Sequence[Start], points: Sequence[Point]) -> Iterator[Option]:
        """Yield the maximiser on the best start, then Sobol points on any, the best first.

        What is shared, and all lengths of stages with a trunk, are held: they are what the cost depends on.
        """
        options = self._by_value(starts, points)
        if (best := next(options, None)) is None:
            return
        start, row, option = best
        shared = self._shared.axes | self._shared.axes_of(start.trunk)
        if (tuned := self._maximiser(row, shared | self._shared.lengths)) is not None:
            polished = self._starting_at(start, self._on_all_axes(tuned, self._index))
            if polished is not None:
                yield polished
        yield option
        yield from (option for _, _, option in options)

    def _by_value(
        self, starts: Sequence[Start], points: Sequence[Point]
    ) -> Iterator[tuple[Start, Tensor, Option]]:
        """Yield each start with its row and option at each point, the best first.

        Where no stage has a trunk, all have the same cost but for the later stages' own lengths, and rank by
        the acquisition function alone.
        """
        if not starts:
            return
        if self._shared.trunks:
            points = points[: max(FEWEST_POINTS, TRUNK_ROWS // len(starts))]
        grid = []
        for start in starts:
            whole = self._on_all_axes(self._points[start.record.trial], start.record.trial)
            shared = {axis: whole[axis] for axis in self._shared.axes_of(start.trunk)}
            grid += [(start, {**point, **shared}) for point in points]
        inputs = self._rows.rows([point for _, point in grid])
        values = self._acquisition_function.values(inputs)
        if self._shared.trunks and not self._plain:
            joined = [self._shared.join(s.record.parameters, point, s.trunk) for s, point in grid]
            logs = [math.inf if each is None else math.log(self._remaining(each)) for each in joined]
            values = values - torch.tensor(logs, dtype=values.dtype)
        for at in torch.argsort(values, descending=True, stable=True).tolist():
            start, point = grid[at]
            if (option := self._starting_at(start, point)) is not None:
                yield start, inputs[at], option

    def _starting_at(self, start: Start, point: Point) -> Option | None:
        parameters = self._shared.join(start.record.parameters, point, start.trunk)
        if parameters is None or not self._encoding.domain.allows(parameters):
            return None
        return self._option(parameters)

    def _sobol_points(self, count: int) -> list[Point]:
        """Return Sobol points on all axes."""
        axes = [axis.name for axis in self._encoding.axes]
        engine = SobolEngine(len(axes), scramble=True, seed=self._seed)  # type: ignore[no-untyped-call]  # torch has no types for it
        shares = engine.draw(count, dtype=torch.double)
        return [self._encoding.at_shares(dict(zip(axes, row, strict=True))) for row in shares.tolist()]

    def _option(self, parameters: Mapping[str, Value]) -> Option:
        point = self._on_all_axes(self._encoding.encode(parameters) or {}, self._index)
        cost, full = self._remaining(parameters), self._remaining.full(parameters)
        return Option(parameters=parameters, point=point, cost=cost, is_cached=cost < full)

    def _active(self, option: Option) -> Point:
        return self._encoding.encode(option.parameters) or {}
