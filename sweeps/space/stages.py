"""Stages of a program: their parameters, what trials share of them, and what they cost. Pure.

Two trials share the end of a stage if they agree in all parameters that it depends on. A stage may have a
trunk, the steps before its learning rate decays: trials of several lengths share a trunk's steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from fnmatch import fnmatchcase

from sweeps.space.constraints import parse_expression
from sweeps.space.definition import Choice, Fixed, Space, Trunk, Value, is_active, same_value
from sweeps.space.domain import Domain


def decay_start(steps: int, decay: float) -> int:
    """Return the step at which a stage leaves its trunk, as `trainer` schedules it.

    Args:
        decay: share of them that the decay takes.
    """
    return steps - round(decay * steps)


class Stages:
    """Stages of one sweep, in order. A stage is given by its position.

    Attributes:
        shared: whether trials of this sweep share stages or trunks: the space asks for it, and a searched
            parameter belongs to another stage than the first, or a stage has a trunk.
        later: whether a searched parameter belongs to another than the first.
        with_trunk: stages whose trunks are shared.
    """

    def __init__(self, space: Space) -> None:
        self._space, self._domain, self._parents = space, Domain(space), space.parents()
        self._positions = {parameter.name: self._matching(parameter.name) for parameter in space.parameters}
        for name in self._parents:
            # What switches a parameter on belongs to its stage, if that is earlier: else trials that share
            # the stage would have and not have that parameter.
            position = self._positions[name]
            while name in self._parents:
                name = self._parents[name].parent
                self._positions[name] = min(self._positions[name], position)
        known = space.names()
        self._costs = tuple(
            parse_expression(stage.cost, known) if stage.cost else None for stage in space.stages
        )
        self.names = tuple(stage.name for stage in space.stages)
        self.later = any(self.position(name) for name in self._domain.searched)
        has_trunk = any(stage.trunk is not None for stage in space.stages)
        self.shared = space.search.reuse == "auto" and (self.later or has_trunk)
        positions = range(len(self.names)) if self.shared else ()
        self.with_trunk = tuple(stage for stage in positions if space.stages[stage].trunk is not None)

    def position(self, parameter: str) -> int:
        """Return the stage that a parameter belongs to; the first, if none names it.

        One that switches a parameter of an earlier stage on belongs to that earlier stage.
        """
        if parameter not in self._positions:  # of a trial, such as the seed of a confirmation
            self._positions[parameter] = self._matching(parameter)
        return self._positions[parameter]

    def _matching(self, parameter: str) -> int:
        for position, stage in enumerate(self._space.stages):
            if any(fnmatchcase(parameter, pattern) for pattern in stage.parameters):
                return position
        return 0

    def parameters_until(self, parameters: Mapping[str, Value], stage: int = 0) -> dict[str, Value]:
        """Return the parameters that the end of a stage depends on, in order.

        Inactive conditional parameters are left out, and so are fixed ones with the value of the space, which
        some trials do not repeat.
        """
        fixed = self._domain.fixed
        return {
            name: value
            for name, value in parameters.items()
            if self.position(name) <= stage
            and not (name in fixed and same_value(value, fixed[name]))
            and is_active(name, parameters, self._parents)
        }

    def end_identity(self, parameters: Mapping[str, Value], stage: int = 0) -> Hashable:
        """Return what is equal for trials that share the end of a stage, by parameters alone."""
        return self._domain.identity(self.parameters_until(parameters, stage))

    def costs(self, parameters: Mapping[str, Value]) -> dict[str, float] | None:
        """Return the cost of each stage by its name; None if the space does not say it of every stage.

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

    # ---- trunks

    def trunk(self, stage: int) -> Trunk | None:
        """Return the trunk of a stage; None if it has none."""
        return self._space.stages[stage].trunk if self._space.search.reuse == "auto" else None

    def length(self, parameters: Mapping[str, Value], stage: int) -> int | None:
        """Return the steps of a stage that has a trunk; None if it has none or no such number."""
        if (trunk := self.trunk(stage)) is None:
            return None
        steps = parameters.get(trunk.length, self._domain.fixed.get(trunk.length))
        return steps if isinstance(steps, int) and not isinstance(steps, bool) else None

    def trunk_end(self, parameters: Mapping[str, Value], stage: int) -> int | None:
        """Return the step at which a trial leaves the trunk of a stage; None if it has no such step."""
        trunk, steps = self.trunk(stage), self.length(parameters, stage)
        if trunk is None or steps is None or any(each in parameters.items() for each in trunk.without):
            return None
        decay: object = trunk.decay
        if isinstance(trunk.decay, str):
            decay = parameters.get(trunk.decay, self._domain.fixed.get(trunk.decay))
        return decay_start(steps, decay) if isinstance(decay, int | float) else None

    def trunk_ends(self, stage: int) -> frozenset[int] | None:
        """Return the steps at which trials of all allowed lengths leave a trunk; None if not listed."""
        if (trunk := self.trunk(stage)) is None:
            return None
        lengths = self._values(trunk.length)
        decays = self._values(trunk.decay) if isinstance(trunk.decay, str) else (trunk.decay,)
        if lengths is None or decays is None:
            return None
        return frozenset(
            decay_start(length, decay)
            for length in lengths
            for decay in decays
            if isinstance(length, int) and isinstance(decay, int | float)
        )

    def _values(self, name: str) -> tuple[Value, ...] | None:
        match next((parameter for parameter in self._space.parameters if parameter.name == name), None):
            case Choice(values=values):
                return values
            case Fixed(value=value):
                return (value,)
            case _:
                return None

    def trunk_identity(self, parameters: Mapping[str, Value], stage: int) -> Hashable:
        """Return what is equal for trials that share the trunk of a stage, by parameters alone."""
        until = self.parameters_until(parameters, stage)  # what the length switches on is in it
        return self._domain.identity({n: v for n, v in until.items() if not self.is_tail(n, stage)})

    def is_tail(self, parameter: str, stage: int) -> bool:
        """Return whether trials on one trunk of the stage may differ in this parameter of it.

        Never in one of an earlier stage, such as a decay of both: that stage's end depends on it.
        """
        if (trunk := self.trunk(stage)) is None or self.position(parameter) != stage:
            return False
        patterns = (trunk.length, *trunk.tail, *((trunk.decay,) if isinstance(trunk.decay, str) else ()))
        return any(fnmatchcase(parameter, pattern) for pattern in patterns)
