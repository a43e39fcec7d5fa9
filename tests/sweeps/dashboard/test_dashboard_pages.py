"""Pages of a real server over a folder and a bucket: what they show, and that the address holds their state."""

from __future__ import annotations

import asyncio
import html
import json
import re
import sys
import time
from dataclasses import replace

import pytest
from published import done, put, staged
from served_dashboard import dashboard, make_sweep, record, run, run_file

from analysis.summaries.costs import Rate
from runners.pools import launched
from runners.pools.pool import Pool
from sweeps.experiment import Experiment
from sweeps.operations.pools import Place, folder
from sweeps.space.definition import Budget, Choice, Objective, Range
from sweeps.storage.gcs.store import GcsStore
from sweeps.trials import control


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page)))


def rows_of(page: str) -> list[int]:
    return [int(index) for index in re.findall(r'aria-label="pick trial (\d+)"', page)]


def test_the_first_page_lists_the_sweeps_with_their_state(tmp_path, space):
    repeat = record(3, generator="confirm")  # which the run cap does not count
    make_sweep(tmp_path, space, record(0), record(1, "running"), record(2, "failed"), repeat)
    store = make_sweep(tmp_path, replace(space, name="other & more"))
    control.write(store, "paused", "ada")

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            said = text_of(await served.page("/"))
            assert "toy open 3 of 8 1 1 loss 1" in said
            assert "other & more paused" in said
            assert (await served.get("/sweep/other%20%26%20more"))[0] == 200
            assert (await served.get("/sweep/nothing"))[0] == 404

    run(test())


def test_command_of_a_worker_is_quoted_for_the_shell(tmp_path, space):
    make_sweep(tmp_path / "my sweeps", space)

    async def test() -> None:
        async with dashboard(tmp_path / "my sweeps") as served:
            said = text_of(await served.page("/sweep/toy"))
        assert f"sweep worker --storage '{tmp_path}/my sweeps/toy'" in said

    run(test())


def test_page_of_a_sweep(tmp_path, space):
    space = replace(space, budget=Budget(usd=10.0))
    running = record(3, "running", progress={"stage": "stage2", "step": 5, "of": 50, "done": 0.25})
    trials = [record(0, loss=3.0), record(1, loss=2.5, metrics={"loss": 2.5, "loss_sem": 0.01}), running]
    failed = [record(2, "failed"), record(4, "failed", error="it broke at 99\nagain")]
    make_sweep(tmp_path, space, *trials, *failed)

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            said = text_of(await served.page("/sweep/toy"))
        assert "5 of 8 trials" in said
        assert "Best so far: trial 1 2.5" in said
        assert "2.500 ± 0.010, one standard error, without other seeds" in said
        assert "95 %" not in said
        assert "unconfirmed" in said
        assert "give the lowest loss" in said
        assert "$0.50" in said
        assert "usd 0.75 of 10" in said  # the running one counts as the mean of the completed
        assert re.search(r"host-1 3 .* in the future stage2 step 5 of 50", said)
        assert "2 crashed it broke at 12" in said  # of two that differ in a number, the first

    run(test())


def test_question_and_settings_are_of_what_is_looked_for(tmp_path, space):
    """No seed, and of the best trial nothing that its option has switched off."""
    option = Choice(name="kind", values=("a", "b"), when=(("a", ("x",)),))
    seed = Range(name="seed", min=0, max=9, kind="int")
    searched = replace(space, parameters=(option, *space.parameters, seed))
    make_sweep(tmp_path, searched, record(0, parameters={"kind": "b", "n": 7, "mode": "fast", "seed": 3}))

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            page = await served.page("/sweep/toy")
        assert "Which kind, x and n give the lowest loss?" in text_of(page)
        settings = page.split('id="best"')[1].split("</dl>")[0]
        assert text_of(settings).endswith("unconfirmed: one run kind b n 7 ")

    run(test())


