"""Points of trunks of a sweep: who is on which trunk, and which points a length can still use. Pure.

`snapshots` asks for it when it judges what stays; `sweep snapshots` lists points by trunk.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from sweeps.space.definition import Choice, Fixed, Parameter, Space, Value
from sweeps.space.trunks import Trunks, decay_start
from sweeps.trials.record import Trial


class TrunkPoints:
    """Trunks of the stages of one sweep, by the parameters of its trials."""

    def __init__(self, space: Space) -> None:
        from sweeps.space.stages import Stages  # imports scipy, which most commands do without

        self._space, stages = space, Stages(space)
        self._trunks, self._names = Trunks(space, stages), stages.names

    def trunk(self, record: Trial, stage: str) -> Hashable:
        """Return what is equal for trials on one trunk of the stage; None if it has none."""
        if stage not in self._names or self._trunks.trunk(position := self._names.index(stage)) is None:
            return None
        return stage, self._trunks.prefix(record.parameters, position)

    def each(self, record: Trial) -> dict[str, Hashable]:
        """Return the trunks that a trial is on, by stage."""
        return {name: trunk for name in self._names if (trunk := self.trunk(record, name)) is not None}

    def starts_at(self, record: Trial, stage: str, steps: Iterable[int]) -> int | None:
        """Return at which of these points of its trunk a trial would branch off; None if at none."""
        if (end := self._trunks.end(record.parameters, self._names.index(stage))) is None:
            return None
        return max((step for step in steps if step <= end), default=None)

    def useless(self, stage: str, steps: Iterable[int]) -> frozenset[int]:
        """Return the points of one trunk that no trial to come branches off at: a later one serves it.

        There are none unless the lengths, and the shares of the decay, are listed.
        """
        present = frozenset(steps)
        if (ends := self.ends(stage)) is None:
            return frozenset()
        return present - {max((step for step in present if step <= end), default=0) for end in ends}

    def ends(self, stage: str) -> frozenset[int] | None:
        """Return where trials of all allowed lengths leave a trunk; None if they are not listed."""
        trunk = self._trunks.trunk(self._names.index(stage))
        if trunk is None:
            return None
        by_name = {parameter.name: parameter for parameter in self._space.parameters}
        lengths = _listed(by_name, trunk.length)
        decays = _listed(by_name, trunk.decay) if isinstance(trunk.decay, str) else (trunk.decay,)
        if lengths is None or decays is None:
            return None
        pairs = ((length, decay) for length in lengths for decay in decays)
        return frozenset(
            decay_start(length, decay)
            for length, decay in pairs
            if isinstance(length, int) and isinstance(decay, int | float)
        )


def _listed(by_name: Mapping[str, Parameter], name: str) -> tuple[Value, ...] | None:
    """Return all values of a parameter; None if they are not listed."""
    match by_name.get(name):
        case Choice(values=values):
            return values
        case Fixed(value=value):
            return (value,)
        case _:
            return None
