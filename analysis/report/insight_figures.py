"""Figures of the parameters: sensitivities, marginal effects, cross-validation, parallel coordinates."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go

from analysis import labels
from analysis.report.style import BLUE, GREY, axis_type, blank, text
from analysis.statistics.pareto import Goal
from analysis.summaries.insight import EffectPoint, View
from analysis.table import PARAMETER, TrialsTable

CURVES = 6
"""Most marginal effects shown, those of the most sensitive parameters."""

LINES = 500
"""Most trials in the parallel coordinates, the best ones."""


def sensitivities(view: View) -> go.Figure:
    """Draw a bar per parameter: the variance that it explains with others and alone."""
    figure = blank("% of variance", "")
    rows = view.sensitivity[::-1]  # plotly builds from below
    names = [_broken(text(name)) for name, _, _ in rows]
    alone = [100 * min(first, total) for _, first, total in rows]
    both = [100 * total for _, _, total in rows]
    bars = (
        ("with others", both, "rgba(0,0,0,0)", 0.75),
        ("alone", alone, BLUE, 0.4),
    )
    for label, values, colour, width in bars:
        figure.add_trace(
            go.Bar(
                y=names,
                x=values,
                orientation="h",
                name=label,
                width=width,
                marker={"color": colour, "line": {"color": BLUE, "width": 1.5}},
                hovertemplate="%{y}: %{x:.0f} % " + label + "<extra></extra>",
            )
        )
    figure.update_layout(barmode="overlay", height=130 + 40 * len(rows))
    figure.update_xaxes(range=[0, 100])
    return figure


def _broken(name: str) -> str:
    """Break a long name at the dot nearest its middle: on a phone the bars need room, too."""
    dots = [at + 1 for at, sign in enumerate(name) if sign == "."]
    if len(name) <= 16 or not dots:
        return name
    middle = min(dots, key=lambda at: abs(at - len(name) / 2))
    return f"{name[:middle]}<br>{name[middle:]}"


def cross_validation(view: View, metric: str) -> go.Figure:
    """Draw each trial as predicted without it against its observation; on the line the surrogate is right."""
    name = labels.title(metric)
    figure = blank(f"observed {name}", "predicted without it")
    observed = [held_out.observed for held_out in view.cross_validation]
    diagonal = [min(observed), max(observed)]
    figure.add_trace(
        go.Scatter(
            x=diagonal,
            y=diagonal,
            mode="lines",
            name="right",
            line={"color": GREY, "dash": "dash", "width": 1.5},
            hoverinfo="skip",
        )
    )
    figure.add_trace(
        go.Scatter(
            x=observed,
            y=[held_out.predicted for held_out in view.cross_validation],
            error_y={
                "type": "data",
                "array": [1.96 * held_out.sd for held_out in view.cross_validation],
                "thickness": 1.2,
                "width": 3,
            },
            mode="markers",
            name="trials (bars: 95 %)",
            marker={"symbol": "circle-open", "size": 9, "color": BLUE, "line": {"width": 1.5}},
            text=[f"trial {held_out.trial}" for held_out in view.cross_validation],
            hovertemplate="%{text}<br>observed %{x:.4g}, predicted %{y:.4g}<extra></extra>",
        )
    )
    return figure


def marginals(view: View) -> list[tuple[str, tuple[EffectPoint, ...]]]:
    """Return the marginal effects to draw: those of the most sensitive parameters, in that order."""
    order = [name for name, _, _ in view.sensitivity]
    rank = {name: at for at, name in enumerate(order)}
    return sorted(view.marginal, key=lambda effect: rank.get(effect[0], len(order)))[:CURVES]


def marginal(view: View, name: str, effect: tuple[EffectPoint, ...], metric: str) -> go.Figure:
    """Draw the predicted metric along one parameter, on the scale that all parameters of the metric share."""
    figure = blank(name, labels.title(metric))
    figure.add_trace(_effect_trace(effect))
    values = [float(point.value) for point in effect if not isinstance(point.value, str | bool)]
    if len(values) < len(effect):
        figure.update_xaxes(type="category")
    elif axis_type(values) == "log":
        # Three ticks of our own: plotly's shortened ones (2, 5, 100) are easily misread in a small picture.
        ticks = np.geomspace(min(values), max(values), 3).tolist()
        figure.update_xaxes(type="log", tickvals=ticks, ticktext=[labels.number(tick, 2) for tick in ticks])
    else:
        figure.update_xaxes(nticks=5)
    ends = [
        point.mean + sign * 1.96 * point.sd
        for _, points in view.marginal
        for point in points
        for sign in (-1, 1)
    ]
    margin = 0.04 * (max(ends) - min(ends)) or 0.1
    figure.update_yaxes(range=[min(ends) - margin, max(ends) + margin], nticks=6)
    figure.update_layout(showlegend=False, height=270, margin={"t": 10, "b": 40, "r": 10})
    return figure


def _effect_trace(effect: tuple[EffectPoint, ...]) -> go.Scatter:
    numeric = all(not isinstance(point.value, str | bool) for point in effect)
    return go.Scatter(
        x=[point.value if numeric else text(labels.cell(point.value)) for point in effect],
        y=[point.mean for point in effect],
        error_y={"type": "data", "array": [1.96 * point.sd for point in effect], "thickness": 1, "width": 3},
        mode="lines+markers" if numeric else "markers",
        line={"color": BLUE, "width": 2},
        marker={"symbol": "circle" if numeric else "square", "size": 7, "color": BLUE},
        hovertemplate="%{x}: %{y:.4g}<extra></extra>",
    )


def parallel(table: TrialsTable, metric: str, goal: Goal = "minimize") -> go.Figure | None:
    """Draw a line per completed trial through its parameters to its result; None with fewer than two.

    The best tenth are thick and dark, the others thinner and paler by rank: it reads without colours.
    (Plotly's own parallel coordinates compile code at run time, which the page's content security policy
    forbids.)

    Args:
        table: a sweep's own.
        metric: column of the result.
        goal: whether less or more of it is better.
    """
    values = table.numbers(metric)
    done = table.frame[table.completed & np.isfinite(values.to_numpy())]
    ranked = values.loc[done.index].sort_values(ascending=goal == "minimize", kind="stable").index[:LINES]
    done = done.loc[ranked]
    names = [name for name in table.parameters if done[name].map(repr).nunique() > 1]
    if len(done) < 2 or not names:
        return None
    axes = [_Axis.of(name.removeprefix(PARAMETER), done[name]) for name in names]
    axes.append(_Axis.of(labels.title(metric), values.loc[done.index]))
    heights = np.array([axis.heights for axis in axes]).T  # [trials, axes]
    figure = blank("", "")
    bounds = [0, *(max(1, round(len(done) * share)) for share in (0.1, 0.4)), len(done)]
    for (start, end), style in list(zip(itertools.pairwise(bounds), RANK_STYLES, strict=True))[::-1]:
        if end > start:
            figure.add_trace(_lines(heights[start:end], done["trial"].tolist()[start:end], style))
    figure.update_xaxes(
        tickvals=list(range(len(axes))),
        ticktext=[text(axis.name).replace(".", ".<br>") for axis in axes],
        tickangle=0,
        showgrid=True,
        gridcolor=GREY,
        range=[-0.3, len(axes) - 0.4],
    )
    figure.update_yaxes(visible=False, range=[-0.1, 1.1])
    _add_ticks(figure, axes)
    figure.update_layout(height=430, hovermode="closest")
    return figure


def _add_ticks(figure: go.Figure, axes: list[_Axis]) -> None:
    for at, axis in enumerate(axes):
        for height, label in axis.ticks:
            # Beyond the ends, where no line crosses it.
            beyond = {0.0: -9, 1.0: 9}.get(height, 0)
            figure.add_annotation(
                x=at,
                y=height,
                yshift=beyond,
                text=text(label),
                showarrow=False,
                xanchor="left",
                xshift=4,
                font={"size": 11},
            )


RANK_STYLES: tuple[dict[str, Any], ...] = (
    {"name": "best tenth", "line": {"color": BLUE, "width": 3}},
    {"name": "next three tenths", "line": {"color": BLUE, "width": 1.2}, "opacity": 0.6},
    {"name": "the rest", "line": {"color": GREY, "width": 0.8}, "opacity": 0.4},
)


def _lines(heights: npt.NDArray[np.float64], trials: list[int], style: dict[str, Any]) -> go.Scatter:
    """Return all lines of one style as one trace, with gaps between them."""
    count = heights.shape[1]
    return go.Scatter(
        x=[*range(count), None] * len(heights),
        y=[y for row in heights.tolist() for y in (*row, None)],
        text=[t for trial in trials for t in (*[f"trial {trial}"] * count, "")],
        mode="lines",
        hovertemplate="%{text}<extra></extra>",
        **style,
    )


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """One axis: the height (0 to 1) at which each trial crosses it, and its ticks."""

    name: str
    heights: list[float]
    ticks: list[tuple[float, str]]

    @classmethod
    def of(cls, name: str, values: pd.Series[Any]) -> _Axis:
        """Scale numbers (their logarithm over wide ranges); other values get equal steps in sorted order."""
        plain = [v.item() if isinstance(v, np.generic) else v for v in values.tolist()]
        if all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in plain):
            floats = [float(v) for v in plain]
            is_log = axis_type(floats) == "log"
            scaled = [math.log10(v) for v in floats] if is_log else floats
            low, high = min(scaled), max(scaled)
            span = (high - low) or 1.0
            ticks = [(0.0, labels.number(min(floats), 3)), (1.0, labels.number(max(floats), 3))]
            return cls(name=name, heights=[(p - low) / span for p in scaled], ticks=ticks)
        cells = [labels.cell(v) for v in plain]
        kinds = sorted(set(cells))
        step = 1 / max(1, len(kinds) - 1)
        shown = [(at * step, kind) for at, kind in enumerate(kinds)] if len(kinds) <= 12 else []
        return cls(name=name, heights=[kinds.index(v) * step for v in cells], ticks=shown)
