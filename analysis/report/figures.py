"""Two figures of the report: loss against compute, and the history of the search.

`report` calls this; `insight_figures` and `several_figures` have the others in the same `style`. Each kind of
point has its shape, so that the figures can be read in black and white.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis import labels
from analysis.errors import MissingColumn, NotNumeric
from analysis.report.style import BLUE, CROWD, GREEN, GREY, ORANGE, PURPLE, blank, scale, text
from analysis.statistics.curve import Curve
from analysis.statistics.pareto import Goal
from analysis.summaries.summary import ParetoResult
from analysis.table import PARAMETER, is_trials_table, numbers

# Generators in the order in which a sweep uses them; any other name takes the last look.
GENERATORS = {
    "baseline": (PURPLE, "pentagon"),
    "sobol": (ORANGE, "triangle-up"),
    "botorch": (BLUE, "circle"),
}
OTHER_GENERATOR = (GREY, "square-open")

HOVERED_PARAMETERS = 12
HOVERED_TRIALS = 2000
"""Beyond so many trials a point only says its index: the parameters stand in the table."""


def tradeoff(table: pd.DataFrame, result: ParetoResult, curve: Curve | None = None) -> go.Figure:
    """The points of `result`, its front as a step line, the knee and the most efficient trial by name.

    Args:
        table: the table that `result` was made from; the column `<y>_sem`, where it has one, becomes error
            bars (one standard error to each side).
        curve: a fit of y against x, drawn with its 95 % band between the smallest and the largest x.
    """
    figure = blank(labels.title(result.x), labels.title(result.y))
    row_of = _rows(table, result)
    at = {point.trial: point for point in result.points}
    front = set(result.front)
    beaten = [point.trial for point in result.points if point.trial not in front]

    def scatter(trials: list[int], **look: Any) -> go.Scatter:
        return go.Scatter(
            x=[at[t].x for t in trials],
            y=[at[t].y for t in trials],
            error_y=_error_bars(table, f"{result.y}_sem", [row_of[t] for t in trials]),
            text=_hovers(table, [row_of[t] for t in trials], trials),
            hovertemplate="%{x} · %{y}<br>%{text}<extra></extra>",
            **look,
        )

    if curve is not None:
        _band(figure, curve)
    if beaten:
        crowd = len(beaten) > CROWD
        figure.add_trace(
            scatter(
                beaten,
                mode="markers",
                name="not on the front",
                marker={
                    "symbol": "circle-open",
                    "size": 5 if crowd else 9,
                    "opacity": 0.4 if crowd else 1.0,
                    "color": GREY,
                    "line": {"width": 1.0 if crowd else 1.5},
                },
            )
        )
        if crowd:
            figure.data[-1].error_y = None
    if front:
        figure.add_trace(
            scatter(
                list(result.front),
                mode="lines+markers",
                name="Pareto front",
                # What can be had for at most x: it gets better at a point, not before it.
                line={"shape": "hv" if result.x_goal == "minimize" else "vh", "color": BLUE, "width": 2},
                marker={"symbol": "square", "size": 9, "color": BLUE},
            )
        )
    _mark(figure, result, at)
    if result.baseline is not None:
        _baseline(figure, result.baseline)
    xs, ys = [p.x for p in result.points], [p.y for p in result.points]
    figure.update_xaxes(scale(xs))
    figure.update_yaxes(scale(ys))
    return figure


def _band(figure: go.Figure, curve: Curve) -> None:
    """The fitted curve and its interval, where there are points."""
    xs = np.geomspace(curve.low, curve.high, 60)
    value, low, high = curve.predict(xs)
    band = {"fill": "tonexty", "fillcolor": "rgba(134,142,150,0.22)"}
    for ends, extra in ((low, {}), (high, band)):
        figure.add_trace(
            go.Scatter(
                x=xs.tolist(),
                y=ends.tolist(),
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


def _mark(figure: go.Figure, result: ParetoResult, at: dict[int, Any]) -> None:
    """Rings around the knee and the most efficient trial, with their names beside them."""
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


def _baseline(figure: go.Figure, baseline: float) -> None:
    figure.add_hline(
        y=baseline,
        line={"dash": "dash", "color": GREY, "width": 1.5},
        label={"text": f"baseline {labels.number(baseline)}", "textposition": "end", "yanchor": "bottom"},
    )


def history(table: pd.DataFrame, metric: str, goal: Goal = "minimize") -> go.Figure:
    """The metric of each trial in the order of their indices, the best so far, and the trials that failed.

    Args:
        table: a sweep's own table.
        metric: column of the (first) objective.
        goal: which way is better.
    """
    figure = blank("trial", labels.title(metric))
    table = table.sort_values("trial", kind="stable")
    values = numbers(table, metric)
    told = (table["status"] == "completed") & np.isfinite(values)
    crowd = int(told.sum()) > CROWD
    for generator in _ordered(table.loc[told, "generator"]):
        rows = table[told & (table["generator"] == generator)]
        _add_generator(figure, rows, metric, generator, crowd=crowd)
    if told.any():
        best = values[told].cummin() if goal == "minimize" else values[told].cummax()
        figure.add_trace(
            go.Scatter(
                x=table.loc[told, "trial"].tolist(),
                y=best.tolist(),
                mode="lines",
                name="best so far",
                line={"shape": "hv", "color": GREY, "width": 2, "dash": "dot"},
                hovertemplate="best so far %{y}<extra></extra>",
            )
        )
    figure.update_yaxes(scale(values[told].tolist()))
    last = max(table["trial"].tolist(), default=0)
    figure.update_xaxes(range=[-0.03 * last - 0.5, 1.03 * last + 0.5], dtick=1 if last <= 10 else None)
    _add_failed(figure, table[table["status"] == "failed"])
    return figure


def _add_generator(
    figure: go.Figure, rows: pd.DataFrame, metric: str, generator: str, *, crowd: bool
) -> None:
    colour, symbol = GENERATORS.get(generator, OTHER_GENERATOR)
    positions = list(range(len(rows)))
    figure.add_trace(
        go.Scatter(
            x=rows["trial"].tolist(),
            y=numbers(rows, metric).tolist(),
            error_y=None if crowd else _error_bars(rows, f"{metric}_sem", positions),
            mode="markers",
            name=text(generator),
            marker={
                "symbol": symbol,
                "size": 4 if crowd else 10,
                "opacity": 0.5 if crowd else 1.0,
                "color": colour,
            },
            text=_hovers(rows, positions, [int(trial) for trial in rows["trial"].tolist()]),
            hovertemplate="%{y}<br>%{text}<extra></extra>",
        )
    )


def _add_failed(figure: go.Figure, failed: pd.DataFrame) -> None:
    """Failed trials have no value: crosses along the foot of the figure, on an axis of their own."""
    if failed.empty:
        return
    figure.add_trace(
        go.Scatter(
            x=failed["trial"].tolist(),
            y=[0.03] * len(failed),
            yaxis="y2",
            mode="markers",
            name="failed",
            marker={"symbol": "x-thin", "size": 10, "line": {"width": 2.5, "color": GREY}},
            hovertemplate="trial %{x} failed<extra></extra>",
        )
    )
    figure.update_layout(yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True})


def _error_bars(table: pd.DataFrame, column: str, rows: list[int]) -> dict[str, Any] | None:
    try:
        sem = numbers(table, column).iloc[rows]
    except (MissingColumn, NotNumeric):
        return None  # a point without its error is still a point
    known = np.isfinite(sem) & (sem > 0)
    if not known.any():
        return None
    return {"type": "data", "array": sem.where(known, 0.0).tolist(), "thickness": 1.2, "width": 3}


def _rows(table: pd.DataFrame, result: ParetoResult) -> dict[int, int]:
    """Position of each trial's row in the table."""
    if not is_trials_table(table):
        return {point.trial: point.trial for point in result.points}
    return {int(trial): position for position, trial in enumerate(table["trial"].tolist())}


def _hovers(table: pd.DataFrame, rows: list[int], trials: list[int]) -> list[str]:
    """What each point says when pointed at. Columns are taken out whole: cell by cell it takes seconds."""
    names = [f"trial {trial}" for trial in trials]
    if len(table) > HOVERED_TRIALS:
        return names
    shown = table.iloc[rows]
    if "generator" in table.columns:
        told = shown["generator"].tolist()
        names = [f"{name} ({text(str(who))})" for name, who in zip(names, told, strict=True)]
    parameters = [str(name) for name in table.columns if str(name).startswith(PARAMETER)]
    columns = [
        [
            f"{text(name.removeprefix(PARAMETER))} {text(labels.cell(value))}" if there else ""
            for value, there in zip(shown[name].tolist(), shown[name].notna().tolist(), strict=True)
        ]
        for name in parameters
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
