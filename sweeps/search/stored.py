"""Stored ends of first stages and stored trunks: what new trials of a sweep can start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sweeps.search.branches import Branches, RemainingCost, StoredTrunk
from sweeps.search.prefixes import Prefixes
from sweeps.search.stage_costs import Costs
from sweeps.space.definition import Value
from sweeps.trials.record import Trial


@dataclass(frozen=True)
class Stored:
    """Ends and trunks that are stored.

    Args:
        prefixes: first stages that trials share.
        branches: trunks that trials share.
        ends: a record of each published first stage.
        trunks: those with points, of the last stage first.
    """

    prefixes: Prefixes
    branches: Branches
    ends: tuple[Trial, ...] = ()
    trunks: tuple[StoredTrunk, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ends or self.trunks)

    def remaining(self, costs: Costs) -> RemainingCost:
        """Return what a trial would still cost, given the costs of the stages."""
        ends = {self.prefixes.key(record.parameters) for record in self.ends}
        return RemainingCost(self.branches, self.prefixes.stages, costs, ends, self.trunks)

    def snapped(self, parameters: dict[str, Value]) -> dict[str, Value]:
        """Return the parameters, moved to exactly the furthest end or trunk that they nearly have."""
        later = [trunk for trunk in self.trunks if trunk.stage > 0]
        if (moved := self.branches.snapped(parameters, later)) is not None:
            return moved
        if self._has_end(moved := self.prefixes.snapped(parameters, self.ends)):
            return moved
        return self.branches.snapped(moved, self._of_first()) or moved

    def is_near_first(self, parameters: dict[str, Value], within: float) -> bool:
        """Return whether the first stage is a stored one, or on a stored trunk of it, but for a little.

        Args:
            parameters: of a trial.
            within: all axes differ by less than this share of their ranges.
        """
        if self._has_end(self.prefixes.snapped(parameters, self.ends, within)):
            return True
        return self.branches.snapped(parameters, self._of_first(), within) is not None

    def _has_end(self, parameters: Mapping[str, Value]) -> bool:
        key = self.prefixes.key(parameters)
        return any(self.prefixes.key(record.parameters) == key for record in self.ends)

    def _of_first(self) -> list[StoredTrunk]:
        return [trunk for trunk in self.trunks if trunk.stage == 0]
