"""`python docs/site/pictures.py SWEEP OUT`: draws the docs' pictures from a sweep, here the quickstart's.

`make pictures` runs the quickstart and then this. Of `quickstart-….svg` left is the front with its fitted
interval, right the stages that trials shared: figures of the report. `dashboard-….png` is the dashboard in
Chromium. Each is there once for light pages and once for dark ones.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import vl_convert

import sweeps
from analysis.notebook import shared, tradeoff
from analysis.report import figures, reuse_figures, trunk_figures
from analysis.report.figure import VEGA_LITE, Figure, combine
from analysis.report.style import DARK_INK, LIGHT_INK, theme
from analysis.report.trunk_layout import layouts
from analysis.summaries import budget
from analysis.table import TrialsTable

INKS = {"light": LIGHT_INK, "dark": DARK_INK}
GAP = 24


def main(url: str, out: Path) -> None:
    """Draw the picture, as `quickstart-light.svg` and `quickstart-dark.svg`."""
    frame = sweeps.open(url).trials()
    table = TrialsTable.from_frame(frame)
    x, y = "effective_steps", "final_loss"
    result, _ = tradeoff(frame, x, y)
    curve = budget.fit_trials(table, x=x, y=y).curve
    found = shared(frame, y)
    if found is None:
        raise SystemExit(f"{url}: no trial has shared a stage")
    trunks = [trunk_figures.trunks(layout, found) for layout in layouts(found.trunks, found.goal)]
    front = figures.tradeoff(table, result, curve)  # as high as the two beside it
    left = [(Figure(spec={**front.spec, "height": 440}), 460)]
    right = [(combine(trunks, columns=1, width=400), 400)] if trunks else []
    right += [(reuse_figures.prefixes(found), 430)]
    out.mkdir(parents=True, exist_ok=True)
    for word, ink in INKS.items():
        picture = together([[drawn(figure, width, ink) for figure, width in each] for each in (left, right)])
        (out / f"quickstart-{word}.svg").write_text(picture, encoding="utf-8")
    photograph(url, out)


def photograph(url: str, out: Path) -> None:
    """Save the first screen of the sweep's page in the dashboard."""
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "sweeps", "dashboard", "--storage", url, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().strip()  # type: ignore[union-attr]  # a pipe was asked for
        with sync_playwright() as playwright:
            path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            for word in ("light", "dark"):
                page = browser.new_page(viewport={"width": 1100, "height": 900}, color_scheme=word)
                page.goto(address)
                page.wait_for_timeout(8_000)  # the poller reads the sweep, and the page draws its charts
                page.screenshot(path=out / f"dashboard-{word}.png")
            browser.close()
    finally:
        server.terminate()
        server.wait()


def drawn(figure: Figure, width: int, ink: str) -> str:
    """Return the figure as SVG without a background."""
    spec = figure.for_picture(width)
    columns = {"columns": max(3, spec["config"]["legend"]["columns"])}  # a second row takes from the plot
    spec["config"] |= theme(ink)
    spec["config"]["legend"] |= columns
    return vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE)


def together(columns: list[list[str]]) -> str:
    """Return one SVG of several, in columns; the names of their clip paths stay apart."""
    parts, x, tallest, count = [], 0.0, 0.0, 0
    for column in columns:
        y = widest = 0.0
        for svg in column:
            count += 1
            # vl-convert writes both.
            width, height = (float(re.search(rf'{side}="([\d.]+)"', svg)[1]) for side in ("width", "height"))  # type: ignore[index]
            svg = re.sub(r'(id="|url\(#)(\w+)', rf"\g<1>p{count}-\g<2>", svg)
            parts.append(svg.replace("<svg ", f'<svg x="{x:g}" y="{y:g}" ', 1))
            y, widest = y + height + GAP, max(widest, width)
        x, tallest = x + widest + GAP, max(tallest, y)
    size = f'width="{x - GAP:g}" height="{tallest - GAP:g}" viewBox="0 0 {x - GAP:g} {tallest - GAP:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n' + "\n".join(parts) + "\n</svg>\n"


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
