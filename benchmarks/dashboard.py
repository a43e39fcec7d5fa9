"""The dashboard in Chromium: `python -m benchmarks.dashboard`.

For each number of trials a sweep in a folder is made, and served by the command in a process of its own.
Limits: first paint 1 s with 1,000 trials and 3 s with 10,000 (of a server that has just started, and of one
that has read the sweep), a change on the page 2 s after its record, 30 frames a second while the front is
dragged, 300 MB of the server, one listing in 5 s with 200 clients.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from sweeps.experiment import Experiment
from sweeps.space.definition import Choice, Objective, Program, Range, Search, Space
from sweeps.storage.local import LocalStore
from sweeps.trials import record as trials
from sweeps.trials.record import Attempt, Trial

SPACE = Space(
    name="bench",
    objectives=(Objective(metric="final_loss"),),
    parameters=(
        Range(name="stage1_9.max_steps", min=1, max=800, kind="int", log=True),
        Range(name="stage1_9.optimizer.lr", min=1e-3, max=1e-2, kind="float", log=True),
        Choice(name="stage2.optimizer.type", values=("muon", "adamw")),
    ),
    program=Program(kind="function", function="nobody:runs"),
    search=Search(method="random", sobol=4, seed=0),
    run_cap=20_000,
)


def trial(index: int, draw: random.Random) -> Trial:
    """A trial with a curve and an attempt; every tenth has failed."""
    first, failed = int(10 ** draw.uniform(0, 2.9)), index % 10 == 9
    steps = 2.0 * first + 200
    metrics = {
        "final_loss": 2.6 + 14 * (steps + 200) ** -0.4 + draw.gauss(0, 0.05),
        "final_loss_sem": 0.006,
        "effective_steps": steps,
        "train_seconds": steps / 9,
        "usd": steps / 9e4,
        "perplexity": math.exp(3),
    }
    return Trial(
        trial=index,
        status="failed" if failed else "completed",
        parameters={
            "stage1_9.max_steps": first,
            "stage1_9.optimizer.lr": 10 ** draw.uniform(-3, -2),
            "stage2.optimizer.type": draw.choice(("muon", "adamw")),
        },
        generator="sobol" if index < 3000 else "botorch",
        attempt=1,
        metrics={} if failed else metrics,
        error=f"out of memory: {40 + index % 5} GiB\n" + "a line of the traceback\n" * 20 if failed else None,
        failure="out_of_memory" if failed else None,
        curve=tuple((float(step), 4.0 - step / 100) for step in range(64)),
        created=1e9 + index,
        started=1e9 + index,
        ended=1e9 + index + 30,
        history=(
            Attempt(
                attempt=1,
                worker=f"host-{index % 16}",
                start=1e9 + index,
                end=1e9 + index + 30,
                reason="failed" if failed else "completed",
            ),
        ),
    )


def make(folder: Path, count: int) -> LocalStore:
    store = LocalStore(folder / SPACE.name)
    Experiment.create(store, SPACE)
    draw = random.Random(0)
    (folder / SPACE.name / "trials").mkdir(exist_ok=True)
    for index in range(count):
        path = folder / SPACE.name / trials.key(index)
        path.write_bytes(trials.encode(trial(index, draw), f"t{index}"))
    return store


@contextlib.contextmanager
def server(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    argv = [sys.executable, "-m", "sweeps", "dashboard", "--storage", str(folder), "--port", "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip().rstrip("/"), psutil.Process(process.pid)
        finally:
            process.terminate()


def first_paint(browser: Any, url: str) -> tuple[float, float]:
    """Return seconds until the first paint of the sweep's page, and until its table is there."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    begun = time.perf_counter()
    page.goto(f"{url}/sweep/bench", wait_until="commit")
    page.wait_for_selector("#table tbody tr", timeout=60_000)
    there = time.perf_counter() - begun
    script = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1"
    paint = -1.0
    while paint < 0:
        paint = page.evaluate(script)
    context.close()
    return paint / 1000, there


def latency(browser: Any, url: str, store: LocalStore, count: int, repeats: int = 5) -> list[float]:
    """Return the seconds from the write of a record until the page shows it."""
    page = browser.new_context().new_page()
    page.goto(f"{url}/sweep/bench?sort=trial&order=desc")
    page.wait_for_selector("#live:has-text('Live')")
    draw, found = random.Random(1), []
    for nth in range(repeats):
        page.wait_for_timeout(2500 + 370 * nth)
        index = count + nth
        store.create(trials.key(index), trials.encode(trial(index, draw), f"new{index}"))
        wrote = time.perf_counter()
        page.wait_for_selector(f"input[value='{index}']", timeout=60_000)
        found.append(time.perf_counter() - wrote)
    page.context.close()
    return found


