"""Figures of the notebooks: efficiency, splits of a budget, comparisons seed by seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis import labels
from analysis.report.figure import Figure
from analysis.report.style import BLUE, GREEN, GREY, HEXAGON, ORANGE, STAR, Scale, scale
from analysis.report.vega_lite import NUMBER, POSITION, Axis, Drawing, Row, Series, grey, tip_of
from analysis.statistics.lengths import Surface
from analysis.summaries.compute import measure_of
from analysis.summaries.paired import Paired
from analysis.summaries.summary import ParetoResult
from analysis.summaries.uncertainty import Uncertainty

DASHES = ((), (6, 4), (8, 3, 2, 3), (2, 3))
"""Dashes of the lines of budgets."""


def efficiency(result: ParetoResult, uncertainty: Uncertainty) -> Figure:
    """Draw efficiency against compute, with 95 % intervals where errors are known."""
    rows: list[Row] = []
    for point in result.points:
        chances = uncertainty.trials[point.trial]
        if chances.efficiency is not None:
            reach = chances.efficiency_range or 0.0
            bar = {"low": chances.efficiency - reach, "high": chances.efficiency + reach} if reach else {}
            rows.append({"x": point.x, "y": chances.efficiency, "trial": point.trial, **bar})
    ends = [row[end] for row in rows for end in ("low", "high") if end in row]
    drawing = Drawing(
        x=Axis(title=labels.title(result.x), scale=scale([row["x"] for row in rows])),
        y=Axis(
            title=f"improvement per {measure_of(result.x).unit}",
            scale=scale([row["y"] for row in rows], [0.0, *ends], linear=True),
        ),
    )
    drawing.rules(grey("zero", width=1), y=0.0)
    trials = Series(name="trials", colour=BLUE, shape="circle", size=7, filled=not result.confirmed)
    again = [row for row in rows if row["trial"] in result.confirmed]
    drawing.errors(trials, rows)
    drawing.points(trials, [row for row in rows if row not in again], tip=tip_of(rows))
    if again:
        name = labels.confirmed(*result.confirmed.values())
        drawing.points(Series(name=name, colour=BLUE, shape=HEXAGON, size=11), again, tip=tip_of(rows))
    for row in rows:
        if row["trial"] == result.most_efficient:
            name = f"most efficient (trial {result.most_efficient})"
            star = Series(name=name, colour=GREEN, shape=STAR, size=20, width=2.5, filled=False)
            drawing.points(star, [{"x": row["x"], "y": row["y"]}])
    return drawing.figure()


def iso_compute(surface: Surface, budgets: Sequence[float], y: str = "final_loss") -> Figure:
    """Draw the fitted loss along every split of each budget, thick where such lengths were tried."""
    curves, shown = [], []
    for budget in budgets:
        stage1_9, stage2, loss = surface.iso_compute(budget)
        tried = (surface.stage1_9[0] <= stage1_9) & (stage1_9 <= surface.stage1_9[1])
        tried &= (surface.stage2[0] <= stage2) & (stage2 <= surface.stage2[1])
        curves.append((budget, 200 * stage1_9 / budget, loss, tried))
        shown += [*loss[tried].tolist(), float(loss.min())]
    margin = 0.15 * (max(shown, default=0.0) - min(shown, default=0.0)) or 0.1
    # Without one of the stages, the fitted loss would dwarf all else.
    reach = Scale(domain=(min(shown) - margin, max(shown) + margin)) if shown else Scale()
    drawing = Drawing(
        x=Axis(title="share of the compute spent on Stage 1.9 (%)", scale=Scale(domain=(0.0, 100.0))),
        y=Axis(title=labels.title(y), scale=reach),
    )
    for at, (budget, share, loss, tried) in enumerate(curves):
        best = int(loss.argmin())
        name = f"{labels.number(budget)} effective steps" + ("" if tried[best] else " (best split not tried)")
        colour, dash = BLUE if at % 2 == 0 else ORANGE, DASHES[at % len(DASHES)]
        rows: list[Row] = [
            {"x": float(a), "y": float(b)} for a, b in zip(share.tolist(), loss.tolist(), strict=True)
        ]
        thin = Series(name=name, colour=colour, width=0.7, dash=dash, opacity=0.6)
        thick = Series(name=name, colour=colour, width=2, dash=dash)
        drawing.line(
            thick, [row for row, known in zip(rows, tried.tolist(), strict=True) if known], tip=POSITION
        )
        drawing.line(thin, rows)
        drawing.points(Series(name=name, colour=colour, shape="triangle-down"), [rows[best]], tip=POSITION)
    return drawing.figure()


def comparison(pairs: Sequence[tuple[str, Paired]], y: str = "final_loss") -> Figure:
    """Draw differences seed by seed: a dot per pair, the mean, and its 95 % interval."""
    intervals = [pair.interval for _, pair in pairs]
    values = [value for _, pair in pairs for value in pair.differences]
    known = [end for interval in intervals for end in interval if np.isfinite(end)]
    ticks = tuple((float(at), tuple(name.split("\n"))) for at, (name, _) in enumerate(pairs))
    drawing = Drawing(
        x=Axis(title=f"difference of {labels.title(y)}", scale=scale([*values, 0.0], known, linear=True)),
        y=Axis(title="", scale=Scale(domain=(len(pairs) - 0.5, -0.5), ticks=ticks), grid=False),
        height=90 + 60 * len(pairs),
        zoom=False,
    )
    drawing.rules(grey("no difference", dash=(6, 4)), x=0.0)
    dots = [{"x": value, "y": at} for at, (_, pair) in enumerate(pairs) for value in pair.differences]
    drawing.points(Series(name="a pair of runs", colour=GREY, shape="circle", size=7, filled=False), dots)
    means: list[Row] = []
    for at, ((_, pair), (low, high)) in enumerate(zip(pairs, intervals, strict=True)):
        ends = {"low": low, "high": high} if np.isfinite(low) else {}
        means.append({"x": pair.mean, "y": at, **ends})
    mean = Series(name="mean and its 95 % interval", colour=BLUE, shape="diamond", size=10)
    drawing.errors(mean, means, across=True)
    drawing.points(mean, means, tip=f"'mean ' + format(datum.x, {NUMBER})")
    return drawing.figure()
