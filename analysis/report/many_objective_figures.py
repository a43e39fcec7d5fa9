"""Figures of three objectives or more, one per pair."""

from __future__ import annotations

import plotly.graph_objects as go

from analysis import labels
from analysis.report.style import BLUE, CROWD, blank, hollow, scale
from analysis.summaries.many_objective import ManyObjectiveFront


def pair(found: ManyObjectiveFront, x: int, y: int) -> go.Figure:
    """Draw trials by two objectives: squares are on the front in all, the line is the front of the two."""
    across, up = found.objectives[x], found.objectives[y]
    figure = blank(labels.title(across.metric), labels.title(up.metric))
    alone = list(found.pair_front(x, y))
    confirmed = [at for at, trial in enumerate(found.trials) if trial in found.confirmed]
    beaten = sorted({*range(len(found.trials))} - {*found.front, *confirmed})
    hollow_marker = hollow(8, crowd=len(beaten) > CROWD)
    square = {"symbol": "square-open" if confirmed else "square", "size": 7, "color": BLUE}
    hexagon = {"symbol": "hexagon", "size": 10, "color": BLUE}
    figure.add_trace(
        go.Scatter(
            x=found.values[alone, x].tolist(),
            y=found.values[alone, y].tolist(),
            mode="lines",
            name="front of these two",
            line={"shape": "hv" if across.goal == "minimize" else "vh", "color": BLUE, "width": 1.5},
            hoverinfo="skip",
        )
    )
    for name, members, marker in (
        ("not on the front", beaten, hollow_marker),
        ("front in all objectives", list(found.front), square),
        *([("confirmed", confirmed, hexagon)] if confirmed else []),
    ):
        figure.add_trace(
            go.Scatter(
                x=found.values[members, x].tolist(),
                y=found.values[members, y].tolist(),
                text=[f"trial {found.trials[at]}" for at in members],
                mode="markers",
                name=name,
                marker=marker,
                hovertemplate="%{text}<br>%{x} · %{y}<extra></extra>",
            )
        )
    figure.update_xaxes(scale(found.values[:, x].tolist()), nticks=5)
    figure.update_yaxes(scale(found.values[:, y].tolist()), nticks=6)
    figure.update_layout(showlegend=False, height=300, margin={"t": 10, "b": 45, "r": 10})
    return figure
