"""Figures for papers and notebooks, as PNG and SVG.

Kinds of points differ in shape and lines in their dashes, so that they can be read in black and white. The
same table gives the same SVG. The report has interactive figures (`figures`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import labels
from analysis.report.style import axis_type
from analysis.statistics.curve import Curve
from analysis.statistics.lengths import Surface
from analysis.summaries.compute import of_column
from analysis.summaries.insight import View
from analysis.summaries.many_objective import ManyObjectiveFront
from analysis.summaries.paired import Paired
from analysis.summaries.summary import ParetoResult
from analysis.summaries.uncertainty import Uncertainty
from analysis.table import TrialsTable

BLUE, ORANGE, GREEN, GREY = "#2f80d0", "#d9730d", "#1f9d6b", "#868e96"
SIZE = (6.4, 4.0)
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: searchable, small
    "svg.hashsalt": "stagesweep",
    "font.size": 10,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.dpi": 110,
}


@contextmanager
def empty_axes(x: str, y: str, size: tuple[float, float] = SIZE) -> Iterator[tuple[Figure, Axes]]:
    """Yield an empty figure in the style, without the global state of pyplot."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        yield figure, axes


def save(figure: Figure, path: str | Path) -> tuple[Path, Path]:
    """Write a figure with the suffixes .png (200 dots per inch) and .svg, and return both paths."""
    png, svg = (Path(path).with_suffix(suffix) for suffix in (".png", ".svg"))
    png.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        figure.savefig(png, dpi=200)
        figure.savefig(svg, metadata={"Date": None})
    return png, svg


def tradeoff(table: TrialsTable, result: ParetoResult, curve: Curve | None = None) -> Figure:
    """Draw loss against compute: points with standard errors, the front, its knee, the most efficient."""
    at = {point.trial: point for point in result.points}
    table = table.configurations
    sems = np.nan_to_num(table.standard_errors(result.y))
    with empty_axes(labels.title(result.x), labels.title(result.y)) as (figure, axes):
        if curve is not None:
            fitted_x = np.geomspace(curve.low, curve.high, 80)
            value, low, high = curve.predict(fitted_x)
            axes.fill_between(fitted_x, low, high, color=GREY, alpha=0.2, lw=0, label="95 % of the fit")
            axes.plot(fitted_x, value, color=GREY, ls="-.", lw=1.2, label="fitted curve")
        beaten = [trial for trial in at if trial not in result.front and trial not in result.confirmed]
        fill = {"mfc": "none"} if result.confirmed else {}
        groups: tuple[tuple[list[int], str, dict[str, Any]], ...] = (
            (beaten, "not on the front", {"color": GREY, "marker": "o", "mfc": "none", "ls": ""}),
            (list(result.front), "Pareto front", {"color": BLUE, "marker": "s", "ls": "", **fill}),
        )
        if result.confirmed:
            name = labels.confirmed(*result.confirmed.values())
            groups += (([*result.confirmed], name, {"color": BLUE, "marker": "H", "ls": "", "ms": 8}),)
        for trials, name, style in groups:
            if trials:
                xs, ys = [at[t].x for t in trials], [at[t].y for t in trials]
                errors = sems[[table.row_of[t] for t in trials]]
                bars = errors if errors.any() else None
                axes.errorbar(xs, ys, bars, capsize=2, label=name, **{"ms": 6, **style})
        steps = "steps-post" if result.x_goal == "minimize" else "steps-pre"
        front = [at[trial] for trial in result.front]
        axes.plot([p.x for p in front], [p.y for p in front], color=BLUE, lw=1.5, drawstyle=steps)
        marks = (("knee", result.knee, ORANGE, "D"), ("most efficient", result.most_efficient, GREEN, "*"))
        for name, trial, colour, marker in marks:
            if trial is not None:
                size = 300 if marker == "*" else 130
                axes.scatter(
                    at[trial].x, at[trial].y, s=size, marker=marker, fc="none", ec=colour, lw=1.8, zorder=5,
                    label=f"{name} (trial {trial})",
                )  # fmt: skip
        if result.baseline is not None:
            axes.axhline(result.baseline, color=GREY, ls="--", lw=1.2, label="baseline")
        axes.set_xscale(axis_type([point.x for point in result.points]))
        axes.legend(markerscale=0.6)
    return figure