def test_cards_with_nothing_to_say_are_hidden(tmp_path, space):
    """On a laptop: neither a limit nor a price (the trainer reports 0 of a CPU), and nobody has switched."""
    make_sweep(tmp_path, space, record(0, loss=3.0, metrics={"loss": 3.0, "usd": 0.0}))

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            page = await served.page("/sweep/toy")
        assert 'id="cost" data-live hidden' in page
        assert 'id="control" data-live hidden' in page
        assert "$0.00" not in page

    run(test())


def test_the_front_and_its_points_follow_the_axes_in_the_address(tmp_path, space):
    two = replace(space, objectives=(Objective(metric="loss"), Objective(metric="steps")))
    metrics = [{"loss": 3.0, "steps": 10.0}, {"loss": 2.0, "steps": 20.0}, {"loss": 4.0, "steps": 30.0}]
    make_sweep(tmp_path, two, *(record(i, metrics=found) for i, found in enumerate(metrics)))

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            page = await served.page("/sweep/toy")
            assert "2 on the front" in text_of(page)
            assert re.search(r"Best so far: trial 1 2 loss steps: 20 ", text_of(page))
            points = json.loads(await served.page("/sweep/toy/points.json"))
            assert points == {
                "x": "steps", "y": "loss", "trials": [0, 1, 2],
                "xs": [10, 20, 30], "ys": [3, 2, 4], "front": [0, 1], "log": [False, False],
                "goals": ["minimize", "minimize"], "names": [[], []],
            }  # fmt: skip
            other = json.loads(await served.page("/sweep/toy/points.json?x=param.n&y=steps"))
            assert (other["x"], other["xs"], other["front"]) == ("param.n", [1, 2, 3], [])
            assert "(filled)" not in text_of(await served.page("/sweep/toy?x=param.n&y=steps"))
            assert json.loads(await served.page("/sweep/toy/points.json?x=nonsense"))["x"] == "steps"

    run(test())


def test_text_choices_are_axes(tmp_path, space):
    kind, tied = (
        Choice(name="kind", values=("muon", "adamw", "<lion>")),
        Choice(name="tied", values=(False, True)),
    )
    chosen = [("adamw", True), ("muon", True), ("muon", False), ("<lion>", True), ("adamw", False)]
    trials = [record(at, parameters={"kind": k, "tied": v, "x": 0.1}) for at, (k, v) in enumerate(chosen)]
    without = record(5, parameters={"x": 0.2, "tied": True})  # another option has switched it off
    failed = record(6, "failed", parameters={"kind": "muon", "tied": True, "x": 0.1})
    make_sweep(tmp_path, replace(space, parameters=(*space.parameters, kind, tied)), *trials, without, failed)

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            page = await served.page("/sweep/toy?x=param.kind&y=loss")
            assert re.findall(r'<option value="param\.(\w+)"', page)[:3] == ["x", "kind", "tied"]
            assert re.findall(r'text-anchor="middle">([a-z&;]+)<', page)[:3] == [
                "muon",
                "adamw",
                "&lt;lion&gt;",
            ]
            assert page.count('<circle class="point"') == 5
            found = json.loads(await served.page("/sweep/toy/points.json?x=param.kind&y=loss"))
            assert found["names"] == [["muon", "adamw", "<lion>"], []]
            assert [round(x) for x in found["xs"]] == [1, 0, 0, 2, 1]
            assert len(set(found["xs"])) == 5  # none hides another
            assert (found["trials"], found["front"]) == ([0, 1, 2, 3, 4], [])
            both = json.loads(await served.page("/sweep/toy/points.json?x=param.tied&y=param.kind"))
            assert [(round(x), round(y)) for x, y in zip(both["xs"], both["ys"], strict=True)] == [
                (1, 1), (1, 0), (0, 0), (1, 2), (0, 1),
            ]  # fmt: skip

    run(test())


