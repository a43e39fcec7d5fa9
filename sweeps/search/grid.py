"""Grid search: every configuration of a finite space once, in the order of the file (for ablations)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from sweeps.space.definition import Space, Value
from sweeps.space.domain import Domain
from sweeps.trials.record import Trial


class Grid:
    """Configurations of a space whose parameters are choices, integers and fixed values.

    The last parameter varies fastest; an inactive conditional parameter adds no configurations.

    Raises:
        ValueError: the space is infinite, or has more than `domain.ENUMERABLE` configurations.
    """

    def __init__(self, space: Space) -> None:
        self._domain = Domain(space)
        found = self._domain.configurations()
        if found is None:
            raise ValueError("the configurations of this space cannot be listed")
        self.configurations: Mapping[Hashable, dict[str, Value]] = found

    def left(self, records: Sequence[Trial]) -> list[dict[str, Value]]:
        """Return the configurations that no trial has, imported trials included, in order."""
        taken = {self._domain.identity(record.parameters) for record in records}
        return [dict(found) for identity, found in self.configurations.items() if identity not in taken]
