"""Figures of trunks and branches, and of values against lengths."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from analysis import labels
from analysis.report.figure import Figure, combine
from analysis.report.figures import hollow
from analysis.report.reuse_figures import in_unit
from analysis.report.style import BLUE, STAR, Scale, scale
from analysis.report.trunk_layout import HEAD, End, Layout
from analysis.report.vega_lite import POSITION, Axis, Drawing, Row, Series, grey
from analysis.summaries.reuse import Reuse
from analysis.summaries.trunks import Lengths
from sweeps.text.counted import counted

ROW = 24
"""Height of a row in pixels."""

MANY_POINTS = 30
"""More points of a trunk are small."""

TRUNK = grey("trunk", width=6, opacity=0.6)
LANDMARK: Row = {"fontSize": 11, "fontStyle": "italic"}


def trunks(drawing: Layout, found: Reuse) -> Figure:
    """Draw the trunks of a stage over its compute: their points, and each branch with its end's value."""
    ticks = tuple((line.y, line.name) for line in drawing.lines)
    figure = Drawing(
        x=Axis(
            title=in_unit(f"compute of {drawing.stage}", found),
            scale=Scale(domain=(-0.01 * drawing.reach, 1.4 * drawing.reach)),
        ),
        y=Axis(title="trunk of", scale=Scale(domain=(drawing.rows - 0.3, -HEAD), ticks=ticks), grid=False),
        height=80 + round(ROW * (drawing.rows + HEAD)),
        legend=False,
        zoom=False,
    )
    for name, x, y, above in drawing.landmarks():
        if above > 1:
            figure.line(grey("pointer", width=0.8), [{"x": x, "y": y}, {"x": x, "y": y - above + 0.2}])
        figure.text([{"x": x, "y": y - above, "text": name}], **LANDMARK)
    for line in drawing.lines:
        for end in line.ends:
            _add_branch(figure, end, line.y)
    for line in drawing.lines:  # over the branches
        trunk = line.trunk
        about = [f"trunk of trial {trunk.trial}, {labels.share(trunk.saved)} saved"]
        about += [f"{name} {value}" for name, value in trunk.parameters]
        more = "\n".join(about)
        figure.line(
            TRUNK, [{"x": x, "y": line.y, "more": more} for x in (0.0, trunk.reach)], tip="datum.more"
        )
        for is_stored in (True, False):
            rows = [
                {
                    "x": point.cost,
                    "y": line.y,
                    "more": f"point at step {point.step:,}, {'stored' if is_stored else 'removed since'}",
                }
                for point in trunk.points
                if point.stored == is_stored
            ]
            size = 8 if len(trunk.points) <= MANY_POINTS else 5
            if rows:
                style = grey("point", shape="circle", size=size, filled=is_stored)
                figure.points(style, rows, tip="datum.more")
    return figure.figure()


def all_trunks(drawings: Sequence[Layout], found: Reuse) -> Figure:
    """Return one picture of the trunks of all stages, one below the other."""
    return combine([trunks(drawing, found) for drawing in drawings], columns=1, width=560)


def _add_branch(figure: Drawing, end: End, trunk_y: float) -> None:
    """Add a line from the trunk down to the row of a branch and on to its end, and its value."""
    branch = end.branch
    shown = ", ".join(map(str, branch.trials[:20])) + (" …" if len(branch.trials) > 20 else "")
    more = (
        f"leaves at {labels.number(branch.leaves)}, ends at {labels.number(branch.end)}\n"
        f"{counted(len(branch.trials), 'trial')}: {shown}"
    )
    path = ((branch.leaves, trunk_y), (branch.leaves, end.y), (branch.end, end.y))
    rows: list[Row] = [{"x": x, "y": y, "more": more} for x, y in path]
    style = Series(name="branch", colour=end.colour, width=4 if end.is_best else 2)
    figure.line(style, rows, tip="datum.more")
    dot = Series(name="end", colour=end.colour, shape="circle", size=13 if end.is_best else 9)
    figure.points(dot, rows[-1:], tip="datum.more")
    text = [{"x": branch.end, "y": end.y, "text": end.text}]
    figure.text(text, dx=10, fontWeight="bold" if end.is_best else "normal")


def lengths(curve: Lengths, found: Reuse, metric: str, log: Collection[str] = ()) -> Figure:
    """Draw the values of all trials against the length of a stage; those of one trunk are joined.

    Args:
        log: names of the parameters that are searched on a logarithmic scale.
    """
    xs, ys = ([point[axis] for point in curve.points] for axis in (0, 1))
    drawing = Drawing(
        x=Axis(title=length_title(curve, found), scale=scale(xs, log=f"{curve.stage}.max_steps" in log)),
        y=Axis(title=labels.title(metric), scale=scale(ys)),
    )
    marker = hollow("a trial", 8, crowd=len(curve.points) > MANY_POINTS)
    drawing.points(marker, [{"x": x, "y": y} for x, y in curve.points], tip=POSITION)
    best = Series(name="the best trunk", colour=BLUE, shape="circle", size=7, width=2.5)
    other = grey("another trunk", shape="circle", size=4, width=1, opacity=0.6)
    for nth, line in enumerate(curve.trunks[::-1], start=1 - len(curve.trunks)):  # the best stands in front
        style = other if nth else best
        rows = [{"x": length, "y": value} for length, value in line]
        drawing.line(style, rows)
        drawing.points(style, rows, tip=POSITION)
    x, y = curve.best
    star = Series(name=f"best: trial {curve.trial}", colour=BLUE, shape=STAR, size=15)
    drawing.points(star, [{"x": x, "y": y}], tip=POSITION)
    return drawing.figure()


def all_lengths(found: Reuse, metric: str) -> Figure:
    """Return one picture of the values against the lengths of all stages, beside each other."""
    figures = [lengths(curve, found, metric) for curve in found.lengths]
    return figures[0] if len(figures) == 1 else combine(figures, columns=len(figures), width=380)


def length_title(curve: Lengths, found: Reuse) -> str:
    """Return the title of the axis of lengths."""
    return f"steps of {curve.stage}" if curve.in_steps else in_unit(f"compute of {curve.stage}", found)
