"""Pictures of trunks and branches, and of values against lengths, for papers and notebooks."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import labels
from analysis.report.pictures import BLUE, GREY, SIZE, STYLE
from analysis.report.reuse_figures import in_unit
from analysis.report.style import axis_type
from analysis.report.trunk_figures import MANY_POINTS, length_title
from analysis.report.trunk_layout import HEAD, Layout, Line, layouts
from analysis.summaries.reuse import Reuse
from analysis.summaries.trunks import Lengths

FIRST, OTHERS = (BLUE, 2.2, 6), (GREY, 0.8, 2.5)
"""Colour, width and size of points of the best trunk's line, and of others'."""

FINE: dict[str, Any] = {"color": GREY, "fontsize": 8, "style": "italic", "va": "bottom"}


def trunks(found: Reuse) -> Figure:
    """Draw the trunks of each stage over its compute: their points, and each branch with its end's value."""
    drawings = layouts(found.trunks, found.goal)
    heights = [1.0 + 0.26 * (drawing.rows + HEAD) for drawing in drawings]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(SIZE[0] + 0.8, sum(heights)), layout="constrained")
        grid = figure.add_gridspec(len(drawings), height_ratios=heights)
        for row, drawing in enumerate(drawings):
            _draw(figure.add_subplot(grid[row]), drawing, found)
    return figure


def _draw(axes: Axes, drawing: Layout, found: Reuse) -> None:
    for line in drawing.lines:
        _draw_trunk(axes, line)
    pointer = {"arrowstyle": "-", "color": GREY, "lw": 0.8, "relpos": (0, 0), "shrinkA": 0, "shrinkB": 2}
    for name, x, y, above in drawing.landmarks():
        axes.annotate(name, (x, y), (x, y - above), arrowprops=pointer if above > 1 else None, **FINE)
    axes.set_xlabel(in_unit(f"compute of {drawing.stage}", found))
    axes.set_ylabel("trunk of")
    axes.set_yticks([line.y for line in drawing.lines], ["\n".join(line.name) for line in drawing.lines])
    axes.set_ylim(drawing.rows - 0.3, -HEAD)
    axes.set_xlim(-0.01 * drawing.reach, 1.3 * drawing.reach)
    axes.grid(axis="y", visible=False)


def _draw_trunk(axes: Axes, line: Line) -> None:
    axes.plot([0, line.trunk.reach], [line.y] * 2, color=GREY, lw=4, alpha=0.6, solid_capstyle="round")
    for end in line.ends:
        branch = end.branch
        path = ([branch.leaves, branch.leaves, branch.end], [line.y, end.y, end.y])
        axes.plot(*path, color=end.colour, lw=3 if end.is_best else 1.6)
        axes.plot(branch.end, end.y, "o", color=end.colour, ms=9 if end.is_best else 6)
        axes.annotate(
            end.text,
            (branch.end, end.y),
            (8, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            weight="bold" if end.is_best else "normal",
        )
    size = 5 if len(line.trunk.points) <= MANY_POINTS else 3
    for point in line.trunk.points:
        fill = GREY if point.stored else "white"
        axes.plot(point.cost, line.y, "o", ms=size, mfc=fill, mec=GREY, mew=1.2, zorder=4)


def lengths(found: Reuse, metric: str) -> Figure:
    """Draw the values of all trials against the length of each stage; those of one trunk are joined."""
    count = len(found.lengths)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(SIZE[0] if count == 1 else 4.4 * count, SIZE[1]), layout="constrained")
        for nth, curve in enumerate(found.lengths, start=1):
            axes = figure.add_subplot(1, count, nth)
            _draw_lengths(axes, curve)
            axes.set_xlabel(length_title(curve, found))
            axes.set_ylabel(labels.title(metric))
    return figure


def _draw_lengths(axes: Axes, curve: Lengths) -> None:
    xs, ys = zip(*curve.points, strict=True)
    axes.plot(xs, ys, "o", color=GREY, mfc="none", ms=4, label="a trial")
    for nth, line in enumerate(curve.trunks[::-1], start=1 - len(curve.trunks)):  # the best stands in front
        style: dict[str, Any] = dict(zip(("color", "lw", "ms"), OTHERS if nth else FIRST, strict=True))
        name = "the best trunk" if not nth else "another trunk" if nth == -1 else None
        axes.plot(*zip(*line, strict=True), marker="o", label=name, **style)
    x, y = curve.best
    axes.plot(x, y, "*", color=BLUE, ms=15, label=f"best: trial {curve.trial}", ls="")
    axes.set_xscale(axis_type(list(xs)))
    axes.set_yscale(axis_type(list(ys)))
    axes.legend()
