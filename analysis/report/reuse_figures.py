"""Figures of what trials shared: the tree of prefixes, and the best value against paid compute."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from analysis import labels
from analysis.report.style import BLUE, GREY, ORANGE, blank, scale, text
from analysis.summaries.prefixes import Prefix
from analysis.summaries.reuse import Reuse

PREFIXES = 30
"""Most prefixes drawn, those of most trials."""

ONCE, LATER, SAVED = "the shared stage", "later stages", "saved"
"""Parts of a bar."""

HOLLOW = {"color": "rgba(0,0,0,0)", "line": {"color": GREY, "width": 1.5}}
HATCHED = {"shape": "/", "fillmode": "overlay", "fgcolor": "white", "size": 6, "solidity": 0.25}


def prefixes(found: Reuse) -> go.Figure:
    """Draw a bar per prefix: its stage as computed, the later stages of its trials, and what was saved."""
    rows = found.prefixes[:PREFIXES][::-1]  # plotly builds from below
    stages = {row.stage for row in rows}
    figure = blank(in_unit("compute", found), f"{text(*stages)} by" if len(stages) == 1 else "computed by")
    bars = (
        (ONCE, [row.paid for row in rows], {"color": BLUE}),
        (LATER, [row.rest for row in rows], {"color": ORANGE, "pattern": HATCHED}),
        (SAVED, [row.saved or None for row in rows], HOLLOW),
    )
    at = list(range(len(rows)))
    for name, values, marker in bars:
        figure.add_trace(
            go.Bar(
                x=values, y=at, orientation="h", name=name, marker=marker, width=0.7,
                customdata=_hovers(rows),
                hovertemplate="%{customdata}<br>" + name + " %{x:,.4g}<extra></extra>",
            )
        )  # fmt: skip
    lengths = [row.paid + row.rest + row.saved for row in rows]
    figure.add_trace(
        go.Scatter(
            x=lengths,
            y=at,
            mode="text",
            text=[f" {labels.counted(len(row.trials), 'trial')}" for row in rows],
            textposition="middle right",
            hoverinfo="skip",
            showlegend=False,
            cliponaxis=False,
        )
    )
    names = [text(name_of(row)) for row in rows]
    figure.update_layout(barmode="stack", height=130 + 26 * len(rows), legend_traceorder="normal")
    axis = {"tickvals": at, "ticktext": names, "showgrid": False, "title_standoff": 12}
    figure.update_yaxes(axis, range=[-0.6, len(rows) - 0.4])
    figure.update_xaxes(range=[0, 1.3 * max(lengths, default=1.0) or 1.0], tickformat=",")
    return figure


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


def _hovers(rows: tuple[Prefix, ...]) -> list[str]:
    """Return what each prefix is, its trials and its best value."""
    hovers = []
    for row in rows:
        shown = ", ".join(map(str, row.trials[:20])) + (" …" if len(row.trials) > 20 else "")
        lines = [f"{text(row.stage)} of {source(row)}", *(f"{text(n)} {text(v)}" for n, v in row.parameters)]
        best = "" if row.best is None else f", best {labels.number(row.best)}"
        hovers.append("<br>".join([*lines, f"{labels.counted(len(row.trials), 'trial')}: {shown}{best}"]))
    return hovers


def best_by_compute(found: Reuse, metric: str) -> go.Figure:
    """Draw the best value so far against the compute of the search, as paid and as if nothing was reused."""
    figure = blank(in_unit("compute of the search", found), labels.title(metric))
    known = np.isfinite(found.best)
    lines = (
        ("without reuse (nominal)", found.nominal_until, {"color": GREY, "width": 1.5, "dash": "dot"}, 0.7),
        ("paid", found.paid_until, {"color": BLUE, "width": 2.5}, 1.0),
    )
    trials = np.array(found.trials)[known].tolist()
    for name, cost, line, opacity in lines:
        figure.add_trace(
            go.Scatter(
                x=cost[known].tolist(),
                y=found.best[known].tolist(),
                mode="lines",
                name=name,
                opacity=opacity,
                line=line | {"shape": "hv"},
                customdata=trials,
                hovertemplate="up to trial %{customdata}: %{y} for %{x:,.4g}<extra>" + name + "</extra>",
            )
        )
    figure.update_xaxes(rangemode="tozero", tickformat=",")
    figure.update_yaxes(scale(found.best[known].tolist()))
    return figure


def in_unit(name: str, found: Reuse) -> str:
    """Return an axis title with the unit of the costs, if that is known."""
    return f"{name} ({found.unit})" if found.unit else name
