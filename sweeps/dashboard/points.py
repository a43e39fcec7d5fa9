"""Points of the front: two columns of the completed trials, and which of them no other trial beats.

A parameter whose values are texts is an axis, too: each of its values has a place, 0, 1, 2, and so on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.labels import cell
from analysis.statistics.pareto import Goal
from analysis.statistics.pareto import front as front_of
from analysis.summaries.compute import MEASURES
from sweeps.dashboard.reader import View
from sweeps.dashboard.trial_table import metric_column, raw
from sweeps.export import table
from sweeps.space.definition import Choice, Fixed, cell_of
from sweeps.space.fidelity import is_at_target
from sweeps.text.columns import MACHINE_SECONDS, PARAMETER
from sweeps.trials.record import Trial

_COMPUTE = tuple(column for measure in MEASURES.values() for column in measure.columns)
"""Columns with measures of compute, the best first."""
_RUN = (MACHINE_SECONDS, "seconds", "paid")
"""Columns of what a run took, which fresh runs have their own of."""
_OWN = (*_RUN, "trial")
_MOST_COLUMNS = 60
_SPREAD = 0.5
"""Width over which the trials of one text are spread, which would hide one another in its place."""
_STEPS = (0.7548776662, 0.5698402910)
"""Trials spread by multiples of these, for x and y, fill a square evenly: https://doi.org/10.1007/978-3-319-91436-7"""


@dataclass(frozen=True, kw_only=True)
class Points:
    """Points of two columns, [N] each, in the order of the trials.

    Args:
        front: positions of those on the front, by ascending x.
        log: whether x and y are parameters that are searched on a logarithmic scale.
        names: of x and y, the text at each place; () for numbers. A point is within `_SPREAD` / 2 of it.
    """

    x: str
    y: str
    trials: list[int]
    xs: list[float]
    ys: list[float]
    front: list[int]
    goals: tuple[Goal, Goal]
    log: tuple[bool, bool] = (False, False)
    names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


def value_of(record: Trial, column: str) -> float | None:
    """Return a trial's number in a column: of a metric, `param.NAME`, or one of `_OWN`."""
    found = raw(record, column)
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return float(found)


def names_of(view: View, column: str) -> tuple[str, ...]:
    """Return the texts of a parameter by their places; () if its completed trials have numbers alone."""
    if not column.startswith(PARAMETER):
        return ()
    values = [raw(record, column) for record in view.records if record.status == "completed"]
    if not any(isinstance(value, str | bool) for value in values):
        return ()
    by_name = {f"{PARAMETER}{parameter.name}": parameter for parameter in view.space.parameters}
    parameter = by_name.get(column)
    declared = [cell(cell_of(v)) for v in parameter.values] if isinstance(parameter, Choice) else []
    return tuple(dict.fromkeys([*declared, *sorted({cell(value) for value in values if value is not None})]))


def columns(view: View) -> list[str]:
    """Return the columns that a point may have: objectives, other metrics, our own, parameters."""
    done = [record for record in view.records if record.status == "completed"]
    metrics = dict.fromkeys([*view.space.metrics(), *(name for record in done for name in record.metrics)])
    parameters = [
        column
        for parameter in view.space.parameters
        for column in (f"{PARAMETER}{parameter.name}",)
        if any(value_of(record, column) is not None for record in done[:50])
        or (not isinstance(parameter, Fixed) and names_of(view, column))
    ]
    there = {"paid": any(r.stages for r in done), MACHINE_SECONDS: table.has_machine_seconds(view.records)}
    own = [name for name in _OWN if there.get(name, True)]
    errors = {f"{name}_sem" for name in metrics}
    values = [metric_column(name) for name in metrics if name not in errors]
    return [*values[:_MOST_COLUMNS], *own, *parameters]


def default_axes(view: View) -> tuple[str, str]:
    """Return x and y to show a sweep by: of two objectives the second is x; else the best compute is."""
    first, *others = map(metric_column, view.space.metrics())
    if len(others) == 1:
        return others[0], first
    done = [record for record in view.records if record.status == "completed"]
    skipped = {first} if table.has_machine_seconds(view.records) else {first, MACHINE_SECONDS}
    known = (
        name
        for name in _COMPUTE
        if name not in skipped and any(value_of(r, name) is not None for r in done[:200])
    )
    return next(known, "trial"), first


def points(view: View, x: str, y: str) -> Points:
    """Return the points of two columns; trials outside the outcome constraints are on no front.

    A confirmed trial is at the means of its fresh runs, which are no points of their own.
    No number of a parameter is better than another: with one, no point is on a front.
    """
    goals = {metric_column(objective.metric): objective.goal for objective in view.space.objectives}
    outside = set(table.infeasible(view.space, view.records))
    runs = table.fresh_runs(view.space, view.records)
    places = [{text: at for at, text in enumerate(names_of(view, column))} for column in (x, y)]

    def value(record: Trial, axis: int) -> float | None:
        column = (x, y)[axis]
        if not places[axis]:
            repeats = runs.get(record.trial, (record,)) if column in _RUN else (record,)
            known = [number for each in repeats if (number := value_of(each, column)) is not None]
            return statistics.fmean(known) if known else None
        found = raw(record, column)
        if found is None:
            return None
        return places[axis][cell(found)] + _SPREAD * (record.trial * _STEPS[axis] % 1 - 0.5)

    found = [
        (record, across, up)
        for record in table.at_means(view.space, view.records)
        if record.status == "completed"
        and record.generator != table.CONFIRM
        and is_at_target(view.space, record.parameters)
        and (across := value(record, 0)) is not None
        and (up := value(record, 1)) is not None
    ]
    both: tuple[Goal, Goal] = (goals.get(x, "minimize"), goals.get(y, "minimize"))
    xs, ys = [across for _, across, _ in found], [up for _, _, up in found]
    fit = [at for at, (record, _, _) in enumerate(found) if record.trial not in outside]
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
        names=(tuple(places[0]), tuple(places[1])),
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
        "goals": found.goals,
        "log": found.log,
        "names": found.names,
    }
