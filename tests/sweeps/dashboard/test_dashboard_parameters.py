"""The page of what the parameters do: the report's figures, which wait for nothing and follow the sweep."""

from __future__ import annotations

import asyncio
import html
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from published import put
from served_dashboard import Dashboard, dashboard, make_sweep, record, run

from sweeps.dashboard.answers import Answer, Answers, Question, fit_elsewhere
from sweeps.dashboard.reader import SweepReader, View
from sweeps.export.insight import insight
from sweeps.space.definition import Choice, Objective, Range

PAGE = "/sweep/toy/parameters"
NAME = "mode</script><b>"


def document(*metrics: str) -> dict[str, Any]:
    """What the surrogate would say of `x` and of a choice with an unfriendly name."""
    curve = [{"value": value, "mean": 1.0 - value, "sd": 0.1} for value in (0.0, 0.5, 1.0)]
    options = [{"value": value, "mean": 1.0, "sd": 0.1} for value in ("<i>a", "b")]
    held_out = [
        {"trial": at, "observed": 0.1 * at, "predicted": 0.1 * at, "predicted_sd": 0.01} for at in range(5)
    ]
    one = {
        "sensitivity": {NAME: {"first": 0.25, "total": 0.3}, "x": {"first": 0.6, "total": 0.7}},
        "cross_validation": held_out,
        "marginal": {"x": curve, NAME: options},
        "joint": {"x": "x", "y": NAME, "cells": [{"x": 0.5, "y": "<i>a", "mean": 1.0}]},
    }
    return {"trials": 5, "note": "", "metrics": dict.fromkeys(metrics, one)}


class Fits:
    """Stands in for the process that fits."""

    def __init__(self, *metrics: str) -> None:
        self.asked: list[Question] = []
        self.found = document(*metrics or ("loss",))
        self.go = asyncio.Event()

    async def __call__(self, view: View, question: Question) -> Answer:
        self.asked.append(question)
        await self.go.wait()
        return Answer(results=len(view.records), trial=None, sentences=(), insight=self.found)


def figures(page: str) -> dict[str, Any]:
    found = re.findall(r'<script type="application/json" data-plot="([\w-]+)">(.*?)</script>', page)
    return {name: json.loads(text) for name, text in found}


async def until(served: Dashboard, text: str) -> str:
    for _ in range(100):
        if text in (page := await served.page(PAGE)):
            return page
        await asyncio.sleep(0.1)
    raise AssertionError(page)


def version(page: str) -> str:
    return re.search(r'data-version="(\w+)"', page)[1]


def test_lines_are_there_at_once_and_the_surrogate_comes_later(tmp_path, space):
    store = make_sweep(tmp_path, space, *(record(at) for at in range(5)), record(5, "failed"))

    async def test() -> None:
        fits = Fits()
        async with dashboard(tmp_path) as served:
            served.site.answers = Answers(fits, gap_s=0.1)
            assert f'href="{PAGE}"' in await served.page("/sweep/toy")
            assert fits.asked == []  # nobody has opened the page
            before = await served.page(PAGE)
            assert "being fitted" in before
            assert list(figures(before)) == ["parallel"]
            fits.go.set()
            page = await until(served, "What the surrogate says, by 6 results.")
            assert version(page) != version(before)
            assert {*figures(page)} == {
                "sensitivity-0", "marginal-0-0", "marginal-0-1", "joint-0", "cross-validation-0", "parallel",
            }  # fmt: skip
            assert all(f'<div class="plot" id="{name}"' in page for name in figures(page))
            rows = re.findall(
                r'<th scope="row" class="word">([^<]*)</th><td>([^<]*)</td><td>([^<]*)</td>', page
            )
            assert rows == [("x", "70 %", "60 %"), (html.escape(NAME), "30 %", "25 %")]
            assert "<b>" not in page.replace(html.escape(NAME), "").partition("<h2")[2]
            assert version(await served.page(f"{PAGE}?again")) == version(page)  # nothing is new
            assert fits.asked == ["insight"]
            put(store, record(6, loss=0.01))
            await until(served, "by 7 results")
            assert fits.asked == ["insight"] * 2

    run(test())