def test_many_and_long_texts_leave_the_picture_readable(tmp_path, space):
    kind = Choice(name="kind", values=tuple(f"schedule-number-{at}" for at in range(40)))
    trials = [record(at, parameters={"kind": f"schedule-number-{at}", "x": at / 40}) for at in range(40)]
    make_sweep(tmp_path, replace(space, parameters=(*space.parameters, kind)), *trials)

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            page = await served.page("/sweep/toy?x=param.x&y=param.kind")
            names = re.findall(r'text-anchor="end">(sch[^<]*)<', page)
            assert 5 <= len(names) <= 12
            assert set(names) == {"schedu…"}  # as wide as there is room

    run(test())


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("?status=failed", [2]),
        ("?sort=loss", [4, 3, 1, 0, 2]),
        ("?sort=loss&order=desc", [0, 1, 3, 4, 2]),
        ("?q=broke", [2]),
        ("?q=BROKE+sobol", [2]),
        ("?q=loss<0.3", [3, 4]),
        ("?q=x>=0.03+mode=fast", [3, 4]),
        ("?q=n=2", [1]),
        ("?q=%23 4", [4]),
        ("?by=botorch", []),
        ("?sort=nonsense&status=nonsense&page=-3", [0, 1, 2, 3, 4]),
        ("?page=99999999999999999999", [0, 1, 2, 3, 4]),
        (f"?page={'1' * 5000}", [0, 1, 2, 3, 4]),
        (f"?q=n<{'9' * 150}", [0, 1, 2, 3, 4]),
        ("?sort=param.x&order=desc", [4, 3, 2, 1, 0]),
    ],
)
def test_trials_are_sorted_filtered_and_searched_by_the_address(tmp_path, space, address, expected):
    make_sweep(tmp_path, space, *(record(i, "failed" if i == 2 else "completed") for i in range(5)))

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            page = await served.page(f"/sweep/toy{address.replace(' ', '%20')}")
            found = rows_of(page) if "23" not in address else rows_of(page)[-1:]
            assert found == expected

    run(test())


def test_long_tables_have_pages(tmp_path, space):
    make_sweep(tmp_path, space, *(record(i) for i in range(230)))

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            assert rows_of(await served.page("/sweep/toy")) == list(range(100))
            last = await served.page("/sweep/toy?page=3&order=desc&sort=trial")
            assert rows_of(last) == list(range(29, -1, -1))
            heads = re.findall(r'href="([^"]*)#trials"', await served.page("/sweep/toy?x=param.x&page=2"))
            assert "?sort=loss&amp;x=param.x" in heads

    run(test())


LINES = [
    {"stage": "stage1_9", "step": 1, "of": 2, "loss": 4.0, "lr": 0.1, "tokens_per_second": 100,
     "data_seconds": 0.5, "compute_seconds": 0.5},
    {"stage": "stage1_9", "step": 2, "of": 2, "loss": 3.0, "lr": 0.1, "tokens_per_second": 100,
     "data_seconds": 0.5, "compute_seconds": 0.5, "warnings": [{"check": "memory", "message": "it grows"}]},
    {"stage": "stage2", "step": 1, "of": 5, "loss": 2.0, "grad_norm": 1.5},
    {"stage": "stage2", "step": 1, "of": 5, "held_out_loss": 2.25},
]  # fmt: skip


def test_page_of_a_trial(tmp_path, space):
    store = make_sweep(tmp_path, space, record(0), record(1, "failed"))
    run_file(store, 1, "metrics.jsonl", LINES)
    run_file(store, 1, "log.txt", "one\ntwo\nTOKEN_SECRET=hunter2hunter2\n")

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            page = await served.page("/sweep/toy/trial/1")
            said = text_of(page)
            assert "Why it failed: crashed it broke at 12 and again" in said
            assert "stage1_9 step 2: it grows" in said
            assert 'aria-label="loss: loss ends at 2, held_out_loss ends at 2.25"' in page
            assert "gradient norms" in said
            assert "stage1_9 from step 0, stage2 from step 2" in said
            assert "one two TOKEN_SECRET=***" in said
            assert "from objectives_for_tests import paraboloid" in said
            assert "1 host-1" in said
            assert (await served.get("/sweep/toy/trial/7"))[0] == 404
            assert (await served.get("/sweep/toy/trial/7/file?attempt=1&name=output.log"))[0] == 404
            seconds = await served.page("/sweep/toy/trial/1?axis=seconds")
            assert ">training seconds</text>" in seconds
            assert ">stage2</text>" in seconds
            assert "price of a second" in text_of(await served.page("/sweep/toy/trial/1?axis=dollars"))

    run(test())


