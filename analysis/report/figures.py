"""Figures of the trade-off and of the history of the search.

Each kind of point has a shape of its own, so that the figures can be read in black and white.
"""

from __future__ import annotations

import numpy as np

from analysis import labels
from analysis.report.figure import Figure
from analysis.report.style import (
    BLUE,
    CROSS,
    CROWD,
    GREEN,
    GREY,
    HEXAGON,
    ORANGE,
    PENTAGON,
    PURPLE,
    STAR,
    Scale,
    middle,
    scale,
)  # fmt: skip
from analysis.report.vega_lite import Axis, Drawing, Row, Series, Step, grey, tip_of
from analysis.statistics.curve import Curve
from analysis.statistics.pareto import Goal, Positions
from analysis.summaries.summary import ParetoResult, Point
from analysis.table import CONFIRM, PARAMETER, TrialsTable, is_confirming

GENERATORS = {
    "baseline": (PURPLE, PENTAGON),
    "enqueued": (GREY, STAR),
    "sobol": (ORANGE, "triangle-up"),
    "botorch": (BLUE, "circle"),
    CONFIRM: (GREEN, "diamond"),
}
"""Colours and symbols of the generators, in the order in which a sweep uses them."""

OTHER_GENERATOR = (GREY, "square")

TRADEOFF_HEIGHT = 330
"""In pixels: the page's first screen has the front, the best trial and what to do next."""

FEW = 3
HOVERED_PARAMETERS = 12
HOVERED_TRIALS = 500
"""With more trials a point only shows its index when pointed at; the parameters are in the table."""


def tradeoff(table: TrialsTable, result: ParetoResult, curve: Curve | None = None) -> Figure:
    """Draw the points of a trade-off, its front as a step line, the knee and the most efficient trial.

    Args:
        table: the table that `result` was made from; the column `<y>_sem`, if it has one, becomes error bars
            (one standard error to each side), with the spread over seeds where trials were repeated.
        curve: a fit of y against x, drawn with its 95 % band between the smallest and the largest x.
    """
    table = table.configurations
    ends = _ends(table, result.y) + ([] if result.baseline is None else [result.baseline])
    drawing = Drawing(
        x=Axis(title=labels.title(result.x), scale=scale([point.x for point in result.points])),
        y=Axis(title=labels.title(result.y), scale=scale([point.y for point in result.points], ends)),
        height=TRADEOFF_HEIGHT,
    )
    if curve is not None:
        xs = np.geomspace(curve.low, curve.high, 60)
        within = drawing.y.scale.within  # the fit of a score may cross zero
        heights = ([within(value) for value in part.tolist()] for part in curve.predict(xs))
        columns = (xs.tolist(), *heights)
        band = [{"x": x, "y": y, "low": low, "high": high} for x, y, low, high in zip(*columns, strict=True)]
        drawing.band(grey("95 % of the fit", shape="square", opacity=0.22), band)
        drawing.line(
            grey("fitted curve", dash=(8, 3, 2, 3)), band, tip="'fitted ' + format(datum.y, ',.4~g')"
        )
    if result.baseline is not None:
        drawing.rules(grey("baseline", dash=(6, 4)), y=result.baseline)
        right = {"y": result.baseline, "text": f"baseline {labels.number(result.baseline)}"}
        drawing.text([right], right=True, align="right", dx=-4, dy=-4, baseline="bottom")
    at = {point.trial: point for point in result.points}
    front = set(result.front)
    beaten = [p for p in result.points if p.trial not in front and p.trial not in result.confirmed]
    if beaten:
        crowd = len(beaten) > CROWD
        _add_kind(
            drawing, table, result.y, beaten, hollow("not on the front", 9, crowd=crowd), bars=not crowd
        )
    if front:
        points = [at[trial] for trial in result.front]
        style = Series(name="Pareto front", colour=BLUE, shape="square", width=2, filled=not result.confirmed)
        drawing.line(style, [{"x": point.x, "y": point.y} for point in points], step=step_of(result.x_goal))
        _add_kind(drawing, table, result.y, points, style)
    if result.confirmed:
        name = labels.confirmed(*result.confirmed.values())
        style = Series(name=name, colour=BLUE, shape=HEXAGON, size=11)
        _add_kind(drawing, table, result.y, [at[trial] for trial in result.confirmed], style)
    rings = (
        ("knee", result.knee, "diamond", ORANGE, 14),
        ("most efficient", result.most_efficient, STAR, GREEN, -14),
    )
    for name, trial, shape, colour, below in rings:
        if trial is not None:
            style = Series(
                name=f"{name} (trial {trial})", colour=colour, shape=shape, size=20, width=2.5, filled=False
            )
            row = {"x": at[trial].x, "y": at[trial].y}
            drawing.points(style, [row])
            is_left = row["x"] <= middle(drawing.x.scale)  # towards the other side, where nothing is cut off
            drawing.text(
                [row | {"text": name}],
                align="left" if is_left else "right",
                dx=9 if is_left else -9,
                dy=below,
            )
    return drawing.figure()


def step_of(goal: Goal) -> Step:
    """Return how a front's line goes: the best y for at most x improves at a point, not before it."""
    return "step-after" if goal == "minimize" else "step-before"


def hollow(name: str, size: float, *, crowd: bool) -> Series:
    """Return the style of trials that are not on the front, small and pale in a crowd."""
    size, width, opacity = (size - 4, 1.0, 0.4) if crowd else (size, 1.5, 1.0)
    return grey(name, shape="circle", filled=False, size=size, width=width, opacity=opacity)


