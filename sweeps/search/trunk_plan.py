"""Order of a grid's configurations where stages have trunks: the longest of each trunk first. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from sweeps.space.definition import Space, Value
from sweeps.space.stages import Stages
from sweeps.space.trunks import Trunks
from sweeps.trials.record import Trial

LIVE = frozenset(("pending", "running", "completed"))
"""Status of a trial that has run along its trunk, or will."""


class Place(NamedTuple):
    """Place of a configuration in the order; ascending.

    Args:
        follows: whether a longer one opens one of its trunks first.
        opens: position of the first stage whose trunk it opens; the number of stages: none.
        waits: stages whose trunk has nothing stored that it could branch off at.
    """

    follows: bool
    opens: int
    waits: int


class TrunkPlan:
    """Order of configurations of one space.

    Attributes:
        staged: positions of the stages that have a trunk; none: the order is the file's.
    """

    def __init__(self, space: Space) -> None:
        self._stages = Stages(space)
        self._trunks = Trunks(space, self._stages)
        with_trunk = range(len(space.stages)) if self._stages.shared else ()
        self.staged = tuple(stage for stage in with_trunk if self._trunks.trunk(stage) is not None)

    def ordered(self, left: Sequence[dict[str, Value]], records: Iterable[Trial]) -> list[dict[str, Value]]:
        """Return the configurations that no trial has, the next one first.

        The longest of a trunk opens it for all that branch off there; of the others, those come first whose
        trunks have a usable stored point or end. Nobody waits: while nothing else is left, a trial whose
        trunk is still running is asked for, and computes what it needs itself.

        Args:
            left: in the file's order.
            records: of the sweep.
        """
        if not self.staged:
            return list(left)
        known = list(records)
        levels = [Level(self._trunks, self._stages, stage, left, known) for stage in self.staged]
        places = [self._place(parameters, levels) for parameters in left]
        return [left[at] for at in sorted(range(len(left)), key=places.__getitem__)]

    def _place(self, parameters: Mapping[str, Value], levels: Sequence[Level]) -> Place:
        states = [level.state(parameters) for level in levels]
        opened = (level.stage for level, state in zip(levels, states, strict=True) if state == "opens")
        return Place(
            follows="follows" in states,
            opens=next(opened, len(self._stages.names)),
            waits=states.count("waits"),
        )


class Level:
    """Trunks of one stage, and who is on them.

    Args:
        trunks: of the space.
        stages: of the space.
        stage: position of the stage.
        left: configurations that no trial has.
        records: of the sweep.
    """

    def __init__(
        self,
        trunks: Trunks,
        stages: Stages,
        stage: int,
        left: Iterable[Mapping[str, Value]],
        records: Iterable[Trial],
    ) -> None:
        self.stage, self._trunks, self._stages = stage, trunks, stages
        self._longest: dict[Hashable, int] = {}
        self._run: dict[Hashable, int] = {}
        self._points: dict[Hashable, list[int]] = {}
        self._ends: set[Hashable] = set()
        for parameters in left:
            self._lengthen(self._longest, parameters)
        for record in records:
            self._add(record)

    def _lengthen(self, ends: dict[Hashable, int], parameters: Mapping[str, Value]) -> None:
        trunk = self._trunks.prefix(parameters, self.stage)
        ends[trunk] = max(ends.get(trunk, 0), self._trunks.end(parameters, self.stage) or 0)

    def _add(self, record: Trial) -> None:
        name = self._stages.names[self.stage]
        if record.status in LIVE:
            self._lengthen(self._run, record.parameters)
        if steps := [run.step for run in record.points if run.name == name and run.snapshot and run.step]:
            trunk = self._trunks.prefix(record.parameters, self.stage)
            self._points.setdefault(trunk, []).extend(steps)
        if any(run.name == name and run.snapshot for run in record.stages):
            self._ends.add(self._stages.prefix(record.parameters, self.stage))

    def state(self, parameters: Mapping[str, Value]) -> str:
        """Return whether it `opens` its trunk, `follows` one that will, `branches` off now, or `waits`.

        Live trials that go less far than it count for nothing: they leave the trunk before.
        """
        trunk = self._trunks.prefix(parameters, self.stage)
        end = self._trunks.end(parameters, self.stage) or 0
        if self._stages.prefix(parameters, self.stage) in self._ends:
            return "branches"
        is_covered = self._run.get(trunk, -1) >= end
        if not is_covered and end == self._longest[trunk]:
            return "opens"
        if any(step <= end for step in self._points.get(trunk, ())):
            return "branches"
        return "waits" if is_covered else "follows"
