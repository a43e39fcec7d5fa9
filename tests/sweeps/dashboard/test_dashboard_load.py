"""Many clients, slow clients, live updates, and stores that fail for a while."""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import replace

import pytest
from fake_gcs import Fault
from memory_store import MemoryStore
from published import put
from served_dashboard import CountingStore, Dashboard, dashboard, make_sweep, record, run

from sweeps.dashboard.catalog import Catalog
from sweeps.dashboard.poller import LISTING_S, Poller
from sweeps.dashboard.reader import SweepReader
from sweeps.dashboard.readonly import ReadOnlyStore
from sweeps.dashboard.server import Watch
from sweeps.errors import StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.operations.opening import LATEST_KEY
from sweeps.storage.base import Store
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.local import LocalStore
from sweeps.storage.retries import RetryPolicy
from sweeps.trials import control
from sweeps.upkeep.diagnostics import plan
from sweeps.upkeep.inventory import survey
from sweeps.upkeep.repair import carry_out_all


@pytest.fixture
def lists_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing a second, where a test has to wait for one."""
    monkeypatch.setattr("sweeps.dashboard.poller.LISTING_S", 1.0)


async def next_mark(served: Dashboard, path: str, marks: list[tuple[float, str]], count: int) -> None:
    """Listen until so many events have come; note when each came."""
    async with served.session.get(f"{served.url}{path}/events") as answer:
        assert answer.content_type == "text/event-stream"
        while len(marks) < count:
            line = (await answer.content.readline()).decode()
            if line.startswith("data: "):
                marks.append((time.monotonic(), line[6:].strip()))


def test_change_reaches_a_page_within_two_seconds(tmp_path, space):
    store = make_sweep(tmp_path, space, record(0), record(1, "running"))

    async def test() -> None:
        async with dashboard(tmp_path, tick_s=1.0) as served:  # as the command has it
            await served.page("/sweep/toy")
            await asyncio.sleep(1.2)
            for change in (record(1), record(2, "running"), record(2), record(3)):
                marks: list[tuple[float, str]] = []
                listener = asyncio.create_task(next_mark(served, "/sweep/toy", marks, 2))
                while not marks:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.7)
                wrote = time.monotonic()
                put(store, change)
                await listener
                assert marks[1][0] - wrote < 2.0
                assert marks[1][1] != marks[0][1]
                assert f"trial {change.trial}" in await served.page(f"/sweep/toy/trial/{change.trial}")
            before = time.monotonic()
            control.write(store, "paused", "ada@desk")
            while "paused by ada@desk" not in await served.page("/sweep/toy"):
                assert time.monotonic() - before < 3.0
                await asyncio.sleep(0.1)

    run(test())


def test_a_change_in_a_bucket_is_shown_within_ten_seconds(gcs, space):
    def open_at(url: str) -> Store:
        return ReadOnlyStore(GcsStore(url, endpoint=gcs.url))

    store = GcsStore("gs://bucket/live/toy", endpoint=gcs.url)
    Experiment.create(store, space)
    put(store, record(0))

    async def test() -> None:
        async with dashboard("gs://bucket/live/toy", only=True, open_at=open_at) as served:
            await served.page("/sweep/toy")
            marks: list[tuple[float, str]] = []
            listener = asyncio.create_task(next_mark(served, "/sweep/toy", marks, 2))
            await asyncio.sleep(0.5)
            wrote = time.monotonic()
            put(store, record(1))
            await listener
            assert marks[1][0] - wrote < 10.0

    run(test())


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_two_hundred_clients_cost_one_listing_in_five_seconds(tmp_path, space):
    make_sweep(tmp_path, space, *(record(i) for i in range(50)), record(50, "running"))
    stores: list[CountingStore] = []

    def open_at(url: str) -> Store:
        stores.append(CountingStore(LocalStore(url)))
        return ReadOnlyStore(stores[-1])

    async def client(served: Dashboard, until: float, pages: list[int]) -> None:
        listening = asyncio.create_task(next_mark(served, "/sweep/toy", [], 10_000))
        while time.monotonic() < until:
            status, _ = await served.get("/sweep/toy")
            assert status == 200
            pages.append(status)
            await asyncio.sleep(1.0)
        listening.cancel()

    async def test() -> None:
        async with dashboard(tmp_path, open_at=open_at, tick_s=1.0) as served:
            served.session.connector._limit = 0  # type: ignore[union-attr]
            await served.page("/sweep/toy")
            pages: list[int] = []
            until = time.monotonic() + 12
            await asyncio.gather(*(client(served, until, pages) for _ in range(200)))
            assert len(pages) > 400
            assert served.site.catalog.listeners <= 200
        (store,) = stores
        gaps = [after - before for before, after in zip(store.listings, store.listings[1:], strict=False)]
        assert len(store.listings) <= 4
        assert all(gap >= LISTING_S - 0.1 for gap in gaps)

    asyncio.run(asyncio.wait_for(test(), 120))


def test_too_many_listeners_are_asked_to_come_back(tmp_path, space):
    make_sweep(tmp_path, space)

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            poller = await served.site.catalog.poller("toy")
            assert poller is not None
            events = [poller.listen() for _ in range(300)]
            assert (await served.get("/sweep/toy/events"))[0] == 503
            poller.forget(events[0])
            async with served.session.get(f"{served.url}/sweep/toy/events") as answer:
                assert answer.status == 200
            assert (await served.get("/sweep/toy"))[0] == 200  # pages go on

    run(test())


def test_polling_ends_with_the_last_client(tmp_path, space, monkeypatch, lists_often):
    monkeypatch.setattr("sweeps.dashboard.poller._IDLE_S", 0.5)
    make_sweep(tmp_path, space)
    stores: list[CountingStore] = []

    def open_at(url: str) -> Store:
        stores.append(CountingStore(LocalStore(url)))
        return ReadOnlyStore(stores[-1])

    async def test() -> None:
        async with dashboard(tmp_path, open_at=open_at) as served:
            async with served.session.get(f"{served.url}/sweep/toy/events") as answer:
                await answer.content.readline()
                assert served.site.catalog.listeners == 1
            for _ in range(100):
                if not served.site.catalog.listeners:
                    break
                await asyncio.sleep(0.1)
            assert served.site.catalog.listeners == 0
            await asyncio.sleep(1.5)
            count = len(stores[0].listings)
            await asyncio.sleep(2.0)
            assert len(stores[0].listings) == count

    run(test())


def test_stalled_client_is_cut(tmp_path, space):
    make_sweep(
        tmp_path, space, *(record(i, parameters={"x": 0.5, "n": 1, "mode": "m" * 200}) for i in range(200))
    )

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            await served.page("/sweep/toy")
            runner = served.site.server
            watch = Watch(runner, stalled_s=0.5)
            request = b"GET /sweep/toy HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200
            slow = [await asyncio.open_connection("127.0.0.1", served.port, limit=2**10) for _ in range(5)]
            for _, writer in slow:
                writer.write(request)
            begun = time.monotonic()
            cut = 0
            while cut < 5:
                assert time.monotonic() - begun < 30
                took = time.monotonic()
                assert (await served.get("/static/dashboard.css"))[0] == 200
                assert time.monotonic() - took < 5
                await asyncio.sleep(0.3)
                cut += watch.cut()
            assert (await served.get("/sweep/toy"))[0] == 200
            for _, writer in slow:
                writer.close()

    run(test())


def test_a_client_that_sends_half_a_request_is_closed(tmp_path, space, monkeypatch):
    monkeypatch.setattr("sweeps.dashboard.server._KEEPALIVE_S", 1.0)
    make_sweep(tmp_path, space)

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(b"GET / HTTP/1.1\r\nHost: loc")
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()

    run(test())


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_a_store_that_fails_for_a_while_is_shown_as_it_was_last(tmp_path, space, kind, lists_often):
    inner: Store = MemoryStore("toy") if kind == "memory" else LocalStore(tmp_path / "toy")
    Experiment.create(inner, space)
    put(inner, record(0))
    store = CountingStore(inner)

    async def test() -> None:
        async with dashboard(tmp_path / "toy", only=True, open_at=lambda url: ReadOnlyStore(store)) as served:
            assert "Not read since" not in await served.page("/sweep/toy")
            marks: list[tuple[float, str]] = []
            listener = asyncio.create_task(next_mark(served, "/sweep/toy", marks, 4))
            await asyncio.sleep(0.5)
            store.fault = StoreUnavailable("the disk <b>is</b> away")
            await until(served, "Not read since", "the disk &lt;b&gt;is&lt;/b&gt; away", "pick trial 0")
            assert "trial 0" in await served.page("/sweep/toy/trial/0")
            store.fault = None
            put(inner, record(1))
            page = await until(served, "pick trial 1")
            assert "Not read since" not in page
            put(inner, record(2))
            await asyncio.wait_for(listener, 10)  # the page was told: away, back, and more

    run(test())


async def until(served: Dashboard, *texts: str) -> str:
    begun = time.monotonic()
    while True:
        page = await served.page("/sweep/toy")
        if all(text in page for text in texts):
            return page
        assert time.monotonic() - begun < 20, page
        await asyncio.sleep(0.2)


def test_a_folder_that_is_not_mounted_for_a_while_loses_nothing(tmp_path, space, lists_often):
    make_sweep(tmp_path, space, record(0), record(1, "running"))

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            await served.page("/sweep/toy")
            (tmp_path / "toy").rename(tmp_path / ".away")
            page = await until(served, "Not read since", "pick trial 1")
            (tmp_path / ".away").rename(tmp_path / "toy")
            await until(served, "pick trial 1")
            while "Not read since" in page:
                await asyncio.sleep(0.2)
                page = await served.page("/sweep/toy")

    run(test())


@pytest.mark.parametrize("trials", [1, 3])
def test_another_sweep_of_the_same_name_is_shown_as_it_is(tmp_path, space, lists_often, trials):
    make_sweep(tmp_path, space, record(0), record(1))

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            await until(served, "Which x and n give the lowest loss?")
            shutil.rmtree(tmp_path / "toy")
            other = replace(space, objectives=(replace(space.objectives[0], goal="maximize"),))
            make_sweep(tmp_path, other, *map(record, range(trials)))
            page = await until(served, "Which x and n give the highest loss?", f"pick trial {trials - 1}")
            assert "Not read since" not in page
            assert f"pick trial {trials}" not in page

    run(test())


@pytest.mark.parametrize("gone", ["toy/trials", "toy"])
def test_error_of_a_listing_stands_until_one_succeeds(tmp_path, space, lists_often, gone):
    make_sweep(tmp_path, space, record(0), record(1))

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            await served.page("/sweep/toy")
            (tmp_path / gone).rename(tmp_path / ".away")
            await until(served, "Not read since")
            for _ in range(40):
                assert "Not read since" in await served.page("/sweep/toy")
                assert "Not read since" in await served.page("/")
                await asyncio.sleep(0.05)
            (tmp_path / ".away").rename(tmp_path / gone)
            begun = time.monotonic()
            while "Not read since" in await served.page("/sweep/toy"):
                assert time.monotonic() - begun < 10
                await asyncio.sleep(0.2)

    run(test())


def test_record_that_was_quarantined_while_nobody_looked_is_left_out(tmp_path, space):
    """Not one that is lost: that is said, and the sweep stays as it was read."""
    store = make_sweep(tmp_path, space, *map(record, range(3)))
    reader = SweepReader(store)
    assert len(reader.refresh(listing=True).records) == 3
    torn = tmp_path / "toy/trials/000001.json"
    torn.write_text(torn.read_text()[:40])
    sweep = Experiment.open(store)
    assert [outcome.state for outcome in carry_out_all(sweep, plan(sweep, survey(store)))] == ["done"]
    view = reader.refresh(listing=True)
    assert [each.trial for each in view.records] == [0, 2]
    assert reader.refresh(listing=True) is view
    (tmp_path / "toy/trials/000002.json").unlink()
    with pytest.raises(StoreUnavailable, match="are not here now"):
        reader.refresh(listing=True)


@pytest.mark.parametrize("mount_point", [False, True])
def test_storage_that_is_away_is_named(tmp_path, space, lists_often, monkeypatch, mount_point):
    monkeypatch.setattr("sweeps.dashboard.catalog.LISTING_S", 0.5)
    make_sweep(tmp_path / "store", space, record(0))

    async def test() -> None:
        async with dashboard(tmp_path / "store") as served:
            assert "/sweep/toy" in await served.page("/")
            (tmp_path / "store").rename(tmp_path / "away")
            if mount_point:
                (tmp_path / "store").mkdir()
            begun = time.monotonic()
            while "are not here now" not in await served.page("/"):
                assert time.monotonic() - begun < 10
                await asyncio.sleep(0.1)
            for _ in range(20):
                page = await served.page("/")
                assert "not here now" in page
                assert "/sweep/toy" in page
                await asyncio.sleep(0.05)
            if mount_point:
                (tmp_path / "store").rmdir()
            (tmp_path / "away").rename(tmp_path / "store")
            while "are not here now" in await served.page("/"):
                assert time.monotonic() - begun < 20
                await asyncio.sleep(0.1)

    run(test())


def test_a_sweep_that_was_never_there_or_cannot_be_read_says_so(tmp_path, space):
    make_sweep(tmp_path, space)
    (tmp_path / "toy/sweep.json").write_text("{}")

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            status, page = await served.get("/sweep/toy")
            assert status == 503
            assert "sweep.json" in page
            assert "sweep.json" in (await served.get("/"))[1]

    run(test())


def test_a_bucket_that_does_not_answer_and_comes_back(gcs, space, lists_often):
    retries = RetryPolicy(
        total_s=1.0, first_answer_s=1.0, attempt_s=0.5, first_wait_s=0.05, longest_wait_s=0.1
    )

    def open_at(url: str) -> Store:
        return ReadOnlyStore(GcsStore(url, endpoint=gcs.url, retries=retries))

    store = GcsStore("gs://bucket/away/toy", endpoint=gcs.url)
    Experiment.create(store, space)
    put(store, record(0))

    async def test() -> None:
        async with dashboard("gs://bucket/away/toy", only=True, open_at=open_at) as served:
            await served.page("/sweep/toy")
            fault = gcs.faults.add(Fault(action="status", times=None))
            await until(served, "Not read since", "pick trial 0")
            gcs.faults.remove(fault)
            page = await until(served, "pick trial 0")
            begun = time.monotonic()
            while "Not read since" in page:
                assert time.monotonic() - begun < 20
                await asyncio.sleep(0.3)
                page = await served.page("/sweep/toy")

    run(test())


def test_records_that_have_ended_are_read_once(tmp_path, space, lists_often):
    make_sweep(tmp_path, space, *(record(i) for i in range(20)), record(20, "running"))
    keys: list[str] = []

    class Noting(LocalStore):
        def read(self, key):
            keys.append(key)
            return super().read(key)

    async def test() -> None:
        poller = Poller("toy", ReadOnlyStore(Noting(tmp_path / "toy")), tick_s=0.1)
        for _ in range(8):
            await poller.current()
            await asyncio.sleep(0.4)
        await poller.close()

    run(test())
    assert all(keys.count(f"trials/{index:06d}.json") == 1 for index in range(20))
    assert keys.count("trials/000020.json") > 5


def test_new_sweep_in_the_storage_is_found(tmp_path, space):
    make_sweep(tmp_path, space)

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            assert (await served.get("/sweep/second"))[0] == 404
            make_sweep(tmp_path, replace(space, name="second"))
            begun = time.monotonic()
            while (await served.get("/sweep/second"))[0] == 404:
                assert time.monotonic() - begun < 2 * LISTING_S
                await asyncio.sleep(0.3)
            shutil.rmtree(tmp_path / "second")
            assert (await served.get("/"))[0] == 200

    run(test())


@pytest.mark.parametrize("only", [True, False], ids=["one-sweep", "newest-of-several"])
def test_server_reads_the_sweep_that_is_opened_first_before_anybody_asks(tmp_path, space, only):
    if not only:
        make_sweep(tmp_path, replace(space, name="older"))
        LocalStore(tmp_path).create(LATEST_KEY, b"toy")
    make_sweep(tmp_path, space, record(0))

    async def test() -> None:
        catalog = Catalog(str(tmp_path / "toy" if only else tmp_path), only=only)
        await catalog.begin()
        poller = await catalog.poller("toy")
        assert poller is not None
        assert poller.view is not None
        assert [each.trial for each in poller.view.records] == [0]
        await catalog.close()

    run(test())


def test_server_without_a_sweep_begins(tmp_path):
    async def test() -> None:
        catalog = Catalog(str(tmp_path / "nothing"))
        await catalog.begin()
        assert await catalog.names() == []
        await catalog.close()

    run(test())
