"""Figures of what trials shared: the tree of prefixes, and the best value against paid compute."""

from __future__ import annotations

import numpy as np

from analysis import labels
from analysis.report.figure import Figure
from analysis.report.style import BLUE, ORANGE, Scale, name_scale, scale
from analysis.report.vega_lite import NUMBER, Axis, Drawing, Row, Series, grey
from analysis.summaries.prefixes import Prefix
from analysis.summaries.reuse import Reuse
from sweeps.text.counted import counted

PREFIXES = 30
"""Most prefixes drawn, those of most trials."""

ONCE = Series(name="the shared stage", colour=BLUE, shape="square", width=1)
LATER = Series(name="later stages", colour=ORANGE, shape="square", width=1, opacity=0.4)
SAVED = grey("saved", shape="square", filled=False)
"""Parts of a bar: full, pale and hollow."""


def prefixes(found: Reuse) -> Figure:
    """Draw a bar per prefix: its stage as computed, the later stages of its trials, and what was saved."""
    rows = found.prefixes[:PREFIXES]
    stages = {row.stage for row in rows}
    longest = max((row.paid + row.rest + row.saved for row in rows), default=0.0) or 1.0
    drawing = Drawing(
        x=Axis(title=in_unit("compute", found), scale=Scale(domain=(0.0, 1.2 * longest))),
        y=Axis(
            title=f"{next(iter(stages))} by" if len(stages) == 1 else "computed by",
            scale=name_scale([name_of(row) for row in rows]),
            grid=False,
        ),
        height=110 + 26 * len(rows),
        zoom=False,
    )
    tips = []
    for row in rows:
        trials = ", ".join(map(str, row.trials[:20])) + (" …" if len(row.trials) > 20 else "")
        lines = [f"{row.stage} of {source(row)}", *(f"{name} {value}" for name, value in row.parameters)]
        best = "" if row.best is None else f", best {labels.number(row.best)}"
        tips.append("\n".join([*lines, f"{counted(len(row.trials), 'trial')}: {trials}{best}"]))
    for style, at in ((ONCE, 0), (LATER, 1), (SAVED, 2)):
        bars: list[Row] = []
        for y, row in enumerate(rows):
            parts = (row.paid, row.rest, row.saved)
            if parts[at]:
                start = sum(parts[:at])
                bars.append({"x": start, "end": start + parts[at], "y": y, "more": tips[y]})
        drawing.bars(
            style, bars, tip=f"datum.more + '\\n{style.name} ' + format(datum.end - datum.x, {NUMBER})"
        )
    counts = [
        {"x": row.paid + row.rest + row.saved, "y": y, "text": counted(len(row.trials), "trial")}
        for y, row in enumerate(rows)
    ]
    drawing.text(counts, dx=6)
    return drawing.figure()


def name_of(row: Prefix) -> str:
    """Return a prefix's name, by the trials that computed it: `trial 4`, `└ trial 7` for one beyond it."""
    if row.count > 1:
        return f"{row.count} others"
    return f"{'   ' * (row.depth - 1)}└ {source(row)}" if row.depth else source(row)


def source(row: Prefix) -> str:
    """Return the trials that computed a prefix, for people."""
    if not row.computed_by:  # it is being computed again
        return "unknown"
    first, *others = row.computed_by
    if len(others) > 2:
        return f"trials {first} and {len(others)} more"
    return f"trial{'s' if others else ''} {', '.join(map(str, row.computed_by))}"


def best_by_compute(found: Reuse, metric: str) -> Figure:
    """Draw the best value so far against the compute of the search, as paid and as if nothing was reused."""
    known = np.isfinite(found.best)
    best, trials = found.best[known].tolist(), np.array(found.trials)[known].tolist()
    lines = (
        (grey("without reuse (nominal)", dash=(2, 3), opacity=0.8), found.nominal_until[known].tolist()),
        (Series(name="paid", colour=BLUE, width=2.5), found.paid_until[known].tolist()),
    )
    drawing = Drawing(
        x=Axis(
            title=in_unit("compute of the search", found),
            scale=scale([cost for _, costs in lines for cost in costs], linear=True, zero=True),
        ),
        y=Axis(title=labels.title(metric), scale=scale(best)),
    )
    for style, costs in lines:
        rows = [{"x": x, "y": y, "trial": t} for x, y, t in zip(costs, best, trials, strict=True)]
        tip = (
            f"'up to trial ' + datum.trial + ': ' + format(datum.y, {NUMBER}) "
            f"+ ' for ' + format(datum.x, {NUMBER})"
        )
        drawing.line(style, rows, step="step-after", tip=tip)
    return drawing.figure()


def in_unit(name: str, found: Reuse) -> str:
    """Return an axis title with the unit of the costs, if that is known."""
    return f"{name} ({found.unit})" if found.unit else name
