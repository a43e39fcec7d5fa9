"""Figures of three objectives or more, one per pair."""

from __future__ import annotations

import plotly.graph_objects as go

from analysis import labels
from analysis.report.style import BLUE, CROWD, GREY, blank, scale
from analysis.summaries.many_objective import ManyObjectiveFront


def pair(found: ManyObjectiveFront, x: int, y: int) -> go.Figure:
    """Draw trials by two objectives: squares are on the front in all, the line is the front of the two."""
    across, up = found.objectives[x], found.objectives[y]
    figure = blank(labels.title(across.metric), labels.title(up.metric))
    alone = found.pair_front(x, y)
    front = set(found.front)
    beaten = [at for at in range(len(found.trials)) if at not in front]
    crowd = len(beaten) > CROWD
    figure.add_trace(
        go.Scatter(
            x=found.values[list(alone), x].tolist(),
            y=found.values[list(alone), y].tolist(),
            mode="lines",
            name="front of these two",
            line={"shape": "hv" if across.goal == "minimize" else "vh", "color": BLUE, "width": 1.5},
            hoverinfo="skip",
        )
    )
    groups = (
        (
            "not on the front",
            beaten,
            {
                "symbol": "circle-open",
                "size": 4 if crowd else 8,
                "opacity": 0.4 if crowd else 1.0,
                "color": GREY,
                "line": {"width": 1.0 if crowd else 1.5},
            },
        ),
        ("front in all objectives", list(found.front), {"symbol": "square", "size": 7, "color": BLUE}),
    )
    for name, members, marker in groups:
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
