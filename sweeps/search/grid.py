"""Grid search: every configuration of a finite space once, in the order of the file. Used by `asking`.

Ablations ask for it: nothing is searched for, and no comparison may be left out.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from sweeps.space.definition import Space, Value
from sweeps.space.domain import Domain
from sweeps.trials.record import Trial


class Grid:
    """The configurations of a space whose parameters are choices, integers and fixed values.

    The last parameter varies fastest; one that a condition switches off does not multiply the rest.

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
        """The configurations that no trial has, imported ones included, in order."""
        taken = {self._domain.identity(record.parameters) for record in records}
        return [dict(found) for identity, found in self.configurations.items() if identity not in taken]
