"""What the surrogate says, on the page of a sweep: found in the background, once for the same results."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from published import put
from served_dashboard import dashboard, make_sweep, record, run

from sweeps.dashboard.answers import Answer, Answers, Question, fit_elsewhere
from sweeps.dashboard.reader import SweepReader, View
from sweeps.space.definition import Search, Stop

RESULTS = 31


@pytest.fixture
def many(tmp_path, space):
    """A sweep with enough results for an answer."""
    trials = [record(at, loss=(at / 100 - 0.12) ** 2 + 0.01 * (at % 3)) for at in range(RESULTS)]
    return make_sweep(tmp_path, replace(space, search=Search(sobol=4), run_cap=60), *trials)


class Fits:
    """Stands in for the process that fits; `go` lets it end."""

    def __init__(self) -> None:
        self.views: list[View] = []
        self.go = asyncio.Event()

    async def __call__(self, view: View, question: Question) -> Answer:
        assert question == "optimum"
        self.views.append(view)
        await self.go.wait()
        count = len(view.records)
        return Answer(results=count, trial=7, sentences=("trial 7: loss 0.1 by the model", "1 % <b>sure</b>"))


def test_no_page_waits_for_the_answer(many, tmp_path):
    async def test() -> None:
        fits = Fits()
        async with dashboard(tmp_path) as served:
            served.site.answers = Answers(fits, gap_s=0.1)
            page = await served.page("/sweep/toy")
            assert "Best so far" in page
            assert "What the surrogate says" not in page
            assert len(fits.views) == 1
            fits.go.set()
            page = await changed(served, "What the surrogate says, by 31 results")
            assert '<a href="/sweep/toy/trial/7">trial 7</a>: loss 0.1 by the model' in page
            assert "1 % &lt;b&gt;sure&lt;/b&gt;" in page
            for _ in range(3):
                await served.page("/sweep/toy?q=3")
            assert len(fits.views) == 1  # nothing is new
            put(many, record(RESULTS, loss=0.5))
            await changed(served, "by 32 results")
            assert len(fits.views) == 2

    run(test())


async def changed(served, text: str) -> str:
    for _ in range(200):
        if text in (page := await served.page("/sweep/toy")):
            return page
        await asyncio.sleep(0.1)
    raise AssertionError(page)


def test_no_process_is_no_error_of_the_page(many, tmp_path):
    async def fail(view: View, question: Question) -> Answer:
        raise OSError(12, "Cannot allocate memory")

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            served.site.answers = Answers(fail, gap_s=0.1)
            page = await changed(served, "the surrogate could not be fitted")
            assert "Cannot allocate memory" in page

    run(test())


def test_failed_process_is_started_again_without_a_new_result(many, tmp_path):
    fits: list[View] = []

    async def fail_once(view: View, question: Question) -> Answer:
        fits.append(view)
        if len(fits) == 1:
            raise OSError(12, "Cannot allocate memory")
        return Answer(results=RESULTS, trial=7, sentences=("trial 7: loss 0.1 by the model",))

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            served.site.answers = Answers(fail_once, gap_s=0.0, retry_s=0.2)
            await changed(served, "Cannot allocate memory")
            await changed(served, "trial 7</a>: loss 0.1 by the model")
            for _ in range(3):
                await asyncio.sleep(0.2)
                await served.page("/sweep/toy?q=3")
            assert len(fits) == 2  # what a fit has said is final

    run(test())


def test_few_results_are_not_fitted(tmp_path, space):
    make_sweep(tmp_path, space, *(record(at) for at in range(20)))

    async def test() -> None:
        fits = Fits()
        async with dashboard(tmp_path) as served:
            served.site.answers = Answers(fits)
            await served.page("/sweep/toy")
        assert fits.views == []

    run(test())


@pytest.mark.slow
@pytest.mark.timeout(600)  # a fit takes seconds, or minutes on a busy machine
def test_process_that_fits_says_what_sweep_best_says(many, sweep):
    view = SweepReader(many).refresh(listing=True)
    answer = asyncio.run(fit_elsewhere(view))
    document = json.loads(sweep("best", "--storage", many.url, "--format", "json").out)
    assert answer.results == RESULTS
    assert answer.trial == document["trial"] == document["model"]["trial"]
    assert list(answer.sentences) == document["model"]["sentences"]


def test_process_that_ends_badly_is_named(many, monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    answer = asyncio.run(fit_elsewhere(SweepReader(many).refresh(listing=True)))
    assert answer.trial is None
    assert "could not be fitted" in answer.sentences[0]


def test_page_says_where_the_stop_stands(tmp_path, space):
    stop = Search(sobol=4, stop=Stop(expected_gain=0.01))
    trials = [record(0, loss=3.5, generator="baseline"), record(1, loss=3.2)]
    store = make_sweep(tmp_path, replace(space, search=stop, baseline={"x": 0.5, "n": 1}), *trials)

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            page = await served.page("/sweep/toy")
            assert "Progress: open" in page
            assert "0.30 below the baseline (trial 0), one run of each" in page
            assert "once 12 more trials are expected to gain at most 0.01" in page
            data = {"schema": 1, "gain": 0.004, "trials": 12, "results": 30, "digest": "", "at": 1.0}
            store.create("stop.json", json.dumps(data).encode())
            assert "Progress: done" in await changed(served, "the search is done: 12 more trials")

    run(test())
