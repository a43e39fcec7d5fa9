"""The style of all figures: colours, symbols, the themes of the page, and the scales of axes.

Marks have mid-tone colours with contrast on a light and on a dark page; only text differs between the themes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from analysis import labels

BLUE, ORANGE, GREEN, PURPLE, GREY = "#2f80d0", "#d9730d", "#1f9d6b", "#9b5fc0", "#868e96"
GRID = "rgba(134,142,150,0.25)"
LIGHT_INK, DARK_INK = "#1b1f24", "#e6e9ed"
"""Colours of text, those of the report's style sheet."""

LOG_RATIO = 20.0
"""Ratio of largest to smallest value beyond which an axis is logarithmic."""

MARKED_DECADES = 4
"""Up to this many decades a logarithmic axis has ticks at 1, 2 and 5, beyond only at 1."""

FINE_STEPS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Ticks in a decade of a logarithmic axis that would have fewer than three otherwise."""

MARGIN = 0.04
"""Share of an axis beyond the first and the last value, so that no symbol is cut at the edge."""

HUGE = 1e280
"""Numbers beyond are drawn outside of the picture."""

CROWD = 300
"""With more points, those that are not on the front are small, pale and without error bars."""


def _polygon(corners: int, inner: float = 1.0) -> str:
    """Return the SVG path of a regular polygon, or of a star if `inner` (its inner radius) is below 1."""
    count = corners if inner == 1.0 else 2 * corners
    points = []
    for at in range(count):
        radius = 1.1 * (inner if inner < 1.0 and at % 2 else 1.0)
        angle = 2 * math.pi * at / count
        points.append(f"{radius * math.sin(angle):.3f},{-radius * math.cos(angle):.3f}")
    return f"M{'L'.join(points)}Z"


PENTAGON, HEXAGON, STAR = _polygon(5), _polygon(6), _polygon(5, 0.45)
CROSS = "M-0.8,-0.8L0.8,0.8M0.8,-0.8L-0.8,0.8"
"""Symbols beyond Vega's own, as SVG paths within -1 and 1."""


def theme(ink: str = LIGHT_INK, font: str = "sans-serif") -> dict[str, Any]:
    """Return the Vega-Lite config of all figures."""
    text = {"labelColor": ink, "titleColor": ink, "labelFontSize": 12, "titleFontSize": 13}
    return {
        "background": "transparent",
        "font": font,
        "aria": False,  # a figure has one text alternative, not one per point
        "padding": 4,
        "view": {"stroke": None},
        "text": {"color": ink, "fontSize": 12},
        "axis": text
        | {
            "titleFontWeight": "normal",
            "titlePadding": 8,
            "gridColor": GRID,
            "domainColor": GREY,
            "tickColor": GREY,
            "labelLimit": 0,
            "labelFlush": False,
        },
        "legend": text
        | {"orient": "top", "title": None, "labelLimit": 300, "symbolSize": 80, "rowPadding": 4},
    }


def axis_type(values: Sequence[float], *, log: bool = False) -> Literal["linear", "log"]:
    """Return "log" if asked for, or where a linear axis would squeeze most points against one edge."""
    if not len(values) or min(values) <= 0:
        return "linear"
    low, high = min(values), max(values)
    return "log" if high / low >= LOG_RATIO or (log and low < high) else "linear"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The scale of an axis: its type, its ends, and ticks with their labels; without, Vega chooses ticks."""

    type: Literal["linear", "log", "band", "point"] = "linear"
    domain: tuple[float, float] | None = None
    ticks: tuple[tuple[float, str | tuple[str, ...]], ...] = ()

    def within(self, value: float) -> float:
        """Return a value, or the lower end of a logarithmic axis if it is below that: it has no zero."""
        return max(value, self.domain[0]) if self.type == "log" and self.domain else value


def middle(scale: Scale) -> float:
    """Return the value in the middle of an axis of numbers."""
    low, high = scale.domain or (0.0, 0.0)
    return math.sqrt(low * high) if scale.type == "log" else (low + high) / 2


def scale(
    values: Sequence[float],
    also: Collection[float] = (),
    *,
    linear: bool = False,
    log: bool = False,
    zero: bool = False,
) -> Scale:
    """Return the scale of an axis for these values.

    Args:
        also: where something else is drawn, such as the ends of error bars.
        linear: never logarithmic.
        log: logarithmic if all values are positive, however narrow their range.
        zero: begin a linear axis at zero.
    """
    if not len(values):
        return Scale()
    # Programs report the largest float for what went wrong: an axis to there would end at infinity.
    both = [min(max(value, -HUGE), HUGE) for value in (*values, *also)]
    low, high = min(both), max(both)
    if low == high or len(set(values)) == 1:
        margin = 0.1 * (high - low or abs(low)) or 1.0
        return Scale(domain=(0.0 if zero and low >= 0 else low - margin, high + margin))
    if linear or axis_type(values, log=log) == "linear":
        margin = MARGIN * (high - low)
        return Scale(domain=(0.0 if zero and low >= 0 else low - margin, high + margin))
    low, high = math.log10(min(value for value in both if value > 0)), math.log10(high)
    margin = MARGIN * (high - low)
    powers = range(math.floor(low), math.ceil(high) + 1)
    ends = (10 ** max(low - margin, -300.0), 10 ** (high + margin))
    for steps in ((1.0, 2.0, 5.0) if powers[-1] - powers[0] <= MARKED_DECADES else (1.0,), FINE_STEPS):
        ticks = [
            tick for power in powers for step in steps if ends[0] <= (tick := step * 10.0**power) <= ends[1]
        ]
        if len(ticks) > 2:
            return Scale(type="log", domain=ends, ticks=tuple((tick, labels.number(tick)) for tick in ticks))
    return Scale(type="log", domain=ends)  # far less than a decade: Vega's own ticks


def name_scale(names: Sequence[str | tuple[str, ...]], kind: Literal["band", "point"] = "band") -> Scale:
    """Return a scale of names, each in the place of its index; a tuple is the lines of one."""
    return Scale(type=kind, ticks=tuple(enumerate(names)))
