"""Fidelities of a sweep: the levels that its trials can be run at, from the cheapest to the target. Pure.

Results are those at the target alone. Trials at lower levels only tell the search where to look.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import replace

from sweeps.errors import SpaceError
from sweeps.space.constraints import parse_expression
from sweeps.space.definition import Choice, Fixed, Space, Value, same_value
from sweeps.space.domain import Domain
from sweeps.space.stages import Stages

SHARE = 0.06
"""Cost of all trials below the target, as a share of that of the sweep's trials at the target.

Where they say nothing about the target, plain search costs at most so much less; see `benchmarks.transfer`.
"""

PROMOTED, MOST_PROMOTED = 0.04, 4
"""Trials that a level proposes to the next with several objectives: a share of the sweep's at the target, and
at most so many. With one objective, and in short sweeps, it is one."""

USUAL_CAP = 30
"""Trials at the target that a sweep without a run cap is taken to have."""

FEWEST, MOST = 6, 30
"""Trials of a lower level: with fewer nothing is known of it, and more tell hardly more."""


def is_at_target(space: Space, parameters: Mapping[str, Value]) -> bool:
    """Return whether a trial with these parameters is a result, and no cheaper stand-in for one."""
    if not space.fidelity:  # nearly all sweeps, and this runs for every trial
        return True
    targets = target_values(space)
    return all(same_value(parameters.get(name), value) for name, value in targets.items())


def target_values(space: Space) -> dict[str, Value]:
    """Return the value of each parameter of `fidelity` at the target; {} in a sweep without."""
    return {each.parameter: _values(space, each.parameter)[-1] for each in space.fidelity}


def at_target(space: Space) -> Space:
    """Return the space of the trials at the target: the space itself in a sweep without fidelities."""
    return Ladder(space).at(-1) if space.fidelity else space


def _values(space: Space, name: str) -> tuple[Value, ...]:
    parameter = space.parameter(name)
    return parameter.values if isinstance(parameter, Choice) else ()


class Ladder:
    """Levels of fidelity of one sweep, by position; the last is the target.

    Attributes:
        costs: of a trial at each level in the middle of the space, as a share of one at the target.
        planned: number of the search's trials at each level below the target; 0 where too few are paid for.
        promoted: number of trials of the next level that a level may propose.

    Raises:
        SpaceError: what trials cost is not known, or does not rise with the level.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._levels = [
            dict(zip((each.parameter for each in space.fidelity), values, strict=True))
            for values in zip(*(_values(space, each.parameter) for each in space.fidelity), strict=True)
        ]
        self.costs = self._costs()
        names = " and ".join(each.parameter for each in space.fidelity)
        for lower, upper in zip(self.costs, self.costs[1:], strict=False):
            if not 0 < lower < upper:
                shown = ", ".join(f"{cost:.3g}" for cost in self.costs)
                raise SpaceError(
                    f"a trial must cost more from value to value, and costs {shown} of one at the target; "
                    "order the values by cost, the target last",
                    file=space.name,
                    key=f"fidelity.{names}",
                )
        lower_levels, cap = self.costs[:-1], space.run_cap or USUAL_CAP
        several = len(space.objectives) > 1
        self.promoted = min(max(math.floor(PROMOTED * cap + 1e-9), 1), MOST_PROMOTED) if several else 1
        left = SHARE * cap
        planned = list[int]()
        for at, cost in enumerate(lower_levels):  # each gets its share, and what those below it leave
            count = min(math.floor(left / (len(lower_levels) - at) / cost + 1e-9), MOST)
            planned.append(count if count >= FEWEST else 0)
            left -= planned[-1] * cost
        self.planned = tuple(planned)

    def level(self, parameters: Mapping[str, Value]) -> int | None:
        """Return the level of a trial; None for a mixture, such as a user may enqueue."""
        for level, values in enumerate(self._levels):
            if all(same_value(parameters.get(name), value) for name, value in values.items()):
                return level
        return None

    def at(self, level: int) -> Space:
        """Return the space of the trials at a level, with its parameters of `fidelity` fixed."""
        values = self._levels[level]
        parameters = tuple(
            Fixed(name=each.name, value=values[each.name]) if each.name in values else each
            for each in self._space.parameters
        )
        baseline = self._space.baseline
        return replace(
            self._space,
            parameters=parameters,
            baseline=None if baseline is None else {**baseline, **values},
            fidelity=(),
        )

    def __str__(self) -> str:
        """Return what the search does first, as a clause for people."""
        cheap = [f"{count} at {self._text(level)}" for level, count in enumerate(self.planned) if count]
        if not cheap:
            levels = len(self.costs) - 1
            each = f" at each of {levels} levels; leave one out, or raise run_cap" if levels > 1 else ""
            return (
                f"no trial below {self._text(-1)}: {SHARE:.0%} of the compute of "
                f"{self._space.run_cap or USUAL_CAP} trials there is not enough for {FEWEST}{each}"
            )
        total = math.fsum(map(operator.mul, self.planned, self.costs))
        return (
            f"first {', then '.join(cheap)}, for the cost of {total:.2g} at the target; then "
            f"{self._text(-1)}, whose trials alone are results and count towards run_cap"
        )

    def _text(self, level: int) -> str:
        return " ".join(f"{name}={value}" for name, value in self._levels[level].items())

    def _costs(self) -> tuple[float, ...]:
        found = [1.0] * len(self._levels)
        unknown = []
        for each in self._space.fidelity:
            if each.cost:
                found = [f * cost / each.cost[-1] for f, cost in zip(found, each.cost, strict=True)]
            else:
                unknown.append(each.parameter)
        if not unknown:
            return tuple(found)
        stages = Stages(self._space)
        known = self._space.names()
        expressions = [parse_expression(stage.cost, known) for stage in self._space.stages if stage.cost]
        for name in unknown:
            if not any(name in expression.coefficients for expression in expressions):
                raise SpaceError(
                    "what a trial with each value costs is not known; write it in any unit, such as "
                    "{cost: [0.3, 1, 3.3]}",
                    file=self._space.name,
                    key=f"fidelity.{name}",
                )
        middle, target = Domain(self._space).middle(), self._levels[-1]
        totals = []
        for values in self._levels:
            at = {**middle, **target, **{name: values[name] for name in unknown}}
            totals.append(math.fsum((stages.costs(at) or {}).values()))
        return tuple(f * total / totals[-1] for f, total in zip(found, totals, strict=True))
