"""What a server with --control does: as the command line does it, after a question, noted with who and when."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest
from served_dashboard import dashboard, make_sweep, record, run

from runners.pools import launched
from runners.pools.pool import Pool
from sweeps.dashboard.actions import SWITCHES
from sweeps.experiment import Experiment
from sweeps.operations.pools import folder, place_of
from sweeps.search.confirm.plan import stored_plan
from sweeps.space.definition import Fixed
from sweeps.storage.local import LocalStore
from sweeps.trials import control


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page)))


@pytest.mark.parametrize("action", SWITCHES)
def test_a_sweep_is_paused_resumed_and_stopped_by_somebody(tmp_path, space, action):
    store = make_sweep(tmp_path, space)

    async def test() -> None:
        async with dashboard(tmp_path, control=True) as served:
            path = f"/sweep/toy/do/{action}"
            status, page = await served.get(path)
            assert status == 200
            assert f"{action.capitalize()}?" in page
            assert control.switch(store).version is None  # asking changes nothing
            assert (await served.do(path, who="Ada\x1b[1m Lovelace"))[0] == 303
            said = text_of(await served.page("/sweep/toy"))
            assert f"done {action} by Ada" in said

    run(test())
    switch = control.switch(store)
    assert switch.state == SWITCHES[action][0]
    assert re.fullmatch(r"Ada.* Lovelace \(\S+@\S+\) by the dashboard from 127.0.0.1", switch.by)
    assert "\x1b" not in switch.by


def test_trials_are_retried_and_abandoned_with_a_reason(tmp_path, space):
    store = make_sweep(
        tmp_path,
        space,
        record(0),
        record(1, "failed"),
        record(2, "running"),
        record(3, "failed"),
        record(4, "pending"),
    )

    async def test() -> None:
        async with dashboard(tmp_path, control=True) as served:
            page = await served.page("/sweep/toy")
            assert "retry 2 failed" in page
            assert (await served.do("/sweep/toy/do/retry?failed=1"))[0] == 303
            assert (await served.do("/sweep/toy/do/abandon?t=2&t=4", reason="too <slow>"))[0] == 303
            page = await served.page("/sweep/toy")
            assert "retry trials 1, 3 by" in page
            assert "abandon trials 2, 4: too <slow> by" in text_of(page)
            trial = text_of(await served.page("/sweep/toy/trial/2"))
            assert re.search(r"abandoned by \S+@\S+ by the dashboard from 127.0.0.1: too <slow>", trial)

    run(test())
    found = {one.trial: one.status for one in Experiment.open(store).trials()}
    assert found == {0: "completed", 1: "pending", 2: "abandoned", 3: "pending", 4: "abandoned"}


@pytest.mark.parametrize(
    ("address", "status", "why"),
    [
        ("retry?t=0", 400, "trial 0 is completed"),
        ("abandon?t=0", 400, "trial 0 is completed"),
        ("retry?t=77", 400, "there is no trial 77"),
        ("retry", 400, "pick at least one trial"),
        ("retry?t=1;rm", 400, "there is no trial"),
        ("explode", 404, "no such action"),
        ("scale?runner=local&workers=0", 400, "whole number"),
        ("scale?runner=local&workers=1e9", 400, "whole number"),
        ("scale?runner=local&workers=000001" + "1" * 5000, 400, "whole number"),
        ("scale?runner=--yes&workers=2", 400, "no runner"),
    ],
)
def test_what_cannot_be_done_is_refused_when_it_is_asked(tmp_path, space, address, status, why):
    make_sweep(tmp_path, space, record(0), record(1, "failed"))

    async def test() -> None:
        async with dashboard(tmp_path, control=True) as served:
            found, page = await served.get(f"/sweep/toy/do/{address}")
            assert found == status
            assert why in text_of(page)

    run(test())


def test_trial_changed_since_asking_is_left_alone(tmp_path, space):
    store = make_sweep(tmp_path, space, record(0), record(1, "failed"))

    async def test() -> None:
        async with dashboard(tmp_path, control=True) as served:
            path = "/sweep/toy/do/retry"
            form = {"csrf": served.site.guard.csrf(path), "t": "1"}
            assert (await served.post(path, form))[0] == 303
            status, page = await served.post(path, form)  # sent twice
            assert status == 400
            assert "trial 1 is pending" in page

    run(test())
    assert Experiment.open(store).trial(1).status == "pending"


@pytest.mark.timeout(240)
def test_a_confirmation_is_planned_by_the_command(tmp_path, command_space):
    seeded = replace(command_space, parameters=(*command_space.parameters, Fixed(name="seed", value=0)))
    trials = [record(i, parameters={"x": i / 10, "n": 1, "mode": "fast", "seed": 0}) for i in range(3)]
    store = make_sweep(tmp_path, seeded, *trials)

    async def test() -> None:
        async with dashboard(tmp_path, control=True) as served:
            assert (await served.do("/sweep/toy/do/confirm", who="Ada"))[0] == 303
            said = text_of(await served.page("/sweep/toy"))
            assert re.search(r"done confirm trials 2, 1, 0 by \S+: at most 15 runs by Ada \(", said)
            assert re.search(r"Confirmation: round \d of 5: 3 of 3 trials can still win", said)

    run(test())
    found = stored_plan(LocalStore(store.url))
    assert found is not None
    assert [finalist.trial for finalist in found[0].finalists] == [2, 1, 0]


@pytest.mark.timeout(240)
def test_unplannable_confirmation_shows_the_error(tmp_path, space):
    store = make_sweep(tmp_path, space, record(0), record(1), record(2))

    async def test() -> None:
        async with dashboard(tmp_path, control=True) as served:
            status, page = await served.do("/sweep/toy/do/confirm")
            assert status == 400
            assert "no parameter `seed`" in text_of(page)

    run(test())
    assert stored_plan(LocalStore(store.url)) is None


def test_a_pool_that_does_not_run_cannot_be_scaled(tmp_path, space):
    make_sweep(tmp_path, space)

    async def test() -> None:
        async with dashboard(tmp_path, control=True) as served:
            status, page = await served.do("/sweep/toy/do/scale?runner=local&workers=3")
            assert status == 400
            assert "no pool" in text_of(page)

    run(test())


def test_before_a_pool_is_scaled_its_price_is_shown(tmp_path, space):
    store = make_sweep(tmp_path, space)
    files = folder(place_of(Experiment.open(store)), "slurm")
    pool = Pool(name="toy", storage=store.url, folder=files, workers=1, command=("true",))
    priced = replace(pool, dollars_per_hour=2.5, priced_as="a machine at $2.50")
    files.mkdir(parents=True)

    async def page_before(of: Pool) -> str:
        launched.write(launched.Launched(runner="slurm", pool=of))
        async with dashboard(tmp_path, control=True) as served:
            status, page = await served.get("/sweep/toy/do/scale?runner=slurm&workers=3")
            assert status == 200
            return text_of(page)

    async def test() -> None:
        assert "3 workers: $7.50 an hour" in await page_before(priced)
        assert "would have 3 workers" in await page_before(pool)

    run(test())
