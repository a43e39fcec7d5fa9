"""Figures of what the surrogate says of the parameters: sensitivities, marginal effects, cross-validation."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from analysis import labels
from analysis.report.figure import Figure
from analysis.report.style import BLUE, Scale, axis_type, name_scale, scale
from analysis.report.vega_lite import NUMBER, Axis, Drawing, Row, Series, grey
from analysis.summaries.insight import EffectPoint, Insight, JointEffect, View

CURVES = 6
"""Most marginal effects shown, those of the most sensitive parameters."""


def surrogate_figures(insight: Insight, log: Collection[str]) -> dict[str, Figure]:
    """Return the figures of all metrics, by the ids that `mattered.html.j2` has for them.

    Args:
        log: names of the parameters that are searched on a logarithmic scale.
    """
    figures: dict[str, Figure] = {}
    for at, (metric, view) in enumerate(insight.metrics.items()):
        if view.sensitivity:
            figures[f"sensitivity-{at}"] = sensitivities(view)
        for nth, name in enumerate(marginals(view)):
            figures[f"marginal-{at}-{nth}"] = marginal(view, name, metric, log=name in log)
        if view.joint:
            figures[f"joint-{at}"] = joint(view.joint, metric)
        if view.cross_validation:
            figures[f"cross-validation-{at}"] = cross_validation(view, metric)
    return figures


def sensitivities(view: View) -> Figure:
    """Draw a bar per parameter: the variance that it explains with others (hollow) and alone (solid)."""
    names = [name for name, _ in view.ranking]
    drawing = Drawing(
        x=Axis(title="% of the variance", scale=Scale(domain=(0.0, 100.0))),
        y=Axis(title="", scale=name_scale([_broken(name) for name in names]), grid=False, inner=0.2),
        height=110 + 40 * len(names),
        zoom=False,
    )
    together, alone = ([s.total for _, s in view.ranking], [min(s.first, s.total) for _, s in view.ranking])
    kinds = (
        (Series(name="with others", colour=BLUE, shape="square", filled=False), 1.0, together),
        (Series(name="alone", colour=BLUE, shape="square"), 0.5, alone),
    )
    for style, height, shares in kinds:
        rows: list[Row] = [
            {"x": 0, "end": 100 * share, "y": y, "name": name}
            for y, (name, share) in enumerate(zip(names, shares, strict=True))
        ]
        drawing.bars(
            style,
            rows,
            height=height,
            tip=f"datum.name + ': ' + format(datum.end, '.0f') + ' % {style.name}'",
        )
    return drawing.figure()


def _broken(name: str) -> str | tuple[str, ...]:
    """Break a long name at the dot nearest its middle: on a phone the bars need room, too."""
    dots = [at + 1 for at, sign in enumerate(name) if sign == "."]
    if len(name) <= 16 or not dots:
        return name
    middle = min(dots, key=lambda at: abs(at - len(name) / 2))
    return name[:middle], name[middle:]


def cross_validation(view: View, metric: str) -> Figure:
    """Draw each trial as predicted without it against its observation; on the line the surrogate is right."""
    rows: list[Row] = [
        {
            "x": held_out.observed,
            "y": held_out.predicted,
            "low": held_out.predicted - 1.96 * held_out.predicted_sd,
            "high": held_out.predicted + 1.96 * held_out.predicted_sd,
            "trial": held_out.trial,
        }
        for held_out in view.cross_validation
    ]
    observed, ends = [row["x"] for row in rows], [row[end] for row in rows for end in ("low", "high")]
    drawing = Drawing(
        x=Axis(title=f"observed {labels.title(metric)}", scale=scale(observed, linear=True)),
        y=Axis(title="predicted without it", scale=scale([row["y"] for row in rows], ends, linear=True)),
    )
    drawing.line(grey("right", dash=(6, 4)), [{"x": at, "y": at} for at in (min(observed), max(observed))])
    style = Series(name="trials (bars: 95 %)", colour=BLUE, shape="circle", filled=False)
    drawing.errors(style, rows)
    tip = (
        f"'trial ' + datum.trial + '\\nobserved ' + format(datum.x, {NUMBER}) "
        f"+ ', predicted ' + format(datum.y, {NUMBER})"
    )
    drawing.points(style, rows, tip=tip)
    return drawing.figure()


def marginals(view: View) -> list[str]:
    """Return the parameters whose marginal effects are drawn: the most sensitive ones, in that order."""
    order = {name: at for at, (name, _) in enumerate(view.ranking)}
    return sorted(view.marginal, key=lambda name: order.get(name, len(order)))[:CURVES]


def marginal(view: View, name: str, metric: str, *, log: bool = False) -> Figure:
    """Draw the predicted metric along one parameter, on the scale that all parameters of the metric share."""
    curve = view.marginal[name]
    is_numeric = has_numbers(curve)
    ends = [end for points in view.marginal.values() for point in points for end in point.ends]
    drawing = Drawing(
        x=parameter_axis(name, curve, is_numeric=is_numeric, log=log),
        y=Axis(title=labels.title(metric), scale=scale(ends, linear=True), count=6),
        height=270,
        legend=False,
        zoom=False,
    )
    rows = curve_rows(curve, is_numeric=is_numeric)
    style = Series(name="predicted", colour=BLUE, shape="circle" if is_numeric else "square", size=7, width=2)
    drawing.errors(style, rows)
    if is_numeric:
        drawing.line(style, rows)
    drawing.points(style, rows, tip=f"datum.value + ': ' + format(datum.y, {NUMBER})")
    return drawing.figure()


def joint(effect: JointEffect, metric: str) -> Figure:
    """Draw the predicted metric over two parameters as a map of colours."""
    across = list(dict.fromkeys(cell.x for cell in effect.cells))
    up = list(dict.fromkeys(cell.y for cell in effect.cells))[::-1]  # bands are counted from the top
    drawing = Drawing(
        x=Axis(title=effect.x, scale=name_scale(_ends_named(across)), grid=False, inner=0.0),
        y=Axis(title=effect.y, scale=name_scale(_ends_named(up)), grid=False, inner=0.0),
        height=380,
        legend=False,
        zoom=False,
    )
    rows: list[Row] = [
        {
            "x": across.index(cell.x),
            "y": up.index(cell.y),
            "mean": cell.mean,
            "text": f"{labels.cell(cell.x)} · {labels.cell(cell.y)}",
        }
        for cell in effect.cells
    ]
    drawing.cells(rows, title=labels.title(metric), tip=f"datum.text + ': ' + format(datum.mean, {NUMBER})")
    return drawing.figure()


def _ends_named(values: Sequence[bool | int | float | str]) -> list[str]:
    """Return the texts of values; of many numbers those at the ends and in the middle, others are empty."""
    if len(values) <= 6 or any(isinstance(value, str | bool) for value in values):
        return [labels.cell(value) for value in values]
    kept = (0, len(values) // 2, len(values) - 1)
    return [labels.number(float(value), 2) if at in kept else "" for at, value in enumerate(values)]


def has_numbers(curve: Sequence[EffectPoint]) -> bool:
    """Return whether all values of the parameter are numbers."""
    return not any(isinstance(point.value, str | bool) for point in curve)


def parameter_axis(name: str, curve: Sequence[EffectPoint], *, is_numeric: bool, log: bool) -> Axis:
    """Return the axis of a parameter; of one that is not numeric, its values have places from 0 on."""
    if is_numeric:
        return Axis(title=name, scale=parameter_scale([float(p.value) for p in curve], log=log), count=4)
    return Axis(title=name, scale=name_scale([labels.cell(p.value) for p in curve], "point"), count=4)


def curve_rows(curve: Sequence[EffectPoint], *, is_numeric: bool) -> list[Row]:
    """Return the means and the ends of the intervals of 95 %, each at its place, with its value."""
    return [
        {
            "x": float(point.value) if is_numeric else float(at),
            "y": point.mean,
            **dict(zip(("low", "high"), point.ends, strict=True)),
            "value": labels.cell(point.value),
        }
        for at, point in enumerate(curve)
    ]


def parameter_scale(values: list[float], *, log: bool) -> Scale:
    """Return a scale for the points along a parameter.

    The picture is small, so a logarithmic scale has three ticks.

    Args:
        log: the parameter is searched on a logarithmic scale.
    """
    if axis_type(values, log=log) != "log":
        return scale(values)
    low, high = min(values), max(values)
    ticks = np.geomspace(low, high, 3).tolist()
    return Scale(
        type="log",
        domain=(low, high),
        ticks=tuple((tick, labels.number(float(f"{tick:.2g}"))) for tick in ticks),
    )
