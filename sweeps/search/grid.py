"""Grid search: every configuration of a finite space once (for ablations)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from sweeps.search.trunk_plan import TrunkPlan
from sweeps.space.definition import Space, Value
from sweeps.space.domain import Domain
from sweeps.trials.record import Trial


class Grid:
    """Configurations of a space whose parameters are choices, integers and fixed values.

    In the order of the file, in which the last parameter varies fastest; where stages have trunks, as
    `TrunkPlan` orders them. An inactive conditional parameter adds no configurations.

    Raises:
        ValueError: the space is infinite, or has more than `domain.ENUMERABLE` configurations.
    """

    def __init__(self, space: Space) -> None:
        self._domain = Domain(space)
        found = self._domain.configurations()
        if found is None:
            raise ValueError("the configurations of this space cannot be listed")
        self._plan = TrunkPlan(space)
        self.configurations: Mapping[Hashable, dict[str, Value]] = found

    def left(self, records: Sequence[Trial]) -> list[dict[str, Value]]:
        """Return the configurations that no trial has, imported trials included, in the file's order."""
        taken = {self._domain.identity(record.parameters) for record in records}
        return [dict(found) for identity, found in self.configurations.items() if identity not in taken]

    def planned(self, records: Sequence[Trial]) -> list[dict[str, Value]]:
        """Return the configurations that no trial has, the one to try next first."""
        return self._plan.ordered(self.left(records), records)
