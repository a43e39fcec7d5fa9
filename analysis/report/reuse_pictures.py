"""Pictures of what trials shared, for papers and notebooks, as `pictures` draws them."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from analysis import labels
from analysis.report.pictures import BLUE, GREY, ORANGE, SIZE, empty_axes
from analysis.report.reuse_figures import LATER, ONCE, PREFIXES, SAVED, in_unit, name_of
from analysis.report.style import axis_type
from analysis.statistics.pareto import Floats
from analysis.summaries.reuse import Reuse


def prefixes(found: Reuse) -> Figure:
    """Draw a bar per prefix: its stage as computed, the later stages of its trials, and what was saved."""
    rows = found.prefixes[:PREFIXES]
    at = np.arange(len(rows))
    paid, rest = np.array([row.paid for row in rows]), np.array([row.rest for row in rows])
    saved = np.array([row.saved for row in rows])
    stages = {row.stage for row in rows}
    by = f"{stages.pop()} by" if len(stages) == 1 else "computed by"
    with empty_axes(in_unit("compute", found), by, (SIZE[0], 1.4 + 0.24 * len(rows))) as (figure, axes):
        axes.barh(at, paid, 0.7, color=BLUE, label=ONCE)
        axes.barh(at, rest, 0.7, left=paid, color=ORANGE, hatch="///", ec="white", lw=0, label=LATER)
        axes.barh(at, saved, 0.7, left=paid + rest, fc="none", ec=GREY, lw=1.2 * (saved > 0), label=SAVED)
        for row, length in enumerate(paid + rest + saved):
            text = f"  {labels.counted(len(rows[row].trials), 'trial')}"
            axes.text(length, row, text, va="center", fontsize=9)
        axes.set_yticks(at, [name_of(row) for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(0, 1.18 * float((paid + rest + saved).max()) or 1.0)
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside upper center", ncols=3)
    return figure


def best_by_compute(found: Reuse, metric: str) -> Figure:
    """Draw the best value so far against the compute of the search, as paid and as if nothing was reused."""
    known = np.isfinite(found.best)
    with empty_axes(in_unit("compute of the search", found), labels.title(metric)) as (figure, axes):
        lines: tuple[tuple[str, Floats, dict[str, Any]], ...] = (
            ("without reuse (nominal)", found.nominal_until, {"color": GREY, "ls": ":", "lw": 1.5}),
            ("paid", found.paid_until, {"color": BLUE, "lw": 2.0}),
        )
        for name, cost, style in lines:
            axes.plot(cost[known], found.best[known], drawstyle="steps-post", label=name, **style)
        axes.set_xlim(left=0)
        axes.set_yscale(axis_type(found.best[known].tolist()))
        axes.legend()
    return figure
