"""Stages that trials of a sweep share, as the search sees them: what is stored, and what starts from it.

A trial can start from the stored end of the first stage, or from a checkpoint within a stage's trunk. Here
`trunk` is the stage that has it; None stands for the end of the first stage.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sweeps.search.encoding import Encoding, Options
from sweeps.search.sequence import Point
from sweeps.search.stage_costs import SMALLEST, Costs
from sweeps.space.definition import Space, Value
from sweeps.space.stages import Stages
from sweeps.trials.record import Trial

FEWEST = 4
"""First stages in a design, where they are nearly all of the cost."""

SEPARATION = 0.02
"""Points closer than this share of every range, with the same discrete values, are near copies: expected
improvement per cost would try cached stages again and again below the noise."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Stored checkpoints that new trials can start from.

    Args:
        record: the first that stored one; its parameters say what all trials that start here have in common.
        trunk: the stage within whose trunk they lie; None: the end of the first stage.
        steps: of the stage until each checkpoint of a trunk, ascending.
    """

    record: Trial
    trunk: int | None = None
    steps: tuple[int, ...] = ()


class SharedStages:
    """Parameters that trials share when they start from the same checkpoint.

    Attributes:
        stages: of the space.
        axes: those of the search that belong to the first stage.
        choices: parameters of the first stage of which a design tries every option, by name, with their
            number of options: unordered ones, and ordered ones of at most `FEWEST`.
        has_choice: whether trials can share the end of a first stage and differ in it.
        trunks: stages that have a trunk, the last first: its checkpoints are further along.
        lengths: axes of the lengths of these stages.
    """

    def __init__(self, space: Space, encoding: Encoding) -> None:
        self._encoding, self._domain = encoding, encoding.domain
        self.stages = stages = Stages(space)
        searched = self._domain.searched
        first = [name for name in searched if stages.position(name) == 0]
        self.trunks = tuple(reversed(stages.with_trunk))
        self._common: dict[int | None, list[str]] = {None: first} | {
            at: [n for n in searched if stages.position(n) <= at and not stages.is_tail(n, at)]
            for at in self.trunks
        }
        self.axes = self.axes_of(None)
        self.choices = {
            encoding.names[axis.name]: len(axis.values)
            for axis in encoding.axes
            if isinstance(axis, Options)
            and axis.name in self.axes
            # Neighbours tell what a value of a longer list is worth, as in a range.
            and (not axis.ordered or len(axis.values) <= FEWEST)
        }
        self.has_choice = stages.shared and stages.later and bool(first)
        names = {trunk.length for at in self.trunks if (trunk := stages.trunk(at)) is not None}
        self.lengths = frozenset(axis for axis, name in encoding.names.items() if name in names)

    def axes_of(self, trunk: int | None) -> frozenset[str]:
        """Return the axes whose values trials have in common that start there."""
        common = self._common[trunk]
        return frozenset(axis for axis, name in self._encoding.names.items() if name in common)

    def identity(self, parameters: Mapping[str, Value], trunk: int | None = None) -> Hashable:
        """Return what is equal for trials that can share a trunk, or the end of the first stage."""
        if trunk is None:
            return self.stages.end_identity(parameters)
        return self.stages.trunk_identity(parameters, trunk)

    def identities(self, parameters: Mapping[str, Value]) -> list[tuple[int | None, Hashable]]:
        """Return what a trial can share with others, the furthest along first: each a trunk and its identity.

        The trunk tells them apart: where a stage searches only its length, its trunk and the end of the first
        stage have equal identities.
        """
        ends = [None] if len(self.stages.names) > 1 else []
        later, first = [at for at in self.trunks if at], [at for at in self.trunks if not at]
        return [(trunk, self.identity(parameters, trunk)) for trunk in (*later, *ends, *first)]

    # ---- what is stored

    def stored_ends(self, records: Iterable[Trial]) -> dict[Hashable, Trial]:
        """Return the first record that stored each end of a first stage, in index order.

        Records alone say what is stored. A trial with other fixed values, such as a repeat with another seed,
        has checkpoints that no new trial can start from.
        """
        found: dict[Hashable, Trial] = {}
        for record in records:
            name = self.stages.names[0]
            is_stored = any(run.name == name and run.snapshot for run in record.stages)
            if is_stored and self._has_usual_values(record, None):
                found.setdefault(self.identity(record.parameters), record)
        return found

    def stored_trunks(self, records: Iterable[Trial]) -> list[Start]:
        """Return the trunks with checkpoints that new trials can start from; of the last stage first."""
        found: dict[tuple[int, Hashable], tuple[Trial, set[int]]] = {}
        for record in records:
            for trunk in self.trunks:
                name = self.stages.names[trunk]
                steps = {p.step for p in record.points if p.name == name and p.snapshot and p.step}
                if steps and self._has_usual_values(record, trunk):
                    found.setdefault((trunk, self.identity(record.parameters, trunk)), (record, set()))[
                        1
                    ].update(steps)
        ordered = sorted(found.items(), key=lambda item: -item[0][0])  # stable: else by index
        return [
            Start(record=record, trunk=trunk, steps=tuple(sorted(steps)))
            for (trunk, _), (record, steps) in ordered
        ]

    def _has_usual_values(self, record: Trial, trunk: int | None) -> bool:
        searched = {n: v for n, v in record.parameters.items() if n in self._domain.searched}
        try:
            usual = self._domain.complete(searched)
        except KeyError:  # of an imported trial, which lacks a parameter
            return False
        return self.identity(usual, trunk) == self.identity(record.parameters, trunk)

    # ---- parameters of a trial that starts there

    def join(
        self, known: Mapping[str, Value], point: Point, trunk: int | None = None
    ) -> dict[str, Value] | None:
        """Return exactly the common parameters of `known`, with the others of a point on all axes.

        None where a trial with them could not start there, such as where `known`, of an imported trial, lacks
        a parameter.
        """
        values = self._encoding.values(point)
        values |= {name: known[name] for name in self._common[trunk] if name in known}
        try:
            parameters = self._domain.complete(values)
        except KeyError:
            return None
        return parameters if self.identity(parameters, trunk) == self.identity(known, trunk) else None

    def snap(
        self, parameters: Mapping[str, Value], starts: Sequence[Start], within: float = SEPARATION
    ) -> dict[str, Value] | None:
        """Return the parameters with the exact common ones of the nearest start; None if none is near.

        Encoding rounds in the last digit, and checkpoints are found by exact values. Near: all axes that
        trials have in common are `within` a share of their ranges.
        """
        if not starts or (point := self._encoding.encode(parameters)) is None:
            return None
        distances = [self._distance(point, start) for start in starts]
        nearest = min(range(len(starts)), key=distances.__getitem__)
        if distances[nearest] >= within:
            return None
        return self.join(starts[nearest].record.parameters, point, starts[nearest].trunk)

    def _distance(self, point: Point, start: Start) -> float:
        other = self._encoding.encode(self._domain.configuration(start.record.parameters))
        if other is None:
            return math.inf
        axes = self.axes_of(start.trunk)
        first, second = ({a: v for a, v in each.items() if a in axes} for each in (point, other))
        return self._encoding.distance(first, second)

    def is_separate(self, point: Point, others: Iterable[Point]) -> bool:
        """Return whether no other point is a near copy."""
        return all(self._encoding.distance(point, other) >= SEPARATION for other in others)


class Starts:
    """Everything that new trials can start from.

    Args:
        ends: stored ends of first stages.
        trunks: stored trunks, of the last stage first.
    """

    def __init__(
        self, shared: SharedStages, ends: Iterable[Trial] = (), trunks: Iterable[Start] = ()
    ) -> None:
        self._shared = shared
        self.ends = tuple(Start(record=record) for record in ends)
        self.trunks = tuple(trunks)
        self.of_first_stage = tuple(start for start in self.trunks if start.trunk == 0)
        self.of_later_stages = tuple(start for start in self.trunks if start.trunk)
        self.end_identities = {shared.identity(start.record.parameters) for start in self.ends}

    def __bool__(self) -> bool:
        return bool(self.ends or self.trunks)

    def snap(self, parameters: dict[str, Value]) -> dict[str, Value]:
        """Return the parameters, moved to exactly the furthest start that they nearly have."""
        if (moved := self._shared.snap(parameters, self.of_later_stages)) is not None:
            return moved
        moved = self._shared.snap(parameters, self.ends) or parameters
        if self._shared.identity(moved) in self.end_identities:
            return moved
        return self._shared.snap(moved, self.of_first_stage) or moved

    def is_near_first(self, parameters: dict[str, Value], within: float) -> bool:
        """Return whether the first stage is nearly a stored one, or on a stored trunk of it.

        Args:
            within: all axes differ by less than this share of their ranges.
        """
        moved = self._shared.snap(parameters, self.ends, within) or parameters
        if self._shared.identity(moved) in self.end_identities:
            return True
        return self._shared.snap(parameters, self.of_first_stage, within) is not None


class RemainingCost:
    """Cost that a trial still has if it starts from the furthest checkpoint that is stored.

    A checkpoint takes the place of its stage until there and of all stages before it. Until there, the cost
    of a stage is linear in its steps.
    """

    def __init__(self, shared: SharedStages, costs: Costs, starts: Starts) -> None:
        self._shared, self._stages, self._costs = shared, shared.stages, costs
        self._ends = starts.end_identities
        self._steps = {
            (s.trunk, shared.identity(s.record.parameters, s.trunk)): s.steps for s in starts.trunks
        }

    def __call__(self, parameters: Mapping[str, Value]) -> float:
        """Return the cost of what is still to be computed, in the unit of the stages' costs."""
        costs = self._costs(parameters)
        for trunk in self._shared.trunks:
            if trunk == 0 and self._shared.identity(parameters) in self._ends:
                break
            if share := self._share(parameters, trunk):
                left = math.fsum(costs[trunk:]) - share * costs[trunk]
                return max(left, SMALLEST * math.fsum(costs))
        return math.fsum(costs[1:] if self._shared.identity(parameters) in self._ends else costs)

    def _share(self, parameters: Mapping[str, Value], trunk: int) -> float:
        """Return the stored share of a stage's steps; 0 where no checkpoint of its trunk is usable."""
        end = self._stages.trunk_end(parameters, trunk)
        steps = self._steps.get((trunk, self._shared.identity(parameters, trunk)), ()) if self._steps else ()
        if end is None or not (usable := [step for step in steps if step <= end]):
            return 0.0
        return usable[-1] / int(self._stages.length(parameters, trunk) or 1)

    def at_most(
        self, parameters: Mapping[str, Value], identities: Sequence[tuple[int | None, Hashable]]
    ) -> float:
        """Return what is left after the furthest of `SharedStages.identities`, a trunk being all there."""
        (trunk, _), *_ = identities
        costs = self._costs(parameters)
        if trunk is None:
            return math.fsum(costs[1:])
        steps, end = self._stages.length(parameters, trunk), self._stages.trunk_end(parameters, trunk)
        return math.fsum(costs[trunk:]) - costs[trunk] * (end or 0) / (steps or 1)

    def full(self, parameters: Mapping[str, Value]) -> float:
        """Return the cost of all stages, from scratch."""
        return math.fsum(self._costs(parameters))
