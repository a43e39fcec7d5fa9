"""Stages of a program, as the search sees them: their parameters, what trials share, and what it costs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from fnmatch import fnmatchcase

from sweeps.space.constraints import parse
from sweeps.space.definition import Space, Value
from sweeps.space.domain import Domain


class Stages:
    """Stages of one sweep, in order.

    Attributes:
        names: of the stages.
        shared: whether trials of this sweep share stages: there are two or more, the space asks for it, and
            a searched parameter belongs to another than the first.
    """

    def __init__(self, space: Space) -> None:
        self._space, self._domain = space, Domain(space)
        self.names = tuple(stage.name for stage in space.stages)
        later = any(self.of(name) for name in self._domain.searched) if self.names else False
        self.shared = len(self.names) > 1 and space.search.reuse == "auto" and later

    def of(self, parameter: str) -> int:
        """Return the position of the stage that a parameter belongs to; the first, if none names it."""
        for position, stage in enumerate(self._space.stages):
            if any(fnmatchcase(parameter, pattern) for pattern in stage.parameters):
                return position
        return 0

    def prefix(self, parameters: Mapping[str, Value], stage: int = 0) -> Hashable:
        """Return a key that is equal for trials that agree up to the end of a stage, by parameters alone.

        Inactive conditional parameters have no part in it.
        """
        return self._domain.identity({n: v for n, v in parameters.items() if self.of(n) <= stage})

    def costs(self, parameters: Mapping[str, Value]) -> dict[str, float] | None:
        """Return the cost of each stage; None if the space does not say it of every stage."""
        if not all(stage.cost for stage in self._space.stages):
            return None
        return {stage.name: _cost(stage.cost, parameters) for stage in self._space.stages}


def _cost(text: str, parameters: Mapping[str, Value]) -> float:
    try:
        return float(text)
    except ValueError:
        inequality = parse(f"{text} <= 0")
    values = {name: float(parameters[name]) for name in inequality.coefficients}
    return inequality.sum(values) - inequality.bound
