"""Stored trunks of stages, trials that branch off there, and what a trial still costs."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sweeps.search.encoding import Encoding
from sweeps.search.prefixes import SEPARATION, Parameters, Point
from sweeps.search.stage_costs import SMALLEST, Costs
from sweeps.space.definition import Space, Value
from sweeps.space.stages import Stages
from sweeps.space.trunks import Trunks
from sweeps.trials.record import Trial


@dataclass(frozen=True, kw_only=True)
class StoredTrunk:
    """A trunk with stored points.

    Args:
        stage: its position.
        record: the first that stored one of the points, whose parameters say what all on this trunk share.
        steps: of the stage until each point, ascending.
    """

    stage: int
    record: Trial
    steps: tuple[int, ...]


class Branches:
    """Parameters that trials on one trunk share.

    Attributes:
        trunks: of the space.
        staged: positions of the stages that have a trunk, the last first: later points are further along.
        lengths: axes of the lengths of these stages.
    """

    def __init__(self, space: Space, stages: Stages, encoding: Encoding) -> None:
        self._encoding, self._domain, self._stages = encoding, encoding.domain, stages
        self.trunks = Trunks(space, stages)
        with_trunk = range(len(space.stages)) if stages.shared else ()
        self.staged = tuple(s for s in reversed(with_trunk) if self.trunks.trunk(s) is not None)
        names = {trunk.length for s in self.staged if (trunk := self.trunks.trunk(s)) is not None}
        self.lengths = frozenset(axis for axis, name in encoding.names.items() if name in names)
        self._shared = {
            s: [n for n in self._domain.searched if stages.of(n) <= s and not self.trunks.is_tail(n, s)]
            for s in self.staged
        }

    def axes(self, stage: int) -> frozenset[str]:
        """Return the axes whose values trials on one trunk of a stage share."""
        shared = self._shared[stage]
        return frozenset(axis for axis, name in self._encoding.names.items() if name in shared)

    def key(self, parameters: Parameters, stage: int) -> Hashable:
        """Return a key that is equal for trials that can share the trunk of a stage."""
        return self.trunks.prefix(parameters, stage)

    def shared(self, parameters: Parameters) -> list[tuple[int, Hashable]]:
        """Return what trials can share, the furthest first: keys of trunks, and of the first stage's end.

        Each with the position of the stage that is left: of a trunk its own, of the end 1.
        """
        first = [(1, self._stages.prefix(parameters))]
        later = [(stage, self.key(parameters, stage)) for stage in self.staged]
        return [each for each in later if each[0]] + first + [each for each in later if not each[0]]

    def stored(self, records: Iterable[Trial]) -> list[StoredTrunk]:
        """Return the trunks with points that a new trial can start from; those of the last stage first.

        Records alone say what is stored. A trial with other fixed values, such as a repeat with another seed,
        has points that no new trial can start from.
        """
        found: dict[tuple[int, Hashable], tuple[Trial, set[int]]] = {}
        for record in records:
            names = {run.name for run in record.points if run.snapshot and run.step}
            for stage in self.staged:
                if self._stages.names[stage] not in names or not self._is_usual(record, stage):
                    continue
                key = (stage, self.key(record.parameters, stage))
                _, steps = found.setdefault(key, (record, set()))
                steps |= self._steps(record, stage)
        ordered = sorted(found.items(), key=lambda item: -item[0][0])  # stable: else by index
        return [
            StoredTrunk(stage=stage, record=record, steps=tuple(sorted(steps)))
            for (stage, _), (record, steps) in ordered
        ]

    def _steps(self, record: Trial, stage: int) -> set[int]:
        name = self._stages.names[stage]
        return {run.step for run in record.points if run.name == name and run.snapshot and run.step}

    def _is_usual(self, record: Trial, stage: int) -> bool:
        searched = {n: v for n, v in record.parameters.items() if n in self._domain.searched}
        try:
            usual = self._domain.complete(searched)
        except KeyError:  # of an imported trial, which lacks a parameter
            return False
        return self.key(usual, stage) == self.key(record.parameters, stage)

    def joined(self, trunk: StoredTrunk, point: Point) -> dict[str, Value] | None:
        """Return the exact shared parameters of a trunk with the others of a point on all axes.

        None where they are not on that trunk, such as where the record lacks a parameter.
        """
        values, known = self._encoding.values(point), trunk.record.parameters
        values |= {name: known[name] for name in self._shared[trunk.stage] if name in known}
        try:
            parameters = self._domain.complete(values)
        except KeyError:
            return None
        return parameters if self.key(parameters, trunk.stage) == self.key(known, trunk.stage) else None

    def snapped(
        self, parameters: Parameters, stored: Sequence[StoredTrunk], within: float = SEPARATION
    ) -> dict[str, Value] | None:
        """Return the parameters with the exact shared ones of the nearest trunk; None if none is near.

        Encoding rounds in the last digit, and points are found by exact values. Near: all axes that trials on
        it share are `within` a share of their ranges.
        """
        if not stored or (point := self._encoding.encode(parameters)) is None:
            return None
        distances = [self._apart(point, trunk) for trunk in stored]
        nearest = min(range(len(stored)), key=distances.__getitem__)
        if distances[nearest] >= within:
            return None
        return self.joined(stored[nearest], point)

    def _apart(self, point: Point, trunk: StoredTrunk) -> float:
        other = self._encoding.encode(self._domain.configuration(trunk.record.parameters))
        if other is None:
            return math.inf
        axes = self.axes(trunk.stage)
        first, second = ({a: v for a, v in each.items() if a in axes} for each in (point, other))
        return self._encoding.distance(first, second)


class RemainingCost:
    """Cost that a trial still has, where it starts from the furthest end or point that is stored.

    A stored point takes the place of its stage until there and of all stages before it; the stored end of the
    first stage that of the first stage. A point's cost is linear in its steps.

    Args:
        branches: of the space.
        stages: of the space.
        costs: of the stages.
        ends: `Stages.prefix` of the stored ends of first stages.
        stored: trunks with points.
    """

    def __init__(
        self,
        branches: Branches,
        stages: Stages,
        costs: Costs,
        ends: Collection[Hashable],
        stored: Iterable[StoredTrunk],
    ) -> None:
        self._branches, self._stages, self._costs, self._ends = branches, stages, costs, ends
        self._steps = {(t.stage, branches.key(t.record.parameters, t.stage)): t.steps for t in stored}

    def __call__(self, parameters: Mapping[str, Value]) -> float:
        """Return the cost of what is still to be computed, in the unit of the stages' costs."""
        costs = self._costs(parameters)
        for stage in self._branches.staged:
            if stage == 0 and self._stages.prefix(parameters) in self._ends:
                break
            if share := self.share(parameters, stage):
                left = math.fsum(costs[stage:]) - share * costs[stage]
                return max(left, SMALLEST * math.fsum(costs))
        return math.fsum(costs[1:] if self._stages.prefix(parameters) in self._ends else costs)

    def at_most(self, parameters: Mapping[str, Value], keys: Sequence[tuple[int, Hashable]]) -> float:
        """Return what is left from the furthest of the keys of `Branches.shared`, a trunk being all there."""
        stage, key = keys[0]
        costs = self._costs(parameters)
        left = math.fsum(costs[stage:])
        if key == self._stages.prefix(parameters):
            return left
        length, end = (
            f(parameters, stage) for f in (self._branches.trunks.length, self._branches.trunks.end)
        )
        return left - costs[stage] * (end or 0) / (length or 1)

    def full(self, parameters: Mapping[str, Value]) -> float:
        """Return the cost of all stages, from scratch."""
        return math.fsum(self._costs(parameters))

    def share(self, parameters: Mapping[str, Value], stage: int) -> float:
        """Return the share of a stage's steps that is there; 0 where no point of its trunk is usable."""
        trunk, end = self._branches.trunks.trunk(stage), self._branches.trunks.end(parameters, stage)
        steps = self._steps.get((stage, self._branches.key(parameters, stage)), ()) if self._steps else ()
        if trunk is None or end is None or not (usable := [step for step in steps if step <= end]):
            return 0.0
        return usable[-1] / int(self._branches.trunks.length(parameters, stage) or 1)
