"""Figures of the trade-off and of the history of the search.

Each kind of point has a shape of its own, so that the figures can be read in black and white.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis import labels
from analysis.report.style import BLUE, CROWD, GREEN, GREY, ORANGE, PURPLE, blank, hollow, scale, text
from analysis.statistics.curve import Curve
from analysis.statistics.pareto import Goal, Positions
from analysis.summaries.summary import ParetoResult, Point
from analysis.table import CONFIRM, PARAMETER, TrialsTable, is_confirming

GENERATORS = {
    "baseline": (PURPLE, "pentagon"),
    "enqueued": (GREY, "star"),
    "sobol": (ORANGE, "triangle-up"),
    "botorch": (BLUE, "circle"),
    CONFIRM: (GREEN, "diamond"),
}
"""Colours and symbols of the generators, in the order in which a sweep uses them."""

OTHER_GENERATOR = (GREY, "square-open")

HOVERED_PARAMETERS = 12
HOVERED_TRIALS = 2000
"""With more trials a point only shows its index when pointed at; the parameters are in the table."""


def tradeoff(table: TrialsTable, result: ParetoResult, curve: Curve | None = None) -> go.Figure:
    """Draw the points of a trade-off, its front as a step line, the knee and the most efficient trial.

    Args:
        table: the table that `result` was made from; the column `<y>_sem`, if it has one, becomes error bars
            (one standard error to each side), with the spread over seeds where trials were repeated.
        result: the trade-off.
        curve: a fit of y against x, drawn with its 95 % band between the smallest and the largest x.
    """
    table = table.configurations
    figure = blank(labels.title(result.x), labels.title(result.y))
    if curve is not None:
        _add_band(figure, curve)
    _add_points(figure, table, result)
    _add_marks(figure, result)
    if result.baseline is not None:
        _add_baseline(figure, result.baseline)
    figure.update_xaxes(scale([point.x for point in result.points]))
    ends = _ends(table, result.y) + ([] if result.baseline is None else [result.baseline])
    figure.update_yaxes(scale([point.y for point in result.points], ends))
    return figure


def _ends(table: TrialsTable, y: str) -> list[float]:
    """Return the ends of all error bars."""
    sem = np.nan_to_num(table.standard_errors(y))
    ys = table.floats(y)
    known = np.isfinite(ys)
    return [*(ys + sem)[known].tolist(), *(ys - sem)[known].tolist()]


def _add_points(figure: go.Figure, table: TrialsTable, result: ParetoResult) -> None:
    """Add the trials that are not on the front, then the front."""
    at = {point.trial: point for point in result.points}
    front = set(result.front)
    beaten = [p for p in result.points if p.trial not in front and p.trial not in result.confirmed]
    if beaten:
        crowd = len(beaten) > CROWD
        style = {"mode": "markers", "name": "not on the front", "marker": hollow(9, crowd=crowd)}
        figure.add_trace(_scatter(table, result.y, beaten, **style))
        if crowd:
            figure.data[-1].error_y = None
    if front:
        # A step shows the best y for at most x: it improves at a point, not before it.
        line = {"shape": "hv" if result.x_goal == "minimize" else "vh", "color": BLUE, "width": 2}
        open_ = {"line": {"width": 2}} if result.confirmed else {}
        symbol = "square-open" if result.confirmed else "square"
        marker = {"symbol": symbol, "size": 9, "color": BLUE, **open_}
        points = [at[trial] for trial in result.front]
        style = {"mode": "lines+markers", "name": "Pareto front", "line": line, "marker": marker}
        figure.add_trace(_scatter(table, result.y, points, **style))
    if result.confirmed:
        marker = {"symbol": "hexagon", "size": 12, "color": BLUE}
        name = labels.confirmed(*result.confirmed.values())
        points = [at[trial] for trial in result.confirmed]
        figure.add_trace(_scatter(table, result.y, points, mode="markers", name=name, marker=marker))


def _scatter(table: TrialsTable, y: str, points: list[Point], **style: Any) -> go.Scatter:
    rows = np.array([table.row_of[point.trial] for point in points], dtype=np.intp)
    return go.Scatter(
        x=[point.x for point in points],
        y=[point.y for point in points],
        error_y=_error_bars(table, y, rows),
        text=_hovers(table, rows),
        hovertemplate="%{x} · %{y}<br>%{text}<extra></extra>",
        **style,
    )


def _add_band(figure: go.Figure, curve: Curve) -> None:
    """Add the fitted curve and its interval between the smallest and the largest x."""
    xs = np.geomspace(curve.low, curve.high, 60)
    value, low, high = curve.predict(xs)
    band = {"fill": "tonexty", "fillcolor": "rgba(134,142,150,0.22)"}
    for edge, extra in ((low, {}), (high, band)):
        figure.add_trace(
            go.Scatter(
                x=xs.tolist(),
                y=edge.tolist(),
                mode="lines",
                line={"width": 0},
                hoverinfo="skip",
                name="95 % of the fit",
                showlegend=bool(extra),
                **extra,
            )
        )
    figure.add_trace(
        go.Scatter(
            x=xs.tolist(),
            y=value.tolist(),
            mode="lines",
            name="fitted curve",
            line={"color": GREY, "width": 1.5, "dash": "dashdot"},
            hovertemplate="fitted %{y:.4g}<extra></extra>",
        )
    )


def _add_marks(figure: go.Figure, result: ParetoResult) -> None:
    """Add rings with names around the knee and the most efficient trial."""
    at = {point.trial: point for point in result.points}
    marks = (
        ("knee", result.knee, "diamond-open", ORANGE, "bottom left"),
        ("most efficient", result.most_efficient, "star-open", GREEN, "top right"),
    )
    for name, trial, symbol, colour, side in marks:
        if trial is not None:
            figure.add_trace(
                go.Scatter(
                    x=[at[trial].x],
                    y=[at[trial].y],
                    mode="markers+text",
                    name=f"{name} (trial {trial})",
                    text=[name],
                    textposition=side,
                    hoverinfo="skip",
                    cliponaxis=False,
                    marker={"symbol": symbol, "size": 20, "color": colour, "line": {"width": 2.5}},
                )
            )


def _add_baseline(figure: go.Figure, baseline: float) -> None:
    figure.add_hline(
        y=baseline,
        line={"dash": "dash", "color": GREY, "width": 1.5},
        label={"text": f"baseline {labels.number(baseline)}", "textposition": "end", "yanchor": "bottom"},
    )


def history(table: TrialsTable, metric: str, goal: Goal = "minimize") -> go.Figure:
    """Draw the metric of each trial in the order of their indices, the best so far, and the failed trials.

    Runs of `sweep confirm` are drawn, too, but do not count as the best: the search did not find them.

    Args:
        table: a sweep's own table.
        metric: column of the (first) objective.
        goal: whether less or more of it is better.
    """
    figure = blank("trial", labels.title(metric))
    table = table.take(np.argsort(table.trials, kind="stable"))
    done = table.take(table.completed & np.isfinite(table.floats(metric)))
    crowd = len(done) > CROWD
    for generator in _ordered(done.frame["generator"]):
        rows = done.take((done.frame["generator"] == generator).to_numpy(dtype=np.bool_))
        _add_generator(figure, rows, metric, generator, crowd=crowd)
    searched = done.take(~is_confirming(done))
    if len(searched):
        values = searched.numbers(metric)
        best = values.cummin() if goal == "minimize" else values.cummax()
        figure.add_trace(
            go.Scatter(
                x=searched.trials.tolist(),
                y=best.tolist(),
                mode="lines",
                name="best so far",
                line={"shape": "hv", "color": GREY, "width": 2, "dash": "dot"},
                hovertemplate="best so far %{y}<extra></extra>",
            )
        )
    figure.update_yaxes(scale(done.numbers(metric).tolist(), _ends(done, metric)))
    last = max(table.trials.tolist(), default=0)
    figure.update_xaxes(range=[-0.03 * last - 0.5, 1.03 * last + 0.5], dtick=1 if last <= 10 else None)
    _add_failed(figure, table.trials[table.has_status("failed")].tolist())
    return figure


def _add_generator(figure: go.Figure, rows: TrialsTable, metric: str, generator: str, *, crowd: bool) -> None:
    colour, symbol = GENERATORS.get(generator, OTHER_GENERATOR)
    every = np.arange(len(rows))
    figure.add_trace(
        go.Scatter(
            x=rows.trials.tolist(),
            y=rows.numbers(metric).tolist(),
            error_y=None if crowd else _error_bars(rows, metric, every),
            mode="markers",
            name=text(generator),
            marker={
                "symbol": symbol,
                "size": 4 if crowd else 10,
                "opacity": 0.5 if crowd else 1.0,
                "color": colour,
            },
            text=_hovers(rows, every),
            hovertemplate="%{y}<br>%{text}<extra></extra>",
        )
    )


def _add_failed(figure: go.Figure, trials: list[int]) -> None:
    """Add failed trials, which have no value, as crosses along the bottom, on an axis of their own."""
    if not trials:
        return
    figure.add_trace(
        go.Scatter(
            x=trials,
            y=[0.03] * len(trials),
            yaxis="y2",
            mode="markers",
            name="failed",
            marker={"symbol": "x-thin", "size": 10, "line": {"width": 2.5, "color": GREY}},
            hovertemplate="trial %{x} failed<extra></extra>",
        )
    )
    figure.update_layout(yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True})


def _error_bars(table: TrialsTable, y: str, rows: Positions) -> dict[str, Any] | None:
    sem = np.nan_to_num(table.standard_errors(y)[rows])
    if not sem.any():
        return None
    return {"type": "data", "array": sem.tolist(), "thickness": 1.2, "width": 3}


def _hovers(table: TrialsTable, rows: Positions) -> list[str]:
    """Return the hover text of each trial. Columns are read as a unit: cell by cell it takes seconds."""
    names = [f"trial {trial}" for trial in table.trials[rows].tolist()]
    if len(table) > HOVERED_TRIALS:
        return names
    shown = table.frame.iloc[rows]
    if "generator" in table:
        generators = shown["generator"].tolist()
        names = [f"{name} ({text(str(who))})" for name, who in zip(names, generators, strict=True)]
    columns = [
        [
            f"{text(name.removeprefix(PARAMETER))} {text(labels.cell(value))}" if there else ""
            for value, there in zip(shown[name].tolist(), shown[name].notna().tolist(), strict=True)
        ]
        for name in table.parameters
    ]
    lines = zip(*columns, strict=True) if columns else [()] * len(rows)
    return [
        "<br>".join([name, *[line for line in present if line][:HOVERED_PARAMETERS]])
        for name, present in zip(names, lines, strict=True)
    ]


def _ordered(generators: pd.Series[Any]) -> list[str]:
    known = list(GENERATORS)
    names = {str(name) for name in generators}
    return sorted(names, key=lambda name: (known.index(name) if name in known else len(known), name))
