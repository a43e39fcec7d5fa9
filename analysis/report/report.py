"""The report of a sweep: one self-contained HTML file that needs neither a network nor a server.

The page holds Vega's JavaScript once, and a content security policy that lets no other script run: errors and
parameters of trials stay text.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from altair.utils import schemapi
from markupsafe import Markup

from analysis.labels import number, title
from analysis.report.contents import Contents, contents
from analysis.report.figure import Figure
from analysis.report.figures import history, tradeoff
from analysis.report.footnotes import STEPS, column_source, notes
from analysis.report.insight_figures import surrogate_figures
from analysis.report.many_objective_figures import pair
from analysis.report.optimum_figures import optima
from analysis.report.page_scripts import STYLE, draw_script, vega_bundle
from analysis.report.parallel_figure import LINES, parallel
from analysis.report.reuse_figures import PREFIXES, best_by_compute, name_of, prefixes
from analysis.report.trunk_figures import lengths, trunks
from analysis.report.trunk_layout import layouts
from analysis.summaries.costs import Rate
from analysis.summaries.front_table import ROWS, Head
from analysis.summaries.insight import SKILL
from analysis.summaries.summary_line import format_cells
from analysis.table import POINTS, SEM, STAGES, TRIAL_COLUMNS, label
from sweeps.text.counted import counted

PARAMETERS = 8
"""Parameters of the best trial on the first screen; the others are folded."""

TEMPLATES = Path(__file__).parent / "templates"


def render(document: Mapping[str, Any], rate: Rate | None = None) -> str:
    """Return the report of an export document as HTML.

    Args:
        document: see `contents.contents`.
        rate: the price of the trials' time; None for what they report.

    Raises:
        AnalysisError: the document is not an export of a sweep.
    """
    # Checking figures against Vega-Lite's schema takes half of their time; tests of the figures do.
    with schemapi.debug_mode(False), np.errstate(over="ignore", invalid="ignore"):
        page = contents(document, rate)
        figures = _figures(page)
    scripts = [vega_bundle(), draw_script()] if figures else []
    heads, rows = _trials_table(page)
    return _template().render(
        page=page,
        title=title,
        number=number,
        counted=counted,
        skill=SKILL,
        steps=STEPS,
        prefix_name=name_of,
        trunks=layouts(page.reuse.trunks, page.reuse.goal) if page.reuse else (),
        drawn=PREFIXES,
        listed=ROWS,
        lines=LINES,
        figures={
            name: Markup(figure.to_json())  # noqa: S704 - JSON without signs of HTML
            for name, figure in figures.items()
        },
        plot_style=Markup(STYLE),  # noqa: S704 - our own
        scripts=[Markup(script) for script in scripts],  # noqa: S704 - Vega's and our own, nobody's data
        script_hashes=[
            "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
            for script in scripts
        ],
        heads=heads,
        rows=rows,
        left_out=page.trials - len(rows),
        words=("status", "generator"),
        notes=notes(page, figures),
        source=functools.partial(column_source, page=page),
        at_first=PARAMETERS,
    )


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")


def _figures(page: Contents) -> dict[str, Figure]:
    """Return the figures that have something to show, by their id on the page."""
    figures = {}
    if page.tradeoff is not None:
        fit = page.tradeoff.fit
        figures["tradeoff"] = tradeoff(page.table, page.tradeoff.result, fit.curve if fit else None)
    if page.many_objectives is not None:
        for nth, (x, y) in enumerate(page.many_objectives.result.pairs):
            figures[f"pair-{nth}"] = pair(page.many_objectives.result, x, y)
    if page.reuse is not None:
        if np.isfinite(page.reuse.best).any():
            figures["paid"] = best_by_compute(page.reuse, page.objectives[0].metric)
        for at, drawing in enumerate(layouts(page.reuse.trunks, page.reuse.goal)):
            figures[f"trunks-{at}"] = trunks(drawing, page.reuse)
        for at, curve in enumerate(page.reuse.lengths):
            figures[f"lengths-{at}"] = lengths(
                curve, page.reuse, page.objectives[0].metric, page.log_parameters
            )
        if page.reuse.prefixes:
            figures["prefixes"] = prefixes(page.reuse)
    if page.answer is not None:
        minimize = page.objectives[0].goal == "minimize"
        figures |= optima(page.table, page.answer, minimize=minimize, log=page.log_parameters)
    figures |= surrogate_figures(page.insight, page.log_parameters)
    if page.best is not None:
        first = page.objectives[0]
        lines = parallel(page.table.configurations, first.metric, first.goal, page.log_parameters)
        if lines is not None:
            figures["parallel"] = lines
        figures["history"] = history(page.table, first.metric, first.goal)
    return figures


def _trials_table(page: Contents) -> tuple[list[Head], list[list[str]]]:
    """Return heads and rows of the last ROWS trials: trial, objectives, parameters, other metrics."""
    table, names = page.table, page.table.columns
    objectives = [o.metric for o in page.objectives if o.metric in table]
    leading = ["trial", "status", "generator", *objectives, *table.parameters]
    # Errors have their own section; a standard error follows its value.
    hidden = {*TRIAL_COLUMNS, STAGES, POINTS, *leading, *(name + SEM for name in names)}
    columns = [*leading, *(name for name in names if name not in hidden), "attempt", "seconds"]
    order = table.trials.argsort(kind="stable").tolist()[-ROWS:]
    heads = [Head(name=label(name, names), source=column_source(name, page)) for name in columns]
    cells = [[str(trial) for trial in table.trials[order].tolist()]]  # an index is a name: not 1,000
    cells += [format_cells(table, name, order) for name in columns[1:]]
    return heads, [list(row) for row in zip(*cells, strict=True)]
