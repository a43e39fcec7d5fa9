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
        self._space, self._stages, self._domain = space, stages, Domain(space)

    def trunk(self, stage: int) -> Trunk | None:
        """Return the trunk of the stage at a position; None if it has none."""
        return self._space.stages[stage].trunk if self._space.search.reuse == "auto" else None

    def length(self, parameters: Mapping[str, Value], stage: int) -> int | None:
        """Return the steps of a stage that has a trunk; None if it has none or no such number."""
        if (trunk := self.trunk(stage)) is None:
            return None
        steps = parameters.get(trunk.length, self._domain.fixed.get(trunk.length))
        return steps if isinstance(steps, int) and not isinstance(steps, bool) else None

    def end(self, parameters: Mapping[str, Value], stage: int) -> int | None:
        """Return the step at which a trial leaves the trunk of a stage; None if it has no such step."""
        trunk, steps = self.trunk(stage), self.length(parameters, stage)
        if trunk is None or steps is None:
            return None
        decay: object = trunk.decay
        if isinstance(trunk.decay, str):
            decay = parameters.get(trunk.decay, self._domain.fixed.get(trunk.decay))
        return decay_start(steps, decay) if isinstance(decay, int | float) else None

    def prefix(self, parameters: Mapping[str, Value], stage: int) -> Hashable:
        """Return a key that is equal for trials on one trunk of the stage, by parameters alone."""
        part = self._stages.part(parameters, stage)  # what the length switches on is in it
        return self._domain.identity({n: v for n, v in part.items() if not self.is_tail(n, stage)})

    def is_tail(self, parameter: str, stage: int) -> bool:
        """Return whether trials on one trunk of the stage may differ in this parameter of it.

        Never in one of an earlier stage, such as a decay of both: that stage's end depends on it.
        """
        if (trunk := self.trunk(stage)) is None or self._stages.of(parameter) != stage:
            return False
        patterns = (trunk.length, *trunk.tail, *((trunk.decay,) if isinstance(trunk.decay, str) else ()))
        return any(fnmatchcase(parameter, pattern) for pattern in patterns)
