"""The dashboard as a browser shows it: nobody complains, nothing is wider than a phone, parts follow the sweep.

`make test-browser` runs this; `make test` needs no browser. See `tests/analysis/report/test_report_browser.py`.
"""

from __future__ import annotations

import asyncio
import importlib.resources
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from published import done, put, staged
from served_dashboard import dashboard, make_sweep, record, run_file

from sweeps.space.definition import Choice

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
SCREENS = [("light", 1200, 900), ("dark", 1200, 900), ("light", 390, 844)]
PATHS = ["/", "/sweep/toy", "/sweep/toy/trial/0", "/sweep/toy/trial/2", "/sweep/toy/compare?t=0&t=1",
         "/sweep/toy/do/retry?failed=1", "/sweep/toy/prefixes", "/sweep/toy/parameters",
         "/nothing"]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    with playwright.sync_playwright() as running:
        # The sandbox cannot be had as root in a container; the pages are our own.
        chromium = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@contextmanager
def in_background(folder: Path) -> Iterator[str]:
    """A served dashboard in a thread of its own; yields its address."""
    ready, ended = threading.Event(), threading.Event()
    address: list[str] = []

    async def serve() -> None:
        async with dashboard(folder, control=True, tick_s=1.0) as served:
            address.append(served.url)
            ready.set()
            while not ended.is_set():
                await asyncio.sleep(0.05)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield address[0]
    finally:
        ended.set()
        thread.join(30)


@pytest.fixture
def folder(tmp_path: Path, space: Any) -> Path:
    shared = staged(space)
    trials = [done(0, 0.5, 2.0), done(1, 0.5, 1.5, of=0), record(2, "failed"), record(3, "running")]
    store = make_sweep(tmp_path, shared, *trials)
    lines = [
        {"stage": "stage2", "step": step, "loss": 4 - step / 10, "lr": 0.1, "grad_norm": 1.0}
        for step in range(1, 30)
    ]
    lines += [{"stage": "stage2", "step": 29, "held_out_loss": 1.5, "warnings": [{"message": "it grows"}]}]
    for index in (0, 1, 2):
        run_file(store, index, "metrics.jsonl", lines)
        run_file(store, index, "log.txt", "a line of the log\n" * 80)
    return tmp_path


def opened(browser: Any, url: str, **context: Any) -> tuple[Any, list[str]]:
    """The page, and everything that the browser complained about or asked others for."""
    page, complaints = browser.new_context(**context).new_page(), []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda request: (
            request.url.startswith(("http://127.0.0.1:", "data:")) or complaints.append(request.url)
        ),
    )
    page.goto(url)
    return page, complaints


@pytest.mark.parametrize(("scheme", "width", "height"), SCREENS, ids=["light", "dark", "phone"])
def test_no_page_complains_or_is_wider_than_its_screen(
    browser: Any, folder: Path, scheme: str, width: int, height: int
) -> None:
    with in_background(folder) as url:
        for path in PATHS:
            page, complaints = opened(
                browser, url + path, viewport={"width": width, "height": height}, color_scheme=scheme
            )
            if path == "/sweep/toy":
                page.wait_for_selector("#front-plot canvas")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            assert [line for line in complaints if "404" not in line] == [], path
            background = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert background == ("rgb(20, 23, 27)" if scheme == "dark" else "rgb(255, 255, 255)")
            page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(browser: Any, folder: Path, scheme: str) -> None:
    package = pytest.importorskip("axe_playwright_python")
    axe = (importlib.resources.files(package) / "axe.min.js").read_text(encoding="utf-8")
    with in_background(folder) as url:
        for path in PATHS:
            page, _ = opened(browser, url + path, color_scheme=scheme)
            if path == "/sweep/toy":
                page.wait_for_selector("#front-plot canvas")
            page.evaluate(axe)
            found = page.evaluate("axe.run(document)")["violations"]
            said = [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in found]
            assert said == [], path
            page.context.close()


def test_page_updates_and_keeps_the_selection(browser: Any, folder: Path, space: Any) -> None:
    from sweeps.storage.local import LocalStore

    with in_background(folder) as url:
        page, complaints = opened(browser, f"{url}/sweep/toy")
        page.wait_for_selector("#live:has-text('Live')")
        page.check("input[value='1']")
        put(LocalStore(folder / "toy"), record(4, loss=0.25))
        page.wait_for_selector("input[value='4']", timeout=5000)
        assert page.is_checked("input[value='1']")
        assert "0.25" in page.inner_text("#best")
        page.click("text=compare the picked")
        page.wait_for_url("**/compare?t=1")
        assert complaints == []


