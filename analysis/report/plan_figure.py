"""The figure of `sweep plan`: optima over the size with their intervals, and the lines that are followed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.report.figure import Figure, combine
from analysis.report.style import BLUE, GREY, ORANGE, Scale, scale
from analysis.report.vega_lite import Axis, Drawing, Row, Series

WIDTH = 300


def plan_figure(plan: Mapping[str, Any]) -> Figure:
    """Return one picture of a plan: a part for each setting that is followed, and one for the loss.

    Args:
        plan: the document that `sweep plan --format json` prints.
    """
    sources = plan["sources"]
    parts = []
    for name, setting in plan["settings"].items():
        if setting["line"]:
            best = [
                {"x": source["size"], "y": at["value"], "low": at["low"], "high": at["high"]}
                for source in sources
                if (at := setting["optima"].get(source["url"]))
            ]
            parts.append(_part(plan, name, best, setting["line"], setting["value"], log=setting["log"]))
    losses = [
        {"x": each["size"], "y": each["loss"]["value"]} | {end: each["loss"][end] for end in ("low", "high")}
        for each in sources
    ]
    parts.append(_part(plan, plan["metric"], losses, plan["loss_line"], plan["loss"]["value"], log=False))
    return combine(parts, columns=2, width=WIDTH)


def _part(
    plan: Mapping[str, Any],
    title: str,
    points: Sequence[Row],
    line: Sequence[Sequence[float]],
    value: float,
    *,
    log: bool,
) -> Figure:
    """Draw one quantity over the size: its points, the line with its band, and the value at the target."""
    other = plan.get("other")
    rows: list[Row] = [{"x": x, "y": y, "low": low, "high": high} for x, y, low, high in line]
    ends = [row[end] for row in (*rows, *points) for end in ("low", "high")]
    drawing = Drawing(
        x=Axis(
            title=plan["measure"] + (f", at {other[0]} {other[1]:.4g}" if other else ""),
            scale=Scale(type="log", domain=(0.8 * rows[0]["x"], 1.25 * rows[-1]["x"])),
            count=4,
        ),
        y=Axis(title=title, scale=scale(ends, log=log, linear=not log), count=5),
        height=240,
        zoom=False,
    )
    drawing.band(Series(name="95 %", colour=BLUE, shape="square", size=11, opacity=0.18), rows)
    drawing.line(Series(name="line", colour=BLUE, shape="square", size=7, width=2), rows)
    optimum = Series(name="sweep, 95 %", colour=GREY, shape="circle", size=9)
    drawing.errors(optimum, points)
    drawing.points(optimum, points)
    drawing.points(
        Series(name="plan", colour=ORANGE, shape="diamond", size=11), [{"x": plan["size"], "y": value}]
    )
    return drawing.figure()