def pairs(found: ManyObjectiveFront) -> Figure:
    """Draw each pair of objectives: squares are on the front in all, the line is the front of the pair."""
    shown = found.pairs
    across = min(3, len(shown))
    down = math.ceil(len(shown) / across)
    front = list(found.front)
    confirmed = [at for at, trial in enumerate(found.trials) if trial in found.confirmed]
    beaten = sorted({*range(len(found.trials))} - {*front, *confirmed})
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.6 * across, 3.2 * down), layout="constrained")
        for nth, (x, y) in enumerate(shown, start=1):
            axes = figure.add_subplot(down, across, nth)
            alone = found.values[list(found.pair_front(x, y))]
            steps = "steps-post" if found.objectives[x].goal == "minimize" else "steps-pre"
            axes.plot(
                alone[:, x], alone[:, y], color=BLUE, lw=1.2, drawstyle=steps, label="front of the two alone"
            )
            others, best = found.values[beaten], found.values[front]
            axes.plot(others[:, x], others[:, y], "o", color=GREY, mfc="none", ms=5, label="not on the front")
            fill = "none" if confirmed else BLUE
            axes.plot(
                best[:, x], best[:, y], "s", color=BLUE, mfc=fill, ms=5, label="front in all objectives"
            )
            if confirmed:
                again = found.values[confirmed]
                name = labels.confirmed(*found.confirmed.values())
                axes.plot(again[:, x], again[:, y], "H", color=BLUE, ms=8, label=name)
            axes.set_xlabel(labels.title(found.objectives[x].metric))
            axes.set_ylabel(labels.title(found.objectives[y].metric))
            axes.set_xscale(axis_type(found.values[:, x].tolist()))
            axes.set_yscale(axis_type(found.values[:, y].tolist()))
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=3)
    return figure


def efficiency(result: ParetoResult, uncertainty: Uncertainty) -> Figure:
    """Draw efficiency against compute, with 95 % intervals where errors are known."""
    points = [(p.x, uncertainty.trials[p.trial]) for p in result.points]
    known = [(x, chances) for x, chances in points if chances.efficiency is not None]
    unit = of_column(result.x).unit
    with empty_axes(labels.title(result.x), f"improvement per {unit}") as (figure, axes):
        xs, ys = [x for x, _ in known], [c.efficiency or 0.0 for _, c in known]
        errors = np.array([c.efficiency_range or 0.0 for _, c in known])
        fill = "none" if result.confirmed else BLUE
        axes.errorbar(
            xs, ys, errors if errors.any() else None, fmt="o", color=BLUE, mfc=fill, ms=6, capsize=3
        )
        again = [
            (p.x, c.efficiency)
            for p, (_, c) in zip(result.points, points, strict=True)
            if p.trial in result.confirmed and c.efficiency is not None
        ]
        if again:
            name = labels.confirmed(*result.confirmed.values())
            axes.plot(*zip(*again, strict=True), "H", color=BLUE, ms=9, label=name)
        for point, (x, chances) in zip(result.points, points, strict=True):
            if point.trial == result.most_efficient and chances.efficiency is not None:
                axes.scatter(
                    x, chances.efficiency, s=300, marker="*", fc="none", ec=GREEN, lw=1.8, zorder=5,
                    label=f"most efficient (trial {point.trial})",
                )  # fmt: skip
        axes.axhline(0, color=GREY, lw=1)
        axes.set_xscale(axis_type(xs))
        if result.most_efficient is not None or again:
            axes.legend()
    return figure