@pytest.mark.parametrize(("scheme", "width", "height"), SCREENS, ids=["light", "dark", "phone"])
def test_figures_of_parameters_are_drawn_and_follow_the_sweep(
    browser: Any, tmp_path: Path, space: Any, scheme: str, width: int, height: int
) -> None:
    kind = Choice(name="kind", values=("a", "b"))
    wide = replace(space, parameters=(*space.parameters, kind))
    trials = [
        record(at, loss=(at / 12 - 0.4) ** 2, parameters={"x": at / 12, "n": 1 + at, "kind": "ab"[at % 2]})
        for at in range(12)
    ]
    store = make_sweep(tmp_path, wide, *trials)
    with in_background(tmp_path) as url:
        page, complaints = opened(
            browser,
            f"{url}/sweep/toy/parameters",
            viewport={"width": width, "height": height},
            color_scheme=scheme,
        )
        page.wait_for_selector("#parallel svg")
        for name in ("sensitivity-0", "marginal-0-0", "cross-validation-0"):
            page.wait_for_selector(f"#{name} svg", timeout=300_000)  # a fit takes seconds on a quiet machine
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        ink = page.evaluate("getComputedStyle(document.querySelector('#parallel svg text')).fill")
        assert ink == ("rgb(230, 233, 237)" if scheme == "dark" else "rgb(27, 31, 36)")
        drawn = page.query_selector("#parallel svg")
        lines = page.inner_html("#parallel")
        page.wait_for_timeout(1500)
        assert drawn.evaluate("each => each.isConnected")  # nothing is new: it is not drawn again
        put(store, record(12, loss=-1.0, parameters={"x": 1.0, "n": 90, "kind": "a"}))
        page.wait_for_function(
            "before => document.querySelector('#parallel').innerHTML !== before", arg=lines
        )
        page.wait_for_selector("#parallel svg")
        assert complaints == []


def test_points_are_dragged_zoomed_named_and_opened(browser: Any, folder: Path) -> None:
    with in_background(folder) as url:
        page, complaints = opened(browser, f"{url}/sweep/toy", viewport={"width": 1200, "height": 900})
        canvas = page.wait_for_selector("#front-plot canvas")
        canvas.scroll_into_view_if_needed()
        page.wait_for_timeout(300)
        picture = "document.querySelector('#front-plot canvas').toDataURL()"
        before = page.evaluate(picture)
        box = canvas.bounding_box()
        middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.move(*middle)
        page.mouse.down()
        page.mouse.move(middle[0] + 60, middle[1] + 20, steps=5)
        page.mouse.up()
        page.wait_for_timeout(200)
        dragged = page.evaluate(picture)
        assert dragged != before
        canvas.focus()
        page.keyboard.press("+")
        page.wait_for_timeout(200)
        assert page.evaluate(picture) != dragged
        page.keyboard.press("0")
        page.wait_for_timeout(200)
        assert page.evaluate(picture) == before
        place = page.evaluate("[plot.x(plot.px[0]), plot.y(plot.py[0]), plot.data.trials[0]]")
        page.mouse.move(box["x"] + place[0], box["y"] + place[1])
        assert page.inner_text(".tip").startswith(f"trial {place[2]}:")
        page.mouse.click(box["x"] + place[0], box["y"] + place[1])
        page.wait_for_url(f"**/trial/{place[2]}")
        assert complaints == []


def test_every_page_works_without_scripts_and_by_keyboard(browser: Any, folder: Path) -> None:
    from sweeps.storage.local import LocalStore
    from sweeps.trials import control

    with in_background(folder) as url:
        page, _ = opened(browser, f"{url}/sweep/toy", java_script_enabled=False)
        assert page.locator("#front-picture svg circle.front").count() > 0
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")  # skip to the content
        assert page.url.endswith("#main")
        page.get_by_role("link", name="loss", exact=True).click()
        assert "sort=loss" in page.url
        page.get_by_role("link", name="pause", exact=True).press("Enter")
        page.get_by_role("button", name="pause").press("Enter")  # a form with an Origin, as browsers send it
        page.wait_for_url("**/sweep/toy")
        assert control.read(LocalStore(folder / "toy")) == "paused"


def test_a_page_says_when_the_server_does_not_answer(browser: Any, folder: Path) -> None:
    with in_background(folder) as url:
        page, _ = opened(browser, f"{url}/sweep/toy")
        page.wait_for_selector("#live:has-text('Live')")
    page.wait_for_selector("#live:has-text('does not answer')", timeout=20000)
