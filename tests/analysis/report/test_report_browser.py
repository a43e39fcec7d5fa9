"""The report as a browser shows it: no errors, every plot drawn, nothing wider than a phone. Needs Chromium.

`make test-browser` runs this; `make test` needs no browser. Chromium is the system's (`apt-get install chromium`),
the one that CHROMIUM names, or Playwright's own (`playwright install chromium`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis.report.report import render

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
SCREENS = [("light", 1200, 900), ("dark", 1200, 900), ("light", 390, 844)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    with playwright.sync_playwright() as running:
        # The sandbox cannot be had as root in a container; the page is our own file.
        chromium = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def opened(
    browser: Any, html: str, folder: Path, scheme: str, width: int, height: int
) -> tuple[Any, list[str]]:
    """The page, and everything that the browser complained about or asked the network for."""
    (folder / "report.html").write_text(html, encoding="utf-8")
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda request: request.url.startswith(("file:", "data:", "blob:")) or complaints.append(request.url),
    )
    page.goto((folder / "report.html").as_uri())
    page.wait_for_function(
        "() => [...document.querySelectorAll('.plot')].every(p => p.querySelector('svg, canvas'))",
        timeout=120_000,
    )
    return page, complaints


def ink_of(page: Any) -> set[str]:
    """The colours of all text in the plots."""
    return set(
        page.evaluate("[...document.querySelectorAll('.plot svg text')].map(t => getComputedStyle(t).fill)")
    )


@pytest.mark.parametrize(("scheme", "width", "height"), SCREENS, ids=["light", "dark", "phone"])
def test_every_plot_is_drawn_and_nobody_complains(
    browser: Any, mattered: dict[str, Any], tmp_path: Path, scheme: str, width: int, height: int
) -> None:
    page, complaints = opened(browser, render(mattered), tmp_path, scheme, width, height)
    assert complaints == []
    drawn = page.evaluate("[...document.querySelectorAll('.plot')].map(p => p.id)")
    assert {"tradeoff", "sensitivity-0", "marginal-0-0", "cross-validation-0", "parallel", "history"} <= set(
        drawn
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert ink_of(page) == {page.evaluate("getComputedStyle(document.body).color")}


def test_three_objectives_on_a_dark_phone(browser: Any, three: dict[str, Any], tmp_path: Path) -> None:
    page, complaints = opened(browser, render(three), tmp_path, "dark", 390, 844)
    assert complaints == []
    drawn = page.evaluate("[...document.querySelectorAll('.plot')].map(p => p.id)")
    assert {"pair-0", "pair-1", "pair-2"} <= set(drawn)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    # The notes on a part's numbers are folded at its end.
    notes = page.locator("details.sources", has_text="Front in all objectives")
    assert not notes.locator("dd").first.is_visible()
    notes.locator("summary").click()
    assert "no other one beats in all of the columns" in notes.locator("dd").first.inner_text()


def test_first_screen_has_best_front_and_next(browser: Any, mattered: dict[str, Any], tmp_path: Path) -> None:
    steps = [{"text": f"Step {at}:", "command": "sweep confirm --storage x"} for at in range(3)]
    page, _ = opened(browser, render(mattered | {"next": steps}), tmp_path, "light", 1280, 800)
    for part in (".card .value", "#tradeoff", ".next"):
        box = page.locator(part).first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 800, part


def test_a_page_of_nothing_is_quiet(browser: Any, document: Any, tmp_path: Path) -> None:
    page, complaints = opened(browser, render(document()), tmp_path, "light", 390, 844)
    assert complaints == []
    assert "No trial has been asked for yet" in page.inner_text("body")


def test_hostile_text_runs_nowhere(browser: Any, mattered: dict[str, Any], tmp_path: Path) -> None:
    attack = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    for row in mattered["trials"]:
        row["error"] = attack
        row["parameters"] = {attack: row["trial"], "other": attack}
    view = mattered["insight"]["metrics"]["final_loss"]
    view["sensitivity"] = {attack: {"first": 0.1, "total": 0.2}}
    view["marginal"] = {attack: [{"value": attack, "mean": 1.0, "sd": 0.1}]}
    page, complaints = opened(browser, render(mattered), tmp_path, "light", 1200, 900)
    assert page.title() != "owned"
    assert complaints == []


def test_a_plot_shows_zooms_and_chooses(browser: Any, mattered: dict[str, Any], tmp_path: Path) -> None:
    page, complaints = opened(browser, render(mattered), tmp_path, "light", 1200, 900)
    plot = page.locator("#history")
    plot.scroll_into_view_if_needed()
    # A pointer on a trial shows its parameters, a line each.
    plot.locator("g.mark-symbol.role-mark path").last.hover()
    tip = page.locator("#vg-tooltip-element.visible")
    tip.wait_for()
    assert tip.inner_text().startswith(("3.", "4", "trial"))

    def ticks() -> list[str]:
        found: list[str] = plot.locator("g.role-axis-label text").all_text_contents()
        return sorted(found)

    # A wheel scrolls the page; with Ctrl it enlarges the plot, and a double click brings all of it back.
    before, box = ticks(), plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 600, box["y"] + 200)
    page.mouse.wheel(0, -50)
    page.wait_for_timeout(200)
    assert ticks() == before
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_timeout(200)
    assert ticks() != before
    page.mouse.dblclick(box["x"] + 600, box["y"] + 200)
    page.wait_for_timeout(200)
    assert ticks() == before
    # Dragged, it shows another part.
    page.mouse.move(box["x"] + 600, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 200, steps=5)
    page.mouse.up()
    page.wait_for_timeout(200)
    assert ticks() != before
    page.mouse.dblclick(box["x"] + 600, box["y"] + 200)
    # An entry of the legend stands out when it is chosen.
    faint = "g.mark-symbol.role-mark path[opacity='0.08']"
    assert plot.locator(faint).count() == 0
    plot.locator("g.role-legend-label text", has_text="sobol").click()
    page.wait_for_timeout(200)
    assert plot.locator(faint).count() > 0
    assert complaints == []


def test_plots_follow_the_readers_scheme_and_the_width(
    browser: Any, mattered: dict[str, Any], tmp_path: Path
) -> None:
    page, complaints = opened(browser, render(mattered), tmp_path, "light", 1200, 900)
    for scheme, width in (("dark", 1200), ("dark", 390), ("light", 390)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(700)
        assert ink_of(page) == {page.evaluate("getComputedStyle(document.body).color")}
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.querySelector('#tradeoff svg').getBoundingClientRect().width") <= width
    assert complaints == []
