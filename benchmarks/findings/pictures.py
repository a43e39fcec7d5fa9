"""One SVG per finding: every seed a mark, a line through the means. Readable in black and white."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from analysis.report.figure import Figure
from analysis.report.style import BLUE, GREEN, ORANGE, Scale, scale
from analysis.report.vega_lite import Axis, Drawing, Series
from benchmarks.findings.claims import Finding

_STYLES = ((BLUE, "circle", ()), (ORANGE, "triangle-up", (6, 4)), (GREEN, "square", (2, 3)))


def draw(finding: Finding, path: Path) -> None:
    """Write the finding's picture."""
    path.write_text(figure(finding).to_svg(), encoding="utf-8")


def figure(finding: Finding) -> Figure:
    """Draw the finding."""
    values = [y for series in finding.series for seeds in series.values for y in seeds]
    drawing = Drawing(
        x=Axis(title=finding.x_title, scale=_across(finding), grid=not finding.ticks),
        y=Axis(title=finding.y_title, scale=scale(values, linear=True)),
        height=360,
    )
    for series, (colour, shape, dash) in zip(finding.series, _STYLES, strict=False):
        name = f"{series.label}: {_seeds([len(ys) for ys in series.values])}"
        seeds = Series(name=name, colour=colour, shape=shape, size=5, width=0, opacity=0.45)
        every = [{"x": x, "y": y} for x, ys in zip(series.x, series.values, strict=True) for y in ys]
        drawing.points(seeds, every, listed=False)
        means = [{"x": x, "y": statistics.fmean(ys)} for x, ys in zip(series.x, series.values, strict=True)]
        mean = Series(name=name, colour=colour, shape=shape, size=9, filled=False, dash=dash)
        if not finding.ticks:  # named positions are not on a scale, so no line connects them
            drawing.line(mean, means)
        drawing.points(mean, means)
    return drawing.figure()


def _across(finding: Finding) -> Scale:
    """Return the scale of the x axis; named positions stand away from its ends."""
    if finding.ticks:
        ticks = tuple((float(at), name) for at, name in enumerate(finding.ticks))
        return Scale(domain=(-0.4, len(ticks) - 0.6), ticks=ticks)
    return scale([x for series in finding.series for x in series.x], linear=True)


def _seeds(counts: Sequence[int]) -> str:
    least, most = min(counts), max(counts)
    if least < most:
        return f"means of {least} to {most} seeds"
    return "one seed" if most == 1 else f"mean of {most} seeds"