@pytest.mark.parametrize("status", ["failed", "pending", "running", None])
def test_without_a_result_the_page_says_so(tmp_path, space, status):
    make_sweep(tmp_path, space, *([] if status is None else [record(0, status)]))

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            fits = Fits()
            served.site.answers = Answers(fits)
            page = await served.page(PAGE)
            assert "Too few results for a surrogate: 0; it takes 4." in page
            assert figures(page) == {}
            assert "Every trial as a line" not in page
            assert fits.asked == []

    run(test())


def test_trials_outside_of_the_constraints_are_no_result_to_draw(tmp_path, space):
    bounded = replace(space, outcome_constraints=("loss <= 0.001",))
    make_sweep(tmp_path, bounded, *(record(at) for at in range(3)))

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            assert figures(await served.page(PAGE)) == {}

    run(test())


def test_two_objectives_have_figures_and_a_table_each(tmp_path, space):
    objectives = (Objective(metric="loss"), Objective(metric="usd"))
    make_sweep(tmp_path, replace(space, objectives=objectives), *(record(at) for at in range(5)))

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            fits = Fits("loss", "usd")
            served.site.answers = Answers(fits)
            fits.go.set()
            await served.page(PAGE)
            page = await until(served, "What the surrogate says")
            assert {"sensitivity-0", "sensitivity-1"} < {*figures(page)}
            assert re.findall(r"<caption>Share of the variance of (\w+)", page) == ["loss", "usd"]

    run(test())


def test_a_process_that_fails_is_named_beside_the_lines(tmp_path, space):
    make_sweep(tmp_path, space, *(record(at) for at in range(5)))

    async def fail(view: View, question: Question) -> Answer:
        raise OSError(12, "Cannot allocate memory")

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            served.site.answers = Answers(fail)
            await served.page(PAGE)
            page = await until(served, "Cannot allocate memory")
            assert list(figures(page)) == ["parallel"]

    run(test())


def test_the_figures_have_a_script_that_the_policy_allows(tmp_path, space):
    make_sweep(tmp_path, space, record(0))

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            page = await served.page(PAGE)
            assert '<script src="/static/figures.js" defer></script>' in page
            first, second = await asyncio.gather(*(served.get("/static/figures.js") for _ in range(2)))
            assert first == second
            assert first[0] == 200
            assert "vegaEmbed" in first[1]
            assert "vg-tooltip-element" in (await served.get("/static/figures.css"))[1]

    run(test())


@pytest.mark.slow
@pytest.mark.timeout(600)  # a fit takes seconds, or minutes on a busy machine
def test_process_says_what_the_report_says(tmp_path, space):
    kind = Choice(name="kind", values=("a", "b"), when=(("a", ("depth",)),))
    depth = Range(name="depth", min=1, max=9, kind="int")
    trials = [
        record(
            at,
            loss=(at / 12 - 0.4) ** 2 + 0.1 * (at % 2),
            parameters={"x": at / 12, "n": 1 + at, "mode": "fast"}
            | ({"kind": "b"} if at % 2 else {"kind": "a", "depth": 1 + at % 9}),
        )
        for at in range(12)
    ]
    spacious = replace(space, parameters=(*space.parameters, kind, depth))
    view = SweepReader(make_sweep(tmp_path, spacious, *trials, record(12, "failed"))).refresh(listing=True)
    answer = asyncio.run(fit_elsewhere(view, "insight"))
    assert answer.insight == json.loads(json.dumps(insight(view.space, view.records)))
    assert answer.results == 12
    assert {*answer.insight["metrics"]["loss"]["sensitivity"]} == {"x", "n", "kind", "depth"}


def test_lines_are_of_trials_within_the_outcome_constraints(tmp_path, space):
    bounded = replace(space, outcome_constraints=("steps <= 10",))
    metrics = [{"loss": 1.0 + at, "steps": 11.0 if at == 0 else 9.0} for at in range(4)]
    make_sweep(tmp_path, bounded, *(record(at, metrics=found) for at, found in enumerate(metrics)))

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            page = await served.page(PAGE)
        assert "Each line is a trial within the outcome constraints, through" in page
        assert "trial 0" not in json.dumps(figures(page)["parallel"])
        rows = [row for data in figures(page)["parallel"]["datasets"].values() for row in data]
        assert {row["trial"] for row in rows if "trial" in row} == {1, 2, 3}

    run(test())
