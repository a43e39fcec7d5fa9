"""Stages of a program, as the search sees them: their parameters, what trials share, and what it costs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from fnmatch import fnmatchcase

from sweeps.space.constraints import Expression, parse_expression
from sweeps.space.definition import Space, Value, same_value
from sweeps.space.domain import Domain


class Stages:
    """Stages of one sweep, in order.

    Attributes:
        names: of the stages.
        shared: whether trials of this sweep share stages or trunks: there are two stages or more, the space
            asks for it, and a searched parameter belongs to another than the first, or a stage has a trunk.
        later: whether a searched parameter belongs to another than the first.
    """

    def __init__(self, space: Space) -> None:
        self._stages, self._domain, self._parents = space.stages, Domain(space), space.parents()
        self._positions = {parameter.name: self._matched(parameter.name) for parameter in space.parameters}
        for name in self._parents:
            self._move_parents(name)
        self._costs = tuple(_parsed(stage.cost) for stage in space.stages)
        self.names = tuple(stage.name for stage in space.stages)
        self.later = any(self.of(name) for name in self._domain.searched)
        several = self.later or any(stage.trunk is not None for stage in space.stages)
        self.shared = len(self.names) > 1 and space.search.reuse == "auto" and several

    def of(self, parameter: str) -> int:
        """Return the position of the stage that a parameter belongs to; the first, if none names it.

        One that switches a parameter of an earlier stage on belongs to that earlier stage.
        """
        if parameter not in self._positions:  # of a trial, such as the seed of a confirmation
            self._positions[parameter] = self._matched(parameter)
        return self._positions[parameter]

    def part(self, parameters: Mapping[str, Value], stage: int = 0) -> dict[str, Value]:
        """Return the parameters that the end of a stage depends on, in order.

        Inactive conditional parameters have no part in it, nor have fixed ones with the value of the space,
        which some trials do not repeat.
        """
        fixed = self._domain.fixed
        return {
            name: value
            for name, value in parameters.items()
            if self.of(name) <= stage
            and not (name in fixed and same_value(value, fixed[name]))
            and self._is_active(name, parameters)
        }

    def prefix(self, parameters: Mapping[str, Value], stage: int = 0) -> Hashable:
        """Return a key that is equal for trials that agree up to the end of a stage, by parameters alone."""
        return self._domain.identity(self.part(parameters, stage))

    def costs(self, parameters: Mapping[str, Value]) -> dict[str, float] | None:
        """Return the cost of each stage; None if the space does not say it of every stage.

        None also for parameters that lack a number in it, as those of an imported trial may.
        """
        costs: dict[str, float] = {}
        for stage, cost in zip(self.names, self._costs, strict=True):
            if cost is None:
                return None
            values = {name: parameters.get(name, self._domain.fixed.get(name)) for name in cost.coefficients}
            numbers = {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
            if len(numbers) < len(values):
                return None
            costs[stage] = max(0.0, cost.value(numbers))  # negative outside of the ranges only
        return costs

    def _matched(self, parameter: str) -> int:
        for position, stage in enumerate(self._stages):
            if any(fnmatchcase(parameter, pattern) for pattern in stage.parameters):
                return position
        return 0

    def _move_parents(self, name: str) -> None:
        """Move what switches a parameter on into its stage, if that is earlier."""
        position = self._positions[name]
        while name in self._parents:
            name = self._parents[name].parent
            self._positions[name] = min(self._positions[name], position)

    def _is_active(self, name: str, parameters: Mapping[str, Value]) -> bool:
        while name in self._parents:
            condition = self._parents[name]
            if not condition.holds(parameters):
                return False
            name = condition.parent
        return True


def _parsed(cost: str) -> Expression | None:
    return parse_expression(cost) if cost else None