def test_curves_over_dollars_count_all_hosts(tmp_path, space):
    """Each block of a line is of a second, and a second costs a dollar on each host."""
    store = make_sweep(tmp_path, space, record(0), record(1, nodes=2))
    lines = [{**LINES[0], "step": step, "of": 9} for step in range(1, 10)]
    for trial in (0, 1):
        run_file(store, trial, "metrics.jsonl", lines)

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            served.site.rate = Rate(name="machine", usd_per_hour=3600.0, kind="spot", dated="2026-01")
            pages = [await served.page(f"/sweep/toy/trial/{trial}?axis=dollars") for trial in (0, 1)]
        charts = [page.partition("<svg")[2].partition("</svg>")[0] for page in pages]
        dollars = [re.findall(r">(5|10|15)</text>", each) for each in charts]
        assert dollars == [["5"], ["5", "10", "15"]]

    run(test())


def test_curves_grow_while_the_trial_runs(tmp_path, space):
    store = make_sweep(tmp_path, space, record(0, "running"))
    path = run_file(store, 0, "metrics.jsonl", LINES[:1])

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            assert "loss ends at 4" in await served.page("/sweep/toy/trial/0")
            with path.open("a") as file:
                file.write(json.dumps(LINES[1]) + "\n" + '{"step": 3, "loss"')  # half a line
            deadline = time.monotonic() + 5
            while "loss ends at 3" not in await served.page("/sweep/toy/trial/0"):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.2)

    run(test())


def test_trials_are_compared_by_their_curves_and_what_differs(tmp_path, space):
    store = make_sweep(tmp_path, space, record(0), record(1), record(2))
    for index in (0, 2):
        run_file(store, index, "metrics.jsonl", [line | {"loss": 5.0 + index} for line in LINES])

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            page = await served.page("/sweep/toy/compare?t=0&t=2&axis=tokens")
            said = text_of(page)
            assert "trial 0 ends at 5, trial 2 ends at 7" in page
            assert ">tokens</text>" in page
            assert "2 parameters differ; 1 parameter is equal" in said
            assert "x 0.0 0.02" in said
            assert "trial 0 ends at 5" in await served.page("/sweep/toy/compare?t=0,1")
            for refused in ("?t=9", "?t=-1", "?t=x", "?t=" + ",".join(["1"] * 3) + ",99"):
                assert (await served.get(f"/sweep/toy/compare{refused}"))[0] == 400

    run(test())


def test_long_integers_that_differ_are_compared_in_full(tmp_path, space):
    seed = Range(name="seed", min=0, max=10**9, kind="int")
    both = [record(index, parameters={"x": 0.5, "n": 1, "seed": 20261129 + index}) for index in range(2)]
    make_sweep(tmp_path, replace(space, parameters=(*space.parameters, seed)), *both)

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            said = text_of(await served.page("/sweep/toy/compare?t=0&t=1"))
            assert "1 parameter differs" in said
            assert "seed 20261129 20261130" in said

    run(test())


def test_the_tree_of_prefixes_and_the_search_over_paid_compute(tmp_path, space):
    space = staged(space)
    make_sweep(tmp_path, space, done(0, 0.5, 2.0), done(1, 0.5, 1.5, of=0), done(2, 0.25, 1.75))

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            for path in ("/sweep/toy", "/sweep/toy/prefixes"):
                said = text_of(await served.page(path))
                assert "700 of 900 paid; 22 % saved by 1 reused stage" in said
                assert "trial 0 first 2 200 200 1.5" in said
            assert "effective steps paid" in await served.page("/sweep/toy")

    run(test())


