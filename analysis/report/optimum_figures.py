"""Figures of where the optimum lies: for each parameter the surrogate's curve, trials, and an interval."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from analysis import labels
from analysis.report.figure import Figure
from analysis.report.insight_figures import curve_rows, has_numbers, parameter_axis
from analysis.report.style import BLUE, GREY, ORANGE, Scale, middle, scale
from analysis.report.vega_lite import NUMBER, Axis, Drawing, Row, Series
from analysis.summaries.insight import Answer, ParameterOptimum
from analysis.table import PARAMETER, TrialsTable, is_confirming

SHOWN = 0.6
"""Share of the trials, the best, that the axis of the metric reaches: the worst would flatten all curves."""

FLOOR = 0.16
"""Share of the axis below everything else, where the interval and its text stand."""


def optima(
    table: TrialsTable, found: Answer, *, minimize: bool = True, log: Collection[str] = ()
) -> dict[str, Figure]:
    """Return the figures of all parameters, by their id on the page.

    Args:
        log: names of the parameters that are searched on a logarithmic scale.
    """
    return {
        f"optimum-{at}": optimum(table, found, name, minimize=minimize, log=name in log)
        for at, name in enumerate(found.parameters)
    }


def optimum(
    table: TrialsTable, found: Answer, name: str, *, minimize: bool = True, log: bool = False
) -> Figure:
    """Draw the metric along one parameter, the others as chosen, the trials and the optimum's interval."""
    parameter = found.parameters[name]
    is_numeric = has_numbers(parameter.curve) and not parameter.shares
    curve = curve_rows(parameter.curve, is_numeric=is_numeric)
    cells = [row["value"] for row in curve]
    trials = _trials(table, found.metric, name, cells, is_numeric=is_numeric)
    heights = _heights(found, [value for _, value, _ in trials], minimize=minimize)
    bottom, high = heights.domain or (0.0, 1.0)
    low = bottom + FLOOR / (1 + FLOOR) * (high - bottom)
    drawing = Drawing(
        x=parameter_axis(name, parameter.curve, is_numeric=is_numeric, log=log),
        y=Axis(title=labels.title(found.metric), scale=heights, count=5),
        height=270,
        legend=False,
        zoom=False,
    )
    for row in curve:
        row |= {key: min(max(row[key], low), high) for key in ("y", "low", "high")}
    model = Series(name="model", colour=BLUE, shape="square", size=7, width=2)
    if is_numeric:
        drawing.band(Series(name="model, 95 %", colour=BLUE, opacity=0.18), curve)
        drawing.line(model, [row for row in curve if low < row["y"] < high] or curve)
    else:
        drawing.errors(model, curve)
        drawing.points(model, curve, tip=f"datum.value + ': ' + format(datum.y, {NUMBER})")
    rows: list[Row] = [
        {"x": x, "y": value, "trial": trial} for x, value, trial in trials if low <= value <= high
    ]
    tip = f"'trial ' + datum.trial + ': ' + format(datum.y, {NUMBER})"
    others = [row for row in rows if row["trial"] != found.trial]
    drawing.points(Series(name="trials", colour=GREY, shape="circle", size=6, filled=False), others, tip=tip)
    chosen = [row for row in rows if row["trial"] == found.trial]
    drawing.points(Series(name="chosen", colour=ORANGE, shape="diamond", size=11), chosen, tip=tip)
    _mark(drawing, parameter, curve, (bottom, high), is_numeric=is_numeric)
    return drawing.figure()


def _mark(
    drawing: Drawing,
    parameter: ParameterOptimum,
    curve: Sequence[Row],
    heights: tuple[float, float],
    *,
    is_numeric: bool,
) -> None:
    """Add the interval as a bar along the lower edge with its text, or the share of each option."""
    low, high = heights
    bottom, above = low + 0.02 * (high - low), low + 0.08 * (high - low)
    if parameter.interval is None:
        shares = {labels.cell(option.value): option.share for option in parameter.shares}
        texts: list[Row] = [
            {"x": row["x"], "y": bottom, "text": labels.share(shares.get(row["value"], 0.0))} for row in curve
        ]
        drawing.text(texts, align="center", baseline="bottom")
        return
    if is_numeric:
        ends = [float(end) for end in parameter.interval if not isinstance(end, str | bool)]
    else:
        places = {row["value"]: row["x"] for row in reversed(curve)}
        ends = [places[cell] for cell in map(labels.cell, parameter.interval) if cell in places]
    if len(ends) != len(parameter.interval):
        return
    bar = Series(name="95 % of the optimum", colour=ORANGE, width=5)
    # A bar of no length has a stroke's width all the same, by a cap at either end.
    drawing.points(
        Series(name=bar.name, colour=ORANGE, shape="square", size=5),
        [{"x": end, "y": bottom} for end in ends],
    )
    drawing.line(bar, [{"x": end, "y": bottom} for end in ends])
    at = middle(drawing.x.scale) if is_numeric else (curve[0]["x"] + curve[-1]["x"]) / 2
    drawing.text([{"x": at, "y": above, "text": parameter.text}], align="center", baseline="bottom")


def _trials(
    table: TrialsTable, metric: str, name: str, cells: Sequence[str], *, is_numeric: bool
) -> list[tuple[float, float, int]]:
    """Return (place, value, index) of the completed trials of the search that have the parameter."""
    column = PARAMETER + name
    if column not in table or metric not in table:
        return []
    done = table.completed & ~is_confirming(table)
    found = []
    for at, value, trial in zip(
        table.frame[column][done], table.floats(metric)[done], table.trials[done], strict=True
    ):
        if not math.isfinite(value):
            continue
        if is_numeric:
            try:
                place = float(at)
            except (TypeError, ValueError):
                continue
        elif labels.cell(at) in cells:
            place = float(cells.index(labels.cell(at)))
        else:
            continue
        if math.isfinite(place):
            found.append((place, float(value), int(trial)))
    return found


def _heights(found: Answer, values: Sequence[float], *, minimize: bool) -> Scale:
    """Return the scale of the metric that all parameters share, with a floor for the intervals."""
    ranked = sorted(values, reverse=not minimize)
    shown = ranked[: max(1, math.ceil(SHOWN * len(ranked)))]
    chosen = [
        end
        for parameter in found.parameters.values()
        for point in parameter.curve
        if point.value == parameter.chosen
        for end in point.ends
    ]
    both = [*shown, *chosen] or [point.mean for each in found.parameters.values() for point in each.curve]
    low, high = scale(both, linear=True).domain or (0.0, 1.0)
    return Scale(domain=(low - FLOOR * (high - low), high))
