"""Choice between a fresh candidate and those that start from a stored first stage or branch off a trunk."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.quasirandom import SobolEngine

from sweeps.search.branches import StoredTrunk
from sweeps.search.encoding import Encoding
from sweeps.search.optimizer.acquisition import ModelRows, OpenAcquisition, Point
from sweeps.search.optimizer.surrogate import SURROGATE_FAILURES
from sweeps.search.stage_costs import Costs
from sweeps.search.stored import Stored
from sweeps.space.definition import Value
from sweeps.trials.record import Trial

LATER_POINTS = 64
"""Sobol points of the later stages, at which each published first stage is judged."""

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


@dataclass(frozen=True, kw_only=True)
class Start:
    """A stored end of a first stage or trunk: its record's values on these axes are those of the trial."""

    source: Trial | StoredTrunk
    axes: frozenset[str]

    @property
    def record(self) -> Trial:
        """Return the record that has the exact values."""
        return self.source.record if isinstance(self.source, StoredTrunk) else self.source


class StageChoice:
    """Weighs fresh candidates and cached ones by acquisition value per cost that is still to be paid.

    Expected improvement per remaining cost with a cache is EEIPU's (arXiv 2411.03731); the comparison of two
    optimised candidates in one function, the separation and the share of plain improvement are ours.

    Args:
        encoding: of the space.
        on_all_axes: returns a point on all axes, given one on the active axes and the index of its trial.
        stored: what new trials can start from.
        costs: of the stages.
        points: by index, the encoded parameters of the records.
        asked: generator and parameters of the records, then of candidates that have no record yet.
    """

    def __init__(
        self,
        encoding: Encoding,
        on_all_axes: OnAllAxes,
        stored: Stored,
        costs: Costs,
        *,
        points: Mapping[int, Point],
        asked: Sequence[tuple[str, Mapping[str, Value]]],
    ) -> None:
        self._encoding, self._on_all_axes, self._points = encoding, on_all_axes, points
        self._prefixes, self._branches = stored.prefixes, stored.branches
        self._stored = stored
        self._remaining = stored.remaining(costs)
        self._asked = [parameters for _, parameters in asked]
        first = (position for position, (generator, _) in enumerate(asked) if generator == "botorch")
        self._designed = next(first, len(asked))

    def points(
        self, adapter: Any, fresh: Point, index: int, taken: Sequence[Point], *, plain: bool, seed: int
    ) -> Iterator[Point]:
        """Yield points to try in turn, the best first; none where nothing is stored.

        Args:
            adapter: Ax's, whose acquisition is an `OpenAcquisition` that found `fresh`.
            fresh: maximiser of the acquisition function.
            index: of the new trial.
            taken: points of all trials.
            plain: whether costs do not count.
            seed: of the Sobol points.
        """
        if not self._stored:
            return
        rows, acquisition = ModelRows(adapter), adapter.generator._acquisition
        options = [self._fresh(fresh, index)]
        if self._fresh_is_due(options[0]):
            yield from self._apart(rows, acquisition, fresh, index, seed)
        for cached in self._cached(rows, acquisition, index, seed, plain=plain):
            separated = (o for o in cached if self._prefixes.separate(self._active(o), taken))
            options += [option for option in (next(separated, None),) if option is not None]
        inputs = rows.rows([option.point for option in options])
        if not options[0].is_cached:
            inputs[0] = acquisition.found[0]
        scores = self._scores(acquisition.values(inputs), options, plain=plain)
        if options[0].is_cached and not self._prefixes.separate(self._active(options[0]), taken):
            scores[0] = -math.inf
        for best in sorted(range(len(options)), key=lambda at: -scores[at]):
            yield self._active(options[best])

    def _scores(self, values_N: torch.Tensor, options: Sequence[Option], *, plain: bool) -> list[float]:
        """Return the logarithm of the acquisition function per remaining cost, or without the cost."""
        pairs = zip(values_N.tolist(), options, strict=True)
        return [value - (0.0 if plain else math.log(option.cost)) for value, option in pairs]

    def _fresh(self, point: Point, index: int) -> Option:
        """Return the maximiser, moved onto a stored end or trunk that it nearly has."""
        return self._option(self._stored.snapped(self._encoding.decode(point)), index)

    def _fresh_is_due(self, option: Option) -> bool:
        """Return whether published first stages have had as much compute as a fresh trial costs.

        Else a surrogate that takes ripples for noise hopes for a little more on the best of them for ever.
        """
        return self._since_fresh() >= self._remaining.full(option.parameters)

    def _since_fresh(self) -> float:
        """Return what the surrogate's candidates cost since its last one with a first stage of its own."""
        first_with: dict[Hashable, int] = {}
        for position, parameters in enumerate(self._asked):
            for key in self._branches.shared(parameters):
                first_with.setdefault(key, position)
        spent = 0.0
        for position in reversed(range(self._designed, len(self._asked))):
            parameters = self._asked[position]
            keys = [key for key in self._branches.shared(parameters) if first_with[key] < position]
            if not keys:
                break
            spent += self._remaining.at_most(parameters, keys)
        return spent

    def _apart(
        self, rows: ModelRows, acquisition: OpenAcquisition, fresh: Point, index: int, seed: int
    ) -> Iterator[Point]:
        """Yield the maximiser, or the best Sobol point, whose first stage is far from the published ones."""
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
        """Return whether a published first stage is near that of the option."""
        return self._stored.is_near_first(dict(option.parameters), FRESH_SEPARATION)

    def _cached(
        self, rows: ModelRows, acquisition: OpenAcquisition, index: int, seed: int, *, plain: bool
    ) -> Iterator[Iterator[Option]]:
        """Yield options on the ends and trunks of the first stage, then on trunks of later ones."""
        later = self._later(seed, LATER_POINTS)
        axes = self._branches.axes
        first = [Start(source=record, axes=self._prefixes.axes) for record in self._stored.ends]
        first += [Start(source=t, axes=axes(0)) for t in self._stored.trunks if t.stage == 0]
        yield self._polished(first, later, rows, acquisition, index, plain=plain)
        others = [Start(source=t, axes=axes(t.stage)) for t in self._stored.trunks if t.stage > 0]
        ranked = self._ranked(others, later[:BRANCH_POINTS], rows, acquisition, index, plain=plain)
        yield (option for _, _, option in ranked)

    def _polished(
        self,
        starts: Sequence[Start],
        later: Sequence[Point],
        rows: ModelRows,
        acquisition: OpenAcquisition,
        index: int,
        *,
        plain: bool,
    ) -> Iterator[Option]:
        """Yield the maximiser on the best start, then Sobol points on any, the best first.

        What is shared, and all lengths of stages with a trunk, are held: they are what the cost depends on.
        """
        ranked = self._ranked(starts, later, rows, acquisition, index, plain=plain)
        if (best := next(ranked, None)) is None:
            return
        start, row, option = best
        fixed = rows.columns(row, self._prefixes.axes | start.axes | self._branches.lengths)
        try:
            found = self._on_all_axes(rows.point(acquisition.optimize_at(fixed)[0]), index)
            if (polished := self._joined(start, found, index)) is not None:
                yield polished
        except SURROGATE_FAILURES:
            pass  # the Sobol points are there
        yield option
        yield from (option for _, _, option in ranked)

    def _ranked(
        self,
        starts: Sequence[Start],
        later: Sequence[Point],
        rows: ModelRows,
        acquisition: OpenAcquisition,
        index: int,
        *,
        plain: bool,
    ) -> Iterator[tuple[Start, torch.Tensor, Option]]:
        """Yield each start with its row and option at each point, the best first.

        Where no stage has a trunk, all have the same cost but for the later stages' own lengths, and rank by
        the acquisition function alone.
        """
        if not starts:
            return
        if self._branches.staged:
            later = later[: max(FEWEST_POINTS, TRUNK_ROWS // len(starts))]
        grid = []
        for start in starts:
            filled = self._on_all_axes(self._points[start.record.trial], start.record.trial)
            shared = {axis: filled[axis] for axis in start.axes}
            grid += [(start, {**point, **shared}) for point in later]
        inputs = rows.rows([point for _, point in grid])
        values = acquisition.values(inputs)
        if self._branches.staged and not plain:
            joined = [self._parameters(start, point) for start, point in grid]
            logs = [math.inf if each is None else math.log(self._remaining(each)) for each in joined]
            values = values - torch.tensor(logs, dtype=values.dtype)
        for at in torch.argsort(values, descending=True, stable=True).tolist():
            start, point = grid[at]
            if (option := self._joined(start, point, index)) is not None:
                yield start, inputs[at], option

    def _later(self, seed: int, count: int) -> list[Point]:
        """Return Sobol points on all axes."""
        axes = [axis.name for axis in self._encoding.axes]
        engine = SobolEngine(len(axes), scramble=True, seed=seed)  # type: ignore[no-untyped-call]
        shares = engine.draw(count, dtype=torch.double)
        return [self._encoding.placed(dict(zip(axes, row, strict=True))) for row in shares.tolist()]

    def _parameters(self, start: Start, point: Point) -> dict[str, Value] | None:
        if isinstance(start.source, StoredTrunk):
            return self._branches.joined(start.source, point)
        return self._prefixes.joined(start.source.parameters, point)

    def _joined(self, start: Start, point: Point, index: int) -> Option | None:
        parameters = self._parameters(start, point)
        if parameters is None or not self._encoding.domain.allows(parameters):
            return None
        return self._option(parameters, index)

    def _option(self, parameters: Mapping[str, Value], index: int) -> Option:
        point = self._on_all_axes(self._encoding.encode(parameters) or {}, index)
        cost, full = self._remaining(parameters), self._remaining.full(parameters)
        return Option(parameters=parameters, point=point, cost=cost, is_cached=cost < full)

    def _active(self, option: Option) -> Point:
        return self._encoding.encode(option.parameters) or {}
