"""Trunks of stages: which trials share one, and where they leave it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from fnmatch import fnmatchcase

from sweeps.space.definition import Space, Trunk, Value
from sweeps.space.domain import Domain
from sweeps.space.stages import Stages


def decay_start(steps: int, decay: float) -> int:
    """Return the step at which a stage of so many steps leaves its trunk, as `trainer` schedules it.

    Args:
        steps: of the stage.
        decay: share of them that the decay takes.
    """
    return steps - round(decay * steps)


def point_key(trunk: str, step: int) -> str:
    """Return the key of a point: 64 hexadecimal digits.

    Args:
        trunk: key of the trunk.
        step: of the stage, until there.
    """
    return hashlib.sha256(f"{trunk}/{step}".encode()).hexdigest()


class Trunks:
    """Trunks of the stages of one sweep.

    Args:
        space: of the sweep.
        stages: its stages.
    """

    def __init__(self, space: Space, stages: Stages) -> None:
        self._space, self._stages, self._fixed = space, stages, Domain(space).fixed

    def of(self, stage: int) -> Trunk | None:
        """Return the trunk of the stage at a position; None if it has none."""
        return self._space.stages[stage].trunk if self._space.search.reuse == "auto" else None

    def end(self, parameters: Mapping[str, Value], stage: int) -> int | None:
        """Return the step at which a trial leaves the trunk of a stage; None if it has no such step."""
        if (trunk := self.of(stage)) is None:
            return None
        values = [parameters.get(name, self._fixed.get(name)) for name in (trunk.length, str(trunk.decay))]
        steps, decay = values[0], values[1] if isinstance(trunk.decay, str) else trunk.decay
        if not isinstance(steps, int) or isinstance(steps, bool) or not isinstance(decay, int | float):
            return None
        return decay_start(steps, decay)

    def prefix(self, parameters: Mapping[str, Value], stage: int) -> Hashable:
        """Return a key that is equal for trials on one trunk of the stage, by parameters alone."""
        kept = {name: value for name, value in parameters.items() if not self.is_tail(name, stage)}
        return self._stages.prefix(kept, stage)

    def is_tail(self, parameter: str, stage: int) -> bool:
        """Return whether trials on one trunk of the stage may differ in this parameter of it."""
        if (trunk := self.of(stage)) is None:
            return False
        patterns = (trunk.length, *trunk.tail, *((trunk.decay,) if isinstance(trunk.decay, str) else ()))
        return any(fnmatchcase(parameter, pattern) for pattern in patterns)
