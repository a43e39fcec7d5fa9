"""First stages that trials of a sweep have published, and parameters of trials that start from them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence

from sweeps.search.encoding import Encoding, Options
from sweeps.space.definition import Space, Value
from sweeps.space.stages import Stages
from sweeps.trials.record import Trial

SEPARATION = 0.02
"""Points closer than this share of every range, with the same discrete values, are near copies."""

Point = Mapping[str, Value]
Parameters = Mapping[str, Value]


class Prefixes:
    """Parameters of the first stage, which trials can share.

    Attributes:
        stages: of the space.
        axes: those of the search that belong to the first stage.
        choices: unordered parameters of the first stage, by name, with their number of options.
        searched: whether trials can share a first stage and differ in it: otherwise there is no choice.
    """

    def __init__(self, space: Space, encoding: Encoding) -> None:
        self._encoding, self._domain = encoding, encoding.domain
        self.stages = Stages(space)
        self._first = [name for name in self._domain.searched if self.stages.of(name) == 0]
        self.axes = frozenset(axis for axis, name in encoding.names.items() if name in self._first)
        self.choices = {
            encoding.names[axis.name]: len(axis.values)
            for axis in encoding.axes
            if isinstance(axis, Options) and axis.name in self.axes
        }
        self.searched = self.stages.shared and self.stages.later and bool(self._first)

    def key(self, parameters: Parameters) -> Hashable:
        """Return a key that is equal for trials that can share the first stage."""
        return self.stages.prefix(parameters)

    def published(self, records: Iterable[Trial]) -> dict[Hashable, Trial]:
        """Return, by prefix, the first record that has published its first stage, in index order.

        Records alone say what is published. A trial with other fixed values, such as a repeat with another
        seed, has a snapshot that no new trial can start from.
        """
        found: dict[Hashable, Trial] = {}
        for record in records:
            name = self.stages.names[0]
            if any(run.name == name and run.snapshot for run in record.stages):
                key = self.key(record.parameters)
                searched = {n: v for n, v in record.parameters.items() if n in self._domain.searched}
                if self.key(self._domain.complete(searched)) == key:
                    found.setdefault(key, record)
        return found

    def joined(self, prefix: Parameters, point: Point) -> dict[str, Value] | None:
        """Return the exact first stage of a trial's parameters with the later stages of a point on all axes.

        None where they lack a parameter of the first stage, as those of an imported trial may.
        """
        values = self._encoding.values(point)
        values |= {name: prefix[name] for name in self._first if name in prefix}
        try:
            parameters = self._domain.complete(values)
        except KeyError:
            return None
        return parameters if self.key(parameters) == self.key(prefix) else None

    def snapped(
        self, parameters: dict[str, Value], published: Sequence[Trial], within: float = SEPARATION
    ) -> dict[str, Value]:
        """Return the parameters, with the exact first stage of a published one that they nearly have.

        Encoding rounds in the last digit, and snapshots are found by exact values. Nearly: all axes of the
        first stage are `within` a share of their ranges.
        """
        if not published or (point := self._encoding.encode(parameters)) is None:
            return parameters
        distances = [self._apart(point, record) for record in published]
        nearest = min(range(len(published)), key=distances.__getitem__)
        if distances[nearest] >= within:
            return parameters
        return self.joined(published[nearest].parameters, point) or parameters

    def _apart(self, point: Point, record: Trial) -> float:
        """Return the distance of the first stages."""
        configuration = self._domain.configuration(record.parameters)
        if (other := self._encoding.encode(configuration)) is None:
            return math.inf
        first, second = ({a: v for a, v in p.items() if a in self.axes} for p in (point, other))
        return self._encoding.distance(first, second)

    def separate(self, point: Point, others: Iterable[Point]) -> bool:
        """Return whether no other point is a near copy."""
        return all(self._encoding.distance(point, other) >= SEPARATION for other in others)
