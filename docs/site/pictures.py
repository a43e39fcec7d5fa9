"""`python docs/site/pictures.py SWEEP OUT`: draws the pictures of the docs from a sweep, here the quickstart's.

`make pictures` runs the quickstart and then this. Each picture is written twice, for light and for dark pages.
"""

from __future__ import annotations

import sys
from pathlib import Path

import vl_convert

import sweeps
from analysis.notebook import shared, tradeoff
from analysis.report import figures, reuse_figures, trunk_figures
from analysis.report.figure import VEGA_LITE, Figure
from analysis.report.style import DARK_INK, LIGHT_INK, theme
from analysis.report.trunk_layout import layouts
from analysis.summaries import budgets
from analysis.table import TrialsTable

INKS = {"light": LIGHT_INK, "dark": DARK_INK}


def main(url: str, out: Path) -> None:
    """Draw the front with its fitted interval, and the trees of shared stages."""
    frame = sweeps.open(url).trials()
    table = TrialsTable.from_frame(frame)
    x, y = "effective_steps", "final_loss"
    result, _ = tradeoff(frame, x, y)
    curve = budgets.fit_trials(table, x=x, y=y).curve
    found = shared(frame, y)
    assert found is not None, "the quickstart shares stages"
    out.mkdir(parents=True, exist_ok=True)
    write(out, "front", figures.tradeoff(table, result, curve))
    write(out, "trunks", trunk_figures.all_trunks(layouts(found.trunks, found.goal), found))
    write(out, "prefixes", reuse_figures.prefixes(found))


def write(out: Path, name: str, figure: Figure) -> None:
    """Write the figure as `NAME-light.svg` and `NAME-dark.svg`, without a background."""
    spec = figure.for_picture(560)
    for word, ink in INKS.items():
        spec["config"] |= theme(ink)
        svg = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE)
        (out / f"{name}-{word}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