def test_a_damaged_record_is_named_and_the_others_are_shown(tmp_path, space, monkeypatch):
    monkeypatch.setattr("sweeps.dashboard.poller.LISTING_S", 1.0)
    store = make_sweep(tmp_path, space, record(0), record(1), record(2))
    (tmp_path / "toy" / "trials" / "000001.json").write_text("{}")

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            page = await served.page("/sweep/toy")
            assert rows_of(page) == [0, 2]
            assert "000001.json" in page
            assert "sweep doctor" in page
            put(store, replace(record(3), trial=3))
            (tmp_path / "toy" / "trials" / "000001.json").unlink()
            put(store, record(1))
            deadline = time.monotonic() + 12
            while rows_of(await served.page("/sweep/toy")) != [0, 1, 2, 3]:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.3)

    run(test())


def test_pages_show_the_largest_number_there_is(tmp_path, space):
    """numpy.nan_to_num makes it of an infinity."""
    most = sys.float_info.max
    store = make_sweep(tmp_path, space, record(0, loss=most), record(1, loss=2.0))
    run_file(store, 1, "metrics.jsonl", [LINES[0], LINES[0] | {"loss": most}])

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            assert rows_of(await served.page("/sweep/toy")) == [0, 1]
            assert "loss ends at 1.798e+308" in await served.page("/sweep/toy/trial/1")
            assert "1.798e+308" in await served.page("/sweep/toy/trial/0")

    run(test())


def test_a_sweep_in_a_bucket_with_its_curves(gcs, space):
    def open_at(url: str) -> GcsStore:
        return GcsStore(url, endpoint=gcs.url)

    store = open_at("gs://bucket/dashboard/toy")
    Experiment.create(store, space)
    put(store, record(0, "running"))
    lines = "".join(json.dumps(line) + "\n" for line in LINES)
    store.create("runs/000000/attempt-1/metrics.jsonl", lines.encode())
    store.create("runs/000000/attempt-1/log.txt", b"in the bucket\n")

    async def test() -> None:
        async with dashboard("gs://bucket/dashboard/toy", only=True, open_at=open_at) as served:
            assert (await served.get("/"))[0] == 302
            assert rows_of(await served.page("/sweep/toy")) == [0]
            page = await served.page("/sweep/toy/trial/0")
            assert "held_out_loss ends at 2.25" in page
            assert "in the bucket" in page

    run(test())


def test_of_a_large_file_in_a_bucket_only_its_end_is_read(gcs, space):
    def open_at(url: str) -> GcsStore:
        return GcsStore(url, endpoint=gcs.url)

    store = open_at("gs://bucket/large/toy")
    Experiment.create(store, space)
    put(store, record(0, "running"))
    for name in ("log.txt", "model.safetensors"):
        store.create(f"runs/000000/attempt-1/{name}", b"a line of a log\n" * 2**20 + b"the end\n")

    async def test() -> None:
        async with dashboard("gs://bucket/large/toy", only=True, open_at=open_at) as served:
            gcs.journal.clear()
            assert "the end" in await served.page("/sweep/toy/trial/0")
            status, text = await served.get("/sweep/toy/trial/0/file?attempt=1&name=model.safetensors")
            assert (status, text[-8:]) == (200, "the end\n")
            assert sum(entry.sent for entry in gcs.journal.entries()) < 2**20

    run(test())


def test_pools_that_were_launched_from_here_are_shown(tmp_path, space):
    store = make_sweep(tmp_path, space)
    place = folder(Place(store.url, "toy"), "local")
    place.mkdir(parents=True)
    pool = Pool(name="toy", storage=store.url, folder=place, workers=3, command=("true",))
    launched.write(launched.Launched(runner="local", pool=pool))
    ray = folder(Place(store.url, "toy"), "ray")
    ray.mkdir(parents=True)
    (ray / launched.FILE).write_text("<b>no record</b>")

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            begun = time.monotonic()
            while "Pool of local: 3 workers asked for" not in (page := await served.page("/sweep/toy?")):
                assert time.monotonic() - begun < 20, page
                put(store, record(len(page) % 97))  # another state: pages are rendered once for each
                await asyncio.sleep(0.5)
            assert "Pool of ray" in page
            assert "remove it" in page
            assert "<b>" not in page.partition("Pool of ray")[2].partition("</section>")[0]

    run(test())