def iso_compute(surface: Surface, budgets: Sequence[float], y: str = "final_loss") -> Figure:
    """Draw the fitted loss along every split of each budget, thick where such lengths were tried."""
    dashes = ("-", "--", "-.", ":")
    with empty_axes("share of the compute spent on Stage 1.9 (%)", labels.title(y)) as (figure, axes):
        shown: list[float] = []
        for at, budget in enumerate(budgets):
            stage1_9, stage2, loss = surface.iso_compute(budget)
            tried = (surface.stage1_9[0] <= stage1_9) & (stage1_9 <= surface.stage1_9[1])
            tried &= (surface.stage2[0] <= stage2) & (stage2 <= surface.stage2[1])
            best = int(loss.argmin())
            share, colour = 200 * stage1_9 / budget, BLUE if at % 2 == 0 else ORANGE
            name = f"{labels.number(budget)} effective steps" + (
                "" if tried[best] else " (best split not tried)"
            )
            axes.plot(share, loss, ls=dashes[at % 4], color=colour, lw=0.7, alpha=0.6)
            axes.plot(share, np.where(tried, loss, np.nan), ls=dashes[at % 4], color=colour, lw=2, label=name)
            axes.plot(share[best], loss[best], marker="v", ms=8, color=colour)
            shown += [*loss[tried], loss[best]]
        if shown:  # without one of the stages, the fitted loss would dwarf all else
            margin = 0.15 * (max(shown) - min(shown)) or 0.1
            axes.set_ylim(min(shown) - margin, max(shown) + margin)
        axes.legend()
    return figure


def comparison(pairs: Sequence[tuple[str, Paired]], y: str = "final_loss") -> Figure:
    """Draw differences seed by seed: a dot per pair, the mean, and its 95 % interval."""
    title = f"difference of {labels.title(y)}"
    with empty_axes(title, "", (SIZE[0], 1.2 + 0.7 * len(pairs))) as (figure, axes):
        for at, (_, pair) in enumerate(pairs):
            axes.plot(pair.differences, [at] * len(pair.differences), "o", color=GREY, mfc="none", ms=6)
            low, high = pair.interval
            if np.isfinite(low):
                axes.plot([low, high], [at, at], "-", color=BLUE, lw=2)
            axes.plot(pair.mean, at, "D", color=BLUE, ms=7)
        axes.axvline(0, color=GREY, ls="--", lw=1.2)
        axes.set_yticks(range(len(pairs)), [name for name, _ in pairs])
        axes.set_ylim(len(pairs) - 0.5, -0.5)
    return figure


def sensitivities(view: View) -> Figure:
    """Draw a bar per parameter: the variance it explains together with others (hollow) and alone (solid)."""
    rows = view.sensitivity[::-1]
    with empty_axes("% of the variance", "", (SIZE[0], 1.2 + 0.35 * len(rows))) as (figure, axes):
        names = [name for name, _, _ in rows]
        axes.barh(names, [100 * t for _, _, t in rows], 0.75, fc="none", ec=BLUE, label="with others")
        axes.barh(names, [100 * min(f, t) for _, f, t in rows], 0.4, color=BLUE, label="alone")
        axes.set_xlim(0, 100)
        axes.legend()
    return figure


def over_seeds(rows: pd.DataFrame, x: str, y: str = "final_loss") -> Figure:
    """Draw means over seeds against a column, with Student's 95 % intervals (see `seeds.over_seeds`)."""
    table = TrialsTable.of(rows)
    with empty_axes(labels.title(x), f"{labels.title(y)}: mean over seeds") as (figure, axes):
        xs, ys, reach = table.floats(x), table.floats(y), table.floats(f"{y}_range")
        known = np.isfinite(reach)
        axes.errorbar(xs, ys, np.where(known, reach, 0.0), fmt="o", color=BLUE, ms=6, capsize=3)
        axes.set_xscale(axis_type(xs.tolist()))
    return figure
