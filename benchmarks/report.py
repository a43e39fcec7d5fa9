"""Reports: how large, how long to make, to show and to move; and fronts: `python -m benchmarks.report`.

Needs Chromium to show and to move one; without it these are left out. Limits with 10,000 trials: 20 s, with
Vega's JavaScript, and 1 GiB for the page, 0.1 s for a front. The peak of memory is the process's so far.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from analysis.report.figures import tradeoff
from analysis.report.page_scripts import vega_bundle
from analysis.report.report import render
from analysis.statistics.pareto import front
from analysis.summaries.summary import pareto
from analysis.table import TrialsTable

_FRAMES = """
new Promise(done => {
  const began = performance.now(); let frames = 0;
  const next = () => { frames += 1;
    performance.now() - began < 2000 ? requestAnimationFrame(next) : done(frames / 2); };
  requestAnimationFrame(next);
})
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--out", type=Path, help="keep the last page here")
    arguments = parser.parse_args()
    print(f"Vega's JavaScript: {_timed(vega_bundle)[1]:.1f} s, {len(vega_bundle()) / 1e6:.2f} MB")
    print(
        "| trials | page, MB | made in, s (CPU) | peak, MiB | PNG of the front, s | shown in, s | frames/s |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for count in arguments.trials:
        made, cpu = document(count), time.process_time()
        html, seconds = _timed(lambda made=made: render(made))
        cpu = time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        table = TrialsTable.from_document(made)
        figure = tradeoff(table, pareto(table, x="effective_steps", y="final_loss"))
        _, picture = _timed(figure.to_png)
        shown, frames = _in_chromium(html)
        size = len(html.encode()) / 1e6
        print(
            f"| {count:,} | {size:.2f} | {seconds:.1f} ({cpu:.1f}) | {peak:,.0f} | {picture:.1f} "
            f"| {shown} | {frames} |",
            flush=True,
        )
        if arguments.out is not None:
            arguments.out.write_text(html, encoding="utf-8")
    for objectives in (2, 3, 4):
        points = np.random.default_rng(0).random((max(arguments.trials), objectives))
        times = sorted(
            _timed(lambda points=points: front(points, ["minimize"] * points.shape[1]))[1] for _ in range(5)
        )
        print(f"front of {len(points):,} points, {objectives} objectives: {1000 * times[2]:.0f} ms")


def document(count: int) -> dict[str, Any]:
    """Return an export of so many trials with eight parameters, of which one in twenty failed."""
    chance = random.Random(0)
    trials = [_trial(index, chance) for index in range(count)]
    goals = [{"metric": "final_loss", "goal": "minimize"}]
    return {"schema": 1, "name": "made", "url": "", "objectives": goals, "run_cap": count, "trials": trials}


def _trial(index: int, chance: random.Random) -> dict[str, Any]:
    steps = 10 ** chance.uniform(1, 4)
    parameters = {
        "stage1_9.max_steps": int(steps),
        "stage2.max_steps": chance.randint(100, 2000),
        "stage1_9.lr": 10 ** chance.uniform(-5, -2),
        "stage2.lr": 10 ** chance.uniform(-5, -2),
        "batch": chance.choice([8, 16, 32]),
        "warmup": chance.random(),
        "schedule": chance.choice(["cosine", "linear"]),
        "weight_decay": chance.random(),
    }
    metrics = {
        "final_loss": 3 + 5 * steps**-0.3 + abs(chance.gauss(0, 0.3)),
        "final_loss_sem": 0.01,
        "effective_steps": 2 * steps + parameters["stage2.max_steps"],
    }
    is_done = chance.random() > 0.05
    return {
        "trial": index, "status": "completed" if is_done else "failed", "attempt": 1,
        "generator": "sobol" if index < 20 else "botorch", "parameters": parameters,
        "metrics": metrics if is_done else {}, "error": None if is_done else "diverged", "worker": "w",
        "seconds": 12.5,
    }  # fmt: skip


def _timed(call: Any) -> tuple[Any, float]:
    began = time.monotonic()
    return call(), time.monotonic() - began


def _in_chromium(html: str) -> tuple[str, str]:
    """Return the seconds until every plot is drawn, and frames a second while the front is dragged."""
    with _page(html) as found:
        if found is None:
            return "-", "-"
        page, began = found
        page.wait_for_function(
            "() => [...document.querySelectorAll('.plot')].every(p => p.querySelector('svg, canvas'))"
        )
        shown = time.monotonic() - began
        page.wait_for_timeout(1000)
        plot = page.locator("#tradeoff")
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        page.mouse.move(box["x"] + 500, box["y"] + 200)
        page.mouse.down()
        page.evaluate(f"window.frames_seen = {_FRAMES}; 0")
        until = time.monotonic() + 2
        while time.monotonic() < until:
            share = 2 - (until - time.monotonic())
            page.mouse.move(box["x"] + 500 - 100 * share, box["y"] + 200 + 20 * share)
        return f"{shown:.1f}", f"{page.evaluate('window.frames_seen'):.0f}"


@contextmanager
def _page(html: str) -> Iterator[tuple[Any, float] | None]:
    """Yield the page in Chromium and when it was asked for, or None without Chromium."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        yield None
        return
    with sync_playwright() as running, tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "report.html").write_text(html, encoding="utf-8")
        try:
            browser = running.chromium.launch(
                executable_path=os.environ.get("CHROMIUM") or shutil.which("chromium"), args=["--no-sandbox"]
            )
        except Error:
            yield None
            return
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        began = time.monotonic()
        page.goto((Path(folder) / "report.html").as_uri())
        yield page, began
        browser.close()


if __name__ == "__main__":
    main()
