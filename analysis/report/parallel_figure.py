"""Parallel coordinates: every trial as a line through its parameters to its result."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis import labels
from analysis.report.figure import Figure
from analysis.report.style import BLUE, Scale, axis_type
from analysis.report.vega_lite import Axis, Drawing, Row, Series, grey
from analysis.statistics.pareto import Goal
from analysis.table import PARAMETER, TrialsTable, label

LINES = 500
"""Most trials in the parallel coordinates, the best ones."""

NAMED_VALUES = 12
"""With more different values that are no numbers, an axis has no ticks."""

ABOVE = 0.15
"""Height of the least number of a parameter that some trials do not have; these cross at 0."""

RANKS = (
    (0.1, Series(name="best tenth", colour=BLUE, width=3)),
    (0.4, Series(name="next three tenths", colour=BLUE, width=1.2, opacity=0.6)),
    (1.0, grey("the rest", width=0.8, opacity=0.4)),
)
"""Shares of the trials, the best first, and the style of those up to each; it reads without colours."""


def parallel(
    table: TrialsTable, metric: str, goal: Goal = "minimize", log: Collection[str] = ()
) -> Figure | None:
    """Draw a line per completed trial through its parameters to its result; None with fewer than two.

    Trials outside of the outcome constraints have none, however good they are by the metric. The best tenth
    are thick and dark, the others thinner and paler by rank.

    Args:
        log: names of the parameters that are searched on a logarithmic scale.
    """
    values = table.numbers(metric)
    done = table.frame[table.feasible & np.isfinite(values.to_numpy())]
    ranked = values.loc[done.index].sort_values(ascending=goal == "minimize", kind="stable").index[:LINES]
    done = done.loc[ranked]
    names = [name for name in table.parameters if done[name].map(repr).nunique() > 1]
    if len(done) < 2 or not names:
        return None
    axes = [
        _Coordinate.from_values(
            label(name, table.columns), done[name], log=name.removeprefix(PARAMETER) in log
        )
        for name in names
    ]
    axes.append(_Coordinate.from_values(labels.title(metric), values.loc[done.index]))
    trials = done["trial"].tolist()
    titles = []
    for at, axis in enumerate(axes):
        *before, last = axis.name.split(".")  # a name is broken into lines after each of its dots
        titles.append((float(at), (*(f"{part}." for part in before), last)))
    drawing = Drawing(
        x=Axis(title="", scale=Scale(domain=(-0.3, len(axes) - 0.4), ticks=tuple(titles)), line=False),
        y=Axis(title="", scale=Scale(domain=(-0.1, 1.1)), visible=False),
        height=430,
        order=[style for _, style in RANKS],
        zoom=False,
    )
    bounds = [0, *(max(1, round(len(trials) * share)) for share, _ in RANKS)]
    # The best come last, in front; the legend has them first.
    for (start, end), (_, style) in list(zip(itertools.pairwise(bounds), RANKS, strict=True))[::-1]:
        rows: list[Row] = [
            {"x": at, "y": round(axis.heights[nth], 5), "trial": trials[nth]}
            for nth in range(start, end)
            for at, axis in enumerate(axes)
        ]
        if rows:
            drawing.line(style, rows, by="trial", tip="'trial ' + datum.trial")
    # The values at the ends of an axis stand beyond them, where no line crosses.
    for beyond in (-1, 0, 1):
        ticks: list[Row] = [
            {"x": at, "y": height, "text": text}
            for at, axis in enumerate(axes)
            for height, text in axis.ticks
            if beyond == {0.0: 1, 1.0: -1}.get(height, 0)
        ]
        if ticks:
            drawing.text(ticks, dx=4, dy=10 * beyond, fontSize=11)
    return drawing.figure()


@dataclass(frozen=True, kw_only=True)
class _Coordinate:
    """One axis: the height (0 to 1) at which each trial crosses it, and its ticks."""

    name: str
    heights: list[float]
    ticks: list[tuple[float, str]]

    @classmethod
    def from_values(cls, name: str, values: pd.Series[Any], *, log: bool = False) -> _Coordinate:
        """Scale numbers, or their logarithm; other values get equal steps in sorted order.

        Trials without the parameter, which another has switched off, cross below all numbers.
        """
        every = [v.item() if isinstance(v, np.generic) else v for v in values.tolist()]
        missing = [v is None or (isinstance(v, float) and math.isnan(v)) for v in every]
        plain = [v for v, is_missing in zip(every, missing, strict=True) if not is_missing]
        if plain and all(
            isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in plain
        ):
            floats = [float(v) for v in plain]
            is_log = axis_type(floats, log=log) == "log"
            scaled = [math.log10(v) for v in floats] if is_log else floats
            low, high = min(scaled), max(scaled)
            span = (high - low) or 1.0
            ticks = [(0.0, labels.number(min(floats), 3)), (1.0, labels.number(max(floats), 3))]
            if is_log:  # the middle shows that it is one
                middle = math.sqrt(min(floats) * max(floats))
                ticks.insert(1, (0.5, labels.number(float(f"{middle:.2g}"))))
            if not any(missing):
                return cls(name=name, heights=[(p - low) / span for p in scaled], ticks=ticks)
            above = iter(scaled)
            heights = [0.0 if no else ABOVE + (1 - ABOVE) * (next(above) - low) / span for no in missing]
            raised = [(ABOVE + (1 - ABOVE) * at, text) for at, text in ticks]
            return cls(name=name, heights=heights, ticks=[(0.0, labels.MISSING), *raised])
        cells = [labels.cell(v) for v in every]
        kinds = sorted(set(cells))
        step = 1 / max(1, len(kinds) - 1)
        shown = [(at * step, kind) for at, kind in enumerate(kinds)] if len(kinds) <= NAMED_VALUES else []
        return cls(name=name, heights=[kinds.index(v) * step for v in cells], ticks=shown)
