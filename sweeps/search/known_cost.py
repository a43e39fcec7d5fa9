"""An objective that is the cost of the stages: a known function of the parameters, which needs no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sweeps.search.encoding import Encoding, Interval
from sweeps.search.outcomes import Outcomes, cost_metric
from sweeps.space.constraints import parse_expression
from sweeps.space.definition import Space, number_of
from sweeps.space.stages import Stages
from sweeps.trials.record import Trial


@dataclass(frozen=True, kw_only=True)
class Term:
    """Share of a sum that one axis has: `factor` times the value at its position.

    A position from 0 to 1 stands for `low` to `high`, geometrically if `log`.
    """

    axis: str
    factor: float
    low: float
    high: float
    log: bool


@dataclass(frozen=True, kw_only=True)
class KnownCost:
    """Metric, by the search's name, that is the sum of a constant and of one term for each axis."""

    metric: str
    terms: tuple[Term, ...]
    constant: float


def known_cost(
    space: Space, encoding: Encoding, outcomes: Outcomes, records: Sequence[Trial]
) -> KnownCost | None:
    """Return the objective that equals the cost of all stages in every result.

    None with a single objective; where a cost is no expression, or depends on a choice or on what does not
    always exist; and until two results of different cost agree.
    """
    if len(space.objectives) < 2 or not space.stages or not all(stage.cost for stage in space.stages):
        return None
    total: dict[str, float] = {}  # coefficients of the sum of all stages' costs; "" is that of the constant
    for stage in space.stages:
        cost = parse_expression(stage.cost, space.names())
        for name, factor in (*cost.coefficients.items(), ("", cost.constant)):
            total[name] = total.get(name, 0.0) + factor
    constant, terms = 0.0, []
    for name, factor in total.items():
        if not name:
            constant += factor
        elif name in encoding.domain.fixed:
            constant += factor * number_of(encoding.domain.fixed[name])
        elif (term := _term(space, encoding, name, factor)) is not None:
            terms.append(term)
        else:
            return None
    metric = cost_metric(Stages(space), outcomes, records)
    return None if metric is None else KnownCost(metric=metric, terms=tuple(terms), constant=constant)


def _term(space: Space, encoding: Encoding, name: str, factor: float) -> Term | None:
    axis = next((a for a in encoding.axes if encoding.names[a.name] == name), None)
    if name in space.parents() or not isinstance(axis, Interval) or axis.log:
        return None
    unit = encoding.unit_range(name)
    if unit is None:  # the integers themselves, or the positions of steps
        start, slope = encoding.line(name)
        return Term(axis=axis.name, factor=factor, low=start, high=start + slope, log=False)
    if unit.normal is not None:
        return None
    return Term(axis=axis.name, factor=factor, low=float(unit.min), high=float(unit.max), log=unit.log)
