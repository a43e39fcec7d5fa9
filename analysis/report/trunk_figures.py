"""Figures of trunks and branches, and of values against lengths."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from analysis import labels
from analysis.report.reuse_figures import in_unit
from analysis.report.style import BLUE, GREY, blank, hollow, scale, text
from analysis.report.trunk_layout import HEAD, Layout, Line
from analysis.summaries.reuse import Reuse
from analysis.summaries.trunks import Lengths

ROW = 24
"""Height of a row in pixels."""

MANY_POINTS = 30
"""More points of a trunk are small."""


def trunks(drawing: Layout, found: Reuse) -> go.Figure:
    """Draw the trunks of a stage over its compute: their points, and each branch with its end's value."""
    figure = blank(in_unit(f"compute of {drawing.stage}", found), "trunk of")
    for line in drawing.lines:
        _add_branches(figure, line)
        _add_trunk(figure, line)
    for name, x, y, above in drawing.landmarks():
        figure.add_annotation(
            x=x, y=y, text=text(name), ax=0, ay=-ROW * above, showarrow=True, arrowhead=0, arrowwidth=0.8,
            arrowcolor=GREY if above > 1 else "rgba(0,0,0,0)", font={"size": 11}, xanchor="left",
            yanchor="middle",
        )  # fmt: skip
    names = [
        "<br>".join((text(first), *(f'<span style="font-size:11px">{text(part)}</span>' for part in rest)))
        for first, *rest in (line.name for line in drawing.lines)
    ]
    figure.update_layout(showlegend=False, height=100 + round(ROW * (drawing.rows + HEAD)))
    ticks = {"tickvals": [line.y for line in drawing.lines], "ticktext": names, "title_standoff": 12}
    figure.update_yaxes(ticks, showgrid=False, range=[drawing.rows - 0.3, -HEAD])
    figure.update_xaxes(range=[-0.01 * drawing.reach, 1.4 * drawing.reach], tickformat=",")
    return figure


def _add_branches(figure: go.Figure, line: Line) -> None:
    """Add a line down to each end and on to it, and its value."""
    for end in line.ends:
        branch = end.branch
        shown = ", ".join(map(str, branch.trials[:20])) + (" …" if len(branch.trials) > 20 else "")
        figure.add_trace(
            go.Scatter(
                x=[branch.leaves, branch.leaves, branch.end],
                y=[line.y, end.y, end.y],
                mode="lines+markers+text",
                line={"color": end.colour, "width": 4 if end.is_best else 2},
                marker={"color": end.colour, "size": [0, 0, 13 if end.is_best else 9], "opacity": 1},
                text=["", "", f"  <b>{text(end.text)}</b>" if end.is_best else f"  {text(end.text)}"],
                textposition="middle right",
                cliponaxis=False,
                hovertemplate=(
                    f"leaves at {labels.number(branch.leaves)}, ends at {labels.number(branch.end)}<br>"
                    f"{labels.counted(len(branch.trials), 'trial')}: {shown}<extra></extra>"
                ),
            )
        )


def _add_trunk(figure: go.Figure, line: Line) -> None:
    """Add a trunk and its points."""
    trunk = line.trunk
    names = [f"{text(name)} {text(value)}" for name, value in trunk.parameters]
    about = "<br>".join([f"trunk of trial {trunk.trial}, {labels.share(trunk.saved)} saved", *names])
    figure.add_trace(
        go.Scatter(
            x=[0.0, trunk.reach], y=[line.y] * 2, mode="lines", line={"color": GREY, "width": 6}, opacity=0.6,
            hovertemplate=f"{about}<extra></extra>",
        )
    )  # fmt: skip
    points: dict[str, Any] = {
        "symbol": ["circle" if point.stored else "circle-open" for point in trunk.points],
        "size": 8 if len(trunk.points) <= MANY_POINTS else 5,
        "color": GREY,
        "line": {"color": GREY, "width": 1.5},
    }
    figure.add_trace(
        go.Scatter(
            x=[point.cost for point in trunk.points],
            y=[line.y] * len(trunk.points),
            mode="markers",
            marker=points,
            customdata=[
                f"{point.step:,}, {'stored' if point.stored else 'removed since'}" for point in trunk.points
            ],
            hovertemplate="point at step %{customdata}<extra></extra>",
        )
    )


def lengths(curve: Lengths, found: Reuse, metric: str) -> go.Figure:
    """Draw the values of all trials against the length of a stage; those of one trunk are joined."""
    figure = blank(length_title(curve, found), labels.title(metric))
    xs, ys = ([point[axis] for point in curve.points] for axis in (0, 1))
    marker = hollow(8, crowd=len(curve.points) > MANY_POINTS)
    figure.add_trace(go.Scatter(x=xs, y=ys, mode="markers", name="a trial", marker=marker))
    for nth, line in enumerate(curve.trunks[::-1], start=1 - len(curve.trunks)):  # the best stands in front
        figure.add_trace(
            go.Scatter(
                x=[length for length, _ in line],
                y=[value for _, value in line],
                mode="lines+markers",
                name="another trunk" if nth else "the best trunk",
                showlegend=nth in (0, -1),
                opacity=0.6 if nth else 1.0,
                line={"color": GREY if nth else BLUE, "width": 1 if nth else 2.5},
                marker={"size": 4 if nth else 7},
            )
        )
    x, y = curve.best
    star = {"symbol": "star", "size": 15, "color": BLUE}
    figure.add_trace(go.Scatter(x=[x], y=[y], mode="markers", name=f"best: trial {curve.trial}", marker=star))
    figure.update_xaxes(scale(xs))
    figure.update_yaxes(scale(ys))
    return figure


def length_title(curve: Lengths, found: Reuse) -> str:
    """Return the title of the axis of lengths."""
    return f"steps of {curve.stage}" if curve.in_steps else in_unit(f"compute of {curve.stage}", found)