def frames(browser: Any, url: str, seconds: float = 3.0) -> float:
    """Return the frames a second of the page while the front is dragged."""
    page = browser.new_context(viewport={"width": 1200, "height": 900}).new_page()
    page.goto(f"{url}/sweep/bench")
    canvas = page.wait_for_selector("#front-plot canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.evaluate(
        "() => { window.painted = 0; const paint = plot.paint.bind(plot);"
        " plot.paint = () => { window.painted++; paint(); }; }"
    )
    page.mouse.move(x, y)
    page.mouse.down()
    begun, at = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        at += 1
        page.mouse.move(x + 80 * math.sin(at / 7), y + 40 * math.cos(at / 9))
    took = time.perf_counter() - begun
    page.mouse.up()
    painted: int = page.evaluate("window.painted")
    page.context.close()
    return painted / took


async def crowd(url: str, clients: int, seconds: float) -> tuple[int, int, float]:
    """Return pages that were served to the clients, events that they got, and the slowest page in seconds."""
    pages, events, slowest = 0, 0, 0.0
    until = time.monotonic() + seconds
    connector = aiohttp.TCPConnector(limit=0)

    async def listen(session: aiohttp.ClientSession) -> None:
        nonlocal events
        async with session.get(f"{url}/sweep/bench/events") as answer:
            async for line in answer.content:
                events += line.startswith(b"data:")

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal pages, slowest
        listener = asyncio.create_task(listen(session))
        while time.monotonic() < until:
            begun = time.monotonic()
            async with session.get(f"{url}/sweep/bench") as answer:
                await answer.read()
                pages += answer.status == 200
            slowest = max(slowest, time.monotonic() - begun)
            await asyncio.sleep(random.uniform(1.0, 3.0))
        listener.cancel()

    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return pages, events, slowest


def listings(process: psutil.Process, seconds: float) -> float | None:
    """Return how often a second the server opens the folder of records, by strace; None without it."""
    if shutil.which("strace") is None:
        return None
    argv = ["strace", "-f", "-qq", "-e", "trace=openat", "-p", str(process.pid)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as tracer:
        time.sleep(seconds)
        tracer.send_signal(2)
        _, found = tracer.communicate()
    return len(re.findall(r'/trials", [^)]*O_DIRECTORY', found)) / seconds


def measure(browser: Any, folder: Path, count: int, clients: int) -> None:
    begun = time.perf_counter()
    store = make(folder, count)
    print(f"{count:,} trials, made in {time.perf_counter() - begun:.0f} s", flush=True)
    with server(folder) as (url, process):
        cold = first_paint(browser, url)
        warm = [first_paint(browser, url) for _ in range(3)]
        print(f"  server just started: first paint {cold[0]:.2f} s, the table {cold[1]:.2f} s")
        paint, there = (statistics.median(pair[at] for pair in warm) for at in (0, 1))
        print(f"  sweep read: first paint {paint:.2f} s, the table {there:.2f} s (medians of 3)", flush=True)
        found = latency(browser, url, store, count)
        print(
            f"  record to page: median {statistics.median(found):.2f} s, most {max(found):.2f} s", flush=True
        )
        print(f"  front while it is dragged: {frames(browser, url):.0f} frames a second", flush=True)
        if clients:
            command = [
                sys.executable,
                "-m",
                "benchmarks.dashboard",
                "--crowd",
                url,
                "--clients",
                str(clients),
            ]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
                time.sleep(5)
                rate = listings(process, 20)
                said, _ = other.communicate()
            print(f"  {said.strip()}")
            shown = "not counted, no strace" if rate is None else f"{rate:.2f}"
            print(f"  listings a second meanwhile: {shown}")
        info = process.memory_full_info()
        print(
            f"  memory of the server: {info.rss / 1e6:.0f} MB resident, {info.uss / 1e6:.0f} MB its own",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--crowd", metavar="URL", help="be the clients of this server, for half a minute")
    options = parser.parse_args()
    if options.crowd:
        pages, events, slowest = asyncio.run(crowd(options.crowd, options.clients, 30.0))
        served = f"{pages} pages, {events} events, slowest page {slowest:.2f} s"
        print(f"{options.clients} clients for 30 s: {served}")
        return
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for count in options.trials:
            with tempfile.TemporaryDirectory() as folder:
                measure(browser, Path(folder), count, options.clients)
        browser.close()


if __name__ == "__main__":
    main()
