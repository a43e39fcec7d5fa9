"""Grid search: every configuration of a finite space once (for ablations)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

from sweeps.space.definition import Space, Value
from sweeps.space.domain import Domain
from sweeps.space.stages import Stages
from sweeps.trials.record import Trial

LIVE = frozenset(("pending", "running", "completed"))
"""Status of a trial that has run along its trunk, or will."""


class Grid:
    """Configurations of a space whose parameters are choices, integers and fixed values.

    In the order of the file, in which the last parameter varies fastest; where stages have trunks, the
    longest of each trunk first. An inactive conditional parameter adds no configurations.

    Raises:
        ValueError: the space is infinite, or has more than `domain.ENUMERABLE` configurations.
    """

    def __init__(self, space: Space) -> None:
        self._domain = Domain(space)
        found = self._domain.configurations()
        if found is None:
            raise ValueError("the configurations of this space cannot be listed")
        self._stages = Stages(space)
        self.configurations: Mapping[Hashable, dict[str, Value]] = found

    def left(self, records: Sequence[Trial]) -> list[dict[str, Value]]:
        """Return the configurations that no trial has, imported trials included, in the file's order."""
        tried = {self._domain.identity(record.parameters) for record in records}
        return [dict(found) for identity, found in self.configurations.items() if identity not in tried]

    def in_order(self, records: Sequence[Trial]) -> list[dict[str, Value]]:
        """Return the configurations that no trial has, the one to try next first.

        The longest of a trunk opens it for all that branch off there; of the others, those come first whose
        trunks have a usable stored checkpoint. Nobody waits: while nothing else is left, a trial whose trunk
        is still running is asked for, and computes what it needs itself.
        """
        left = self.left(records)
        if not self._stages.with_trunk:
            return left
        trunks = [_Trunks(self._stages, stage, left, records) for stage in self._stages.with_trunk]

        def place(parameters: Mapping[str, Value]) -> tuple[bool, int, int]:
            # Whether a longer one opens one of its trunks first; the first stage whose trunk it opens itself;
            # in how many stages it must wait, with nothing stored that it could branch off at.
            states = [each.state(parameters) for each in trunks]
            opened = (each.stage for each, state in zip(trunks, states, strict=True) if state == "opens")
            return "follows" in states, next(opened, len(self._stages.names)), states.count("waits")

        return sorted(left, key=place)


class _Trunks:
    """Trunks of one stage, and who is on them.

    Args:
        left: configurations that no trial has.
    """

    def __init__(
        self, stages: Stages, stage: int, left: Iterable[Mapping[str, Value]], records: Iterable[Trial]
    ) -> None:
        self.stage, self._stages = stage, stages
        self._longest: dict[Hashable, int] = {}
        self._run: dict[Hashable, int] = {}
        self._steps: dict[Hashable, list[int]] = {}
        self._ends: set[Hashable] = set()
        for parameters in left:
            self._lengthen(self._longest, parameters)
        name = stages.names[stage]
        for record in records:
            if record.status in LIVE:
                self._lengthen(self._run, record.parameters)
            if steps := [run.step for run in record.points if run.name == name and run.snapshot and run.step]:
                trunk = stages.trunk_identity(record.parameters, stage)
                self._steps.setdefault(trunk, []).extend(steps)
            if any(run.name == name and run.snapshot for run in record.stages):
                self._ends.add(stages.end_identity(record.parameters, stage))

    def _lengthen(self, ends: dict[Hashable, int], parameters: Mapping[str, Value]) -> None:
        trunk = self._stages.trunk_identity(parameters, self.stage)
        ends[trunk] = max(ends.get(trunk, 0), self._stages.trunk_end(parameters, self.stage) or 0)

    def state(self, parameters: Mapping[str, Value]) -> str:
        """Return whether it `opens` its trunk, `follows` one that will, `branches` off now, or `waits`.

        Live trials that leave the trunk earlier than it do not count.
        """
        trunk = self._stages.trunk_identity(parameters, self.stage)
        end = self._stages.trunk_end(parameters, self.stage) or 0
        if self._stages.end_identity(parameters, self.stage) in self._ends:
            return "branches"
        is_covered = self._run.get(trunk, -1) >= end
        if not is_covered and end == self._longest[trunk]:
            return "opens"
        if any(step <= end for step in self._steps.get(trunk, ())):
            return "branches"
        return "waits" if is_covered else "follows"
