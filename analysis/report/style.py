"""The style of the report's figures: colours, an empty figure, and the scales of axes.

Colours are mid-tones with contrast on a light and on a dark page; the page's style sheet colours the text
(see `templates/report.html.j2`).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import partial
from html import escape
from typing import Any

import plotly.graph_objects as go

from analysis import labels

BLUE, ORANGE, GREEN, PURPLE, GREY = "#2f80d0", "#d9730d", "#1f9d6b", "#9b5fc0", "#868e96"
GRID = "rgba(134,142,150,0.25)"

LOG_RATIO = 20.0
"""Ratio of largest to smallest value beyond which an axis is logarithmic."""

MARKED_DECADES = 4
"""Up to this many decades a logarithmic axis has ticks at 1, 2 and 5, beyond only at 1."""

CROWD = 300
"""With more points, those that are not on the front are small, pale and without error bars."""

text = partial(escape, quote=False)
"""Escape text for plotly, which reads some HTML in every text and shows escaped quotes as they are."""


def blank(x_title: str, y_title: str) -> go.Figure:
    """Return an empty figure in the common style."""
    axis = {"gridcolor": GRID, "linecolor": GREY, "zeroline": False, "automargin": True}
    return go.Figure(
        layout={
            "template": "none",
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "height": 440,
            "showlegend": True,
            "margin": {"l": 60, "r": 20, "t": 20, "b": 60},
            "font": {"size": 13, "family": "system-ui, sans-serif"},
            "legend": {"orientation": "h", "itemsizing": "constant", "yanchor": "bottom", "y": 1.02, "x": 0},
            "xaxis": axis | {"title": {"text": text(x_title)}},
            "yaxis": axis | {"title": {"text": text(y_title)}},
            "hoverlabel": {"align": "left"},
        }
    )


def hollow(size: int, *, crowd: bool) -> dict[str, Any]:
    """Return the marker of trials that are not on the front, small and pale in a crowd."""
    return {
        "symbol": "circle-open",
        "size": size - 4 if crowd else size,
        "opacity": 0.4 if crowd else 1.0,
        "color": GREY,
        "line": {"width": 1.0 if crowd else 1.5},
    }


def axis_type(values: list[float]) -> str:
    """Return "log" where a linear axis would squeeze most points against one edge, else "linear"."""
    if not values or min(values) <= 0 or max(values) / min(values) < LOG_RATIO:
        return "linear"
    return "log"


def scale(values: list[float], also: Collection[float] = ()) -> dict[str, Any]:
    """Return the plotly settings of an axis for these values: its type, and the ticks of a logarithmic one.

    Plotly's own ticks, 5 and 2 between 100 and 1000, are easily misread; and it shows a single value on an
    axis of length 2, however small it is.

    Args:
        values: of the points.
        also: where something else is drawn, such as the ends of error bars.
    """
    if len(set(values)) == 1:
        low, high = min(*values, *also, values[0]), max(*values, *also, values[0])
        margin = 0.1 * (high - low or abs(low)) or 1.0
        return {"type": "linear", "range": [low - margin, high + margin]}
    if axis_type(values) == "linear":
        return {"type": "linear"}
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    steps = (1, 2, 5) if high - low <= MARKED_DECADES else (1,)
    ticks = [step * 10.0**power for power in range(low, high + 1) for step in steps]
    return {"type": "log", "tickvals": ticks, "ticktext": [labels.number(tick) for tick in ticks]}
