"""Points of the front: two columns of the completed trials, and which of them no other trial beats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.statistics.pareto import Goal
from analysis.statistics.pareto import front as front_of
from analysis.summaries.compute import MEASURES
from sweeps.dashboard.reader import View
from sweeps.dashboard.trial_table import metric_column, raw
from sweeps.export import table
from sweeps.space.fidelity import is_at_target
from sweeps.text.columns import PARAMETER
from sweeps.trials.objectives import within_constraints
from sweeps.trials.record import Trial

_COMPUTE = tuple(column for measure in MEASURES.values() for column in measure.columns)
"""Columns with measures of compute, the best first."""
_OWN = ("seconds", "paid", "trial")
_MOST_COLUMNS = 60


@dataclass(frozen=True, kw_only=True)
class Points:
    """Points of two columns, [N] each, in the order of the trials.

    Args:
        front: positions of those on the front, by ascending x.
        log: whether x and y are parameters that are searched on a logarithmic scale.
    """

    x: str
    y: str
    trials: list[int]
    xs: list[float]
    ys: list[float]
    front: list[int]
    goals: tuple[Goal, Goal]
    log: tuple[bool, bool] = (False, False)


def value_of(record: Trial, column: str) -> float | None:
    """Return a trial's number in a column: of a metric, `param.NAME`, `seconds`, `paid` or `trial`."""
    found = raw(record, column)
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return float(found)


def columns(view: View) -> list[str]:
    """Return the columns of numbers that a point may have: objectives, other metrics, our own, parameters."""
    done = [record for record in view.records if record.status == "completed"]
    metrics = dict.fromkeys([*view.space.metrics(), *(name for record in done for name in record.metrics)])
    numeric = [
        f"{PARAMETER}{parameter.name}"
        for parameter in view.space.parameters
        if any(value_of(record, f"{PARAMETER}{parameter.name}") is not None for record in done[:50])
    ]
    own = [name for name in _OWN if name != "paid" or any(record.stages for record in done)]
    errors = {f"{name}_sem" for name in metrics}
    values = [metric_column(name) for name in metrics if name not in errors]
    return [*values[:_MOST_COLUMNS], *own, *numeric]


def default_axes(view: View) -> tuple[str, str]:
    """Return x and y to show a sweep by: of two objectives the second is x; else the best compute is."""
    first, *others = map(metric_column, view.space.metrics())
    if len(others) == 1:
        return others[0], first
    done = [record for record in view.records if record.status == "completed"]
    known = (
        name for name in _COMPUTE if name != first and any(value_of(r, name) is not None for r in done[:200])
    )
    return next(known, "trial"), first


def points(view: View, x: str, y: str) -> Points:
    """Return the points of two columns; trials outside the outcome constraints are on no front.

    No number of a parameter is better than another: with one, no point is on a front.
    """
    goals = {metric_column(objective.metric): objective.goal for objective in view.space.objectives}
    is_within = within_constraints(view.space)
    found = [
        (record, across, up)
        for record in view.records
        if record.status == "completed"
        and record.generator != table.CONFIRM
        and is_at_target(view.space, record.parameters)
        and (across := value_of(record, x)) is not None
        and (up := value_of(record, y)) is not None
    ]
    both: tuple[Goal, Goal] = (goals.get(x, "minimize"), goals.get(y, "minimize"))
    xs, ys = [across for _, across, _ in found], [up for _, _, up in found]
    fit = [at for at, (record, _, _) in enumerate(found) if is_within(record.metrics)]
    if any(column.startswith(PARAMETER) for column in (x, y)):
        fit = []
    positions = front_of([(xs[at], ys[at]) for at in fit], both).tolist()
    front = sorted((fit[at] for at in positions), key=lambda at: xs[at])
    log = {f"{PARAMETER}{name}" for name in table.log_parameters(view.space)}
    return Points(
        x=x,
        y=y,
        trials=[record.trial for record, _, _ in found],
        xs=xs,
        ys=ys,
        front=front,
        goals=both,
        log=(x in log, y in log),
    )


def document(found: Points) -> dict[str, object]:
    """Return the points as JSON for the page's script; x and y have seven digits, which no screen exceeds."""

    def short(values: Sequence[float]) -> list[float]:
        return [float(f"{value:.7g}") for value in values]

    return {
        "x": found.x,
        "y": found.y,
        "trials": found.trials,
        "xs": short(found.xs),
        "ys": short(found.ys),
        "front": found.front,
        "log": found.log,
    }
