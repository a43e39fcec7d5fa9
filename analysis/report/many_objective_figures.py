"""Three objectives or more as small pictures, one per pair. `report` calls this; its look is `style`'s."""

from __future__ import annotations

import plotly.graph_objects as go

from analysis import labels
from analysis.report.style import BLUE, CROWD, GREY, blank, scale
from analysis.summaries.many_objective import Several


def pair(told: Several, x: int, y: int) -> go.Figure:
    """Trials by two of the objectives: squares are on the front in all, the line is the front of the two."""
    across, up = told.objectives[x], told.objectives[y]
    figure = blank(labels.title(across.metric), labels.title(up.metric))
    alone = told.alone(x, y)
    front = set(told.front)
    beaten = [at for at in range(len(told.trials)) if at not in front]
    crowd = len(beaten) > CROWD
    figure.add_trace(
        go.Scatter(
            x=told.values[list(alone), x].tolist(),
            y=told.values[list(alone), y].tolist(),
            mode="lines",
            name="front of these two",
            line={"shape": "hv" if across.goal == "minimize" else "vh", "color": BLUE, "width": 1.5},
            hoverinfo="skip",
        )
    )
    looks = (
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
        ("front in all objectives", list(told.front), {"symbol": "square", "size": 7, "color": BLUE}),
    )
    for name, members, marker in looks:
        figure.add_trace(
            go.Scatter(
                x=told.values[members, x].tolist(),
                y=told.values[members, y].tolist(),
                text=[f"trial {told.trials[at]}" for at in members],
                mode="markers",
                name=name,
                marker=marker,
                hovertemplate="%{text}<br>%{x} · %{y}<extra></extra>",
            )
        )
    figure.update_xaxes(scale(told.values[:, x].tolist()), nticks=5)
    figure.update_yaxes(scale(told.values[:, y].tolist()), nticks=6)
    figure.update_layout(showlegend=False, height=300, margin={"t": 10, "b": 45, "r": 10})
    return figure