def _ends(table: TrialsTable, y: str) -> list[float]:
    """Return the ends of all error bars."""
    sem = np.nan_to_num(table.standard_errors(y))
    ys = table.floats(y)
    known = np.isfinite(ys)
    return [*(ys + sem)[known].tolist(), *(ys - sem)[known].tolist()]


def _add_kind(
    drawing: Drawing, table: TrialsTable, y: str, points: list[Point], style: Series, *, bars: bool = True
) -> None:
    """Add points of one kind, and their error bars behind them."""
    positions = np.array([table.row_of[point.trial] for point in points], dtype=np.intp)
    rows = _hovered(table, positions, [(point.x, point.y) for point in points], len(table))
    if bars:
        rows = _with_errors(rows, np.nan_to_num(table.standard_errors(y)[positions]).tolist())
    drawing.errors(style, rows)
    drawing.points(style, rows, tip=tip_of(rows))


def _hovered(
    table: TrialsTable, positions: Positions, places: list[tuple[float, float]], count: int
) -> list[Row]:
    """Return a row per trial: its position, and the text of its tip, with parameters if `count` is small."""
    trials = table.trials[positions].tolist()
    rows: list[Row] = [{"x": x, "y": y, "trial": t} for (x, y), t in zip(places, trials, strict=True)]
    if count > HOVERED_TRIALS:
        return rows
    shown = table.frame.iloc[positions]
    generators = (
        [f"({who})" for who in shown["generator"].tolist()] if "generator" in table else [""] * len(rows)
    )
    # Whole columns are read at once: cell by cell, pandas takes seconds.
    columns = [
        [
            f"{name.removeprefix(PARAMETER)} {labels.cell(value)}" if there else ""
            for value, there in zip(shown[name].tolist(), shown[name].notna().tolist(), strict=True)
        ]
        for name in table.parameters
    ]
    parameters = zip(*columns, strict=True) if columns else [()] * len(rows)
    for row, generator, lines in zip(rows, generators, parameters, strict=True):
        row["more"] = "\n".join([generator, *[line for line in lines if line][:HOVERED_PARAMETERS]])
    return rows


def _with_errors(rows: list[Row], sem: list[float]) -> list[Row]:
    """Add the ends of the error bars to rows, where there is an error."""
    for row, error in zip(rows, sem, strict=True):
        if error:
            row |= {"low": row["y"] - error, "high": row["y"] + error}
    return rows


def history(table: TrialsTable, metric: str, goal: Goal = "minimize") -> Figure:
    """Draw the metric of each trial in the order of their indices, the best so far, and the failed trials.

    Runs of `sweep confirm` are drawn, too, but do not count as the best: the search did not find them. Nor do
    trials outside the outcome constraints.

    Args:
        metric: column of the (first) objective.
    """
    table = table.take(np.argsort(table.trials, kind="stable"))
    done = table.take(table.completed & np.isfinite(table.floats(metric)))
    last = max(table.trials.tolist(), default=0)
    # Of a single trial Vega would mark halves, too.
    ticks = tuple((float(at), str(at)) for at in range(last + 1)) if last < FEW else ()
    margin = 0.02 * last + 0.5  # less than a tick's distance: there is no trial -1
    reach = Scale(domain=(-margin, last + margin), ticks=ticks)
    values = scale(done.numbers(metric).tolist(), _ends(done, metric))
    drawing = Drawing(
        x=Axis(title="trial", scale=reach, integers=True), y=Axis(title=labels.title(metric), scale=values)
    )
    known = list(GENERATORS)
    crowd = len(done) > CROWD
    size, opacity = (4, 0.5) if crowd else (9, 1.0)
    for generator in sorted(
        {str(name) for name in done.frame["generator"]},
        key=lambda name: (known.index(name) if name in known else len(known), name),
    ):
        rows = done.take((done.frame["generator"] == generator).to_numpy(dtype=np.bool_))
        colour, shape = GENERATORS.get(generator, OTHER_GENERATOR)
        style = Series(
            name=generator, colour=colour, shape=shape, size=size, width=0.5, opacity=opacity,
            filled=generator in GENERATORS,
        )  # fmt: skip
        places = list(zip(rows.trials.tolist(), rows.numbers(metric).tolist(), strict=True))
        data = _hovered(rows, np.arange(len(rows)), places, len(done))
        for row in data:
            del row["trial"]  # it is the x; of ten thousand trials that is 50 KB
        if not crowd:
            drawing.errors(style, _with_errors(data, np.nan_to_num(rows.standard_errors(metric)).tolist()))
        drawing.points(style, data, tip=tip_of(data, "datum.y", trial="datum.x"))
    searched = done.take(done.feasible & ~is_confirming(done))
    if len(searched):
        found = searched.numbers(metric)
        best = (found.cummin() if goal == "minimize" else found.cummax()).tolist()
        corners = [  # the ends of the line, and where it steps
            {"x": trial, "y": y}
            for at, (trial, y) in enumerate(zip(searched.trials.tolist(), best, strict=True))
            if at in (0, len(best) - 1) or y != best[at - 1]
        ]
        style = grey("best so far", width=2, dash=(2, 3))
        drawing.line(style, corners, step="step-after", tip="'best so far ' + datum.y")
    failed = [{"x": trial} for trial in table.trials[table.has_status("failed")].tolist()]
    if failed:  # without a value, so along the lower edge
        style = grey("failed", shape=CROSS, filled=False, width=2, size=8)
        drawing.points(style, failed, tip="'trial ' + datum.x + ' failed'", bottom=True)
    return drawing.figure()
