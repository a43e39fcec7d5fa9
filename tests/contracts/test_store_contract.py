"""One suite over every store backend: what `experiment` and `lease` may rely on."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from memory_store import MemoryStore

from sweeps.errors import AlreadyExists, Conflict
from sweeps.storage.base import NotFound, Store
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.local import LocalStore
from sweeps.storage.objects.store import ObjectStore

BACKENDS: dict[str, Callable[[Path, str], Store]] = {
    "memory": lambda folder, endpoint: MemoryStore(),
    "local": lambda folder, endpoint: LocalStore(folder / "store"),
    "gcs": lambda folder, endpoint: GcsStore(f"gs://bucket/contract/{uuid.uuid4().hex}", endpoint=endpoint),
    "s3": lambda folder, endpoint: ObjectStore(f"s3://bucket/contract/{uuid.uuid4().hex}", endpoint=endpoint),
    "az": lambda folder, endpoint: ObjectStore(f"az://bucket/contract/{uuid.uuid4().hex}", endpoint=endpoint),
}

# What a store's clock may be off by: HTTP tells the time in whole seconds.
CLOCK_TOLERANCE_S = {"memory": 0.05, "local": 0.05, "gcs": 1.05, "s3": 1.05, "az": 1.05}


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return BACKENDS[request.param](tmp_path, endpoint_of(request))


def endpoint_of(request: pytest.FixtureRequest) -> str:
    if request.param == "s3":
        return request.getfixturevalue("s3").door("front")
    if request.param == "az":
        return request.getfixturevalue("azure")
    return request.getfixturevalue("gcs").url if request.param == "gcs" else ""


class TestStoreContract:
    def test_what_was_created_is_read_back_with_its_version(self, store):
        version = store.create("a/b.json", b"one")
        assert store.read("a/b.json") == (b"one", version)

    def test_many_are_read_as_one_by_one_and_the_missing_are_none(self, store):
        versions = {f"trials/{i}": store.create(f"trials/{i}", b"%d" % i) for i in range(5)}
        keys = ["trials/3", "trials/nowhere", "trials/0", "trials/3"]
        assert store.read_many(keys) == [
            (b"3", versions["trials/3"]),
            None,
            (b"0", versions["trials/0"]),
            (b"3", versions["trials/3"]),
        ]
        assert store.read_many([]) == []
        assert store.read_many(["trials/1"]) == [(b"1", versions["trials/1"])]

    def test_create_refuses_a_taken_key_and_changes_nothing(self, store):
        version = store.create("k", b"one")
        with pytest.raises(AlreadyExists):
            store.create("k", b"two")
        assert store.read("k") == (b"one", version)

    def test_replace_of_the_present_version_gives_another_version(self, store):
        first = store.create("k", b"one")
        second = store.replace("k", b"two", first)
        assert second != first
        assert store.read("k") == (b"two", second)

    def test_replace_of_a_stale_version_changes_nothing(self, store):
        first = store.create("k", b"one")
        second = store.replace("k", b"two", first)
        with pytest.raises(Conflict):
            store.replace("k", b"three", first)
        assert store.read("k") == (b"two", second)

    def test_a_version_never_comes_back_even_for_equal_bytes(self, store):
        versions = [store.create("k", b"same")]
        for _ in range(50):
            versions.append(store.replace("k", b"same", versions[-1]))
        assert len(set(versions)) == len(versions)

    def test_no_version_of_the_first_bytes_overwrites_their_return(self, store):
        first = store.create("k", b"A")
        third = store.replace("k", b"A", store.replace("k", b"B", first))
        with pytest.raises(Conflict):
            store.replace("k", b"C", first)
        with pytest.raises(Conflict):
            store.delete("k", first)
        assert store.read("k") == (b"A", third)

    def test_deleted_key_can_be_created_again(self, store):
        versions = []
        for _ in range(3):
            versions.append(store.create("a/k", b"x"))
            store.delete("a/k", versions[-1])
            assert store.list("a/") == []
            assert store.read_many(["a/k"]) == [None]
        versions.append(store.create("a/k", b"x"))
        assert store.read("a/k") == (b"x", versions[-1])
        for stale in versions[:-1]:
            with pytest.raises(Conflict):
                store.delete("a/k", stale)
        assert [entry.key for entry in store.list("a/")] == ["a/k"]

    def test_of_many_creators_after_a_delete_exactly_one_wins(self, store):
        store.delete("k", store.create("k", b"0"))
        outcomes = _race(8, lambda i: store.create("k", b"%d" % i))
        assert sum(not isinstance(o, Exception) for o in outcomes) == 1
        assert all(isinstance(o, AlreadyExists) for o in outcomes if isinstance(o, Exception))

    def test_replace_and_delete_of_a_missing_key_conflict(self, store):
        with pytest.raises(Conflict):
            store.replace("k", b"x", "1")
        with pytest.raises(Conflict):
            store.delete("k", "1")

    def test_delete_needs_the_present_version(self, store):
        first = store.create("k", b"one")
        second = store.replace("k", b"two", first)
        with pytest.raises(Conflict):
            store.delete("k", first)
        store.delete("k", second)
        with pytest.raises(NotFound):
            store.read("k")

    def test_reading_a_missing_key_says_so_with_its_location(self, store):
        with pytest.raises(NotFound, match=r"nothing\.json"):
            store.read("nothing.json")

    def test_list_is_sorted_by_key_and_limited_to_the_prefix(self, store):
        for key in ("trials/000002.json", "trials/000000.json", "sweep.json", "trialsX"):
            store.create(key, b"x")
        assert [entry.key for entry in store.list("trials/")] == ["trials/000000.json", "trials/000002.json"]
        assert [entry.key for entry in store.list("sweep")] == ["sweep.json"]

    def test_list_of_an_unknown_prefix_is_empty(self, store):
        assert store.list("nothing/") == []

    def test_list_names_the_versions_that_read_gives(self, store):
        store.replace("t/a", b"2", store.create("t/a", b"1"))
        store.create("t/b", b"3")
        assert {e.key: e.version for e in store.list("t/")} == {k: store.read(k)[1] for k in ("t/a", "t/b")}

    def test_the_clock_moves_forward_and_stamps_what_is_written(self, store, request):
        tolerance = CLOCK_TOLERANCE_S[request.node.callspec.params["store"]]
        before = store.now()
        store.create("k", b"x")
        after = store.now()
        (entry,) = store.list("k")
        assert before <= after
        assert before - tolerance <= entry.updated <= after + tolerance

    def test_of_many_creators_of_one_key_exactly_one_wins(self, store):
        outcomes = _race(8, lambda i: store.create("k", b"%d" % i))
        assert sum(not isinstance(o, Exception) for o in outcomes) == 1
        assert all(isinstance(o, AlreadyExists) for o in outcomes if isinstance(o, Exception))

    def test_of_many_replacers_of_one_version_exactly_one_wins(self, store):
        version = store.create("k", b"0")
        outcomes = _race(8, lambda i: store.replace("k", b"%d" % i, version))
        assert sum(not isinstance(o, Exception) for o in outcomes) == 1

    def test_concurrent_counters_lose_no_increment(self, store):
        store.create("n", b"0")

        def add_ten(_: int) -> None:
            added = 0
            while added < 10:
                data, version = store.read("n")
                try:
                    store.replace("n", b"%d" % (int(data) + 1), version)
                    added += 1
                except Conflict:
                    continue

        _race(4, add_ten)
        assert store.read("n")[0] == b"40"

    def test_folder_of_bulk_files_is_the_same_each_time(self, store):
        (store.folder("runs/000000") / "log.txt").write_text("x")
        assert (store.folder("runs/000000") / "log.txt").read_text() == "x"

    def test_location_names_the_object_for_a_person(self, store):
        assert store.location("trials/000001.json").endswith("trials/000001.json")


def _race(count: int, action: Callable[[int], object]) -> list[object]:
    """Run `action(i)` in `count` threads that start together; their results or exceptions."""
    start = threading.Barrier(count)
    outcomes: list[object] = [None] * count

    def run(i: int) -> None:
        start.wait()
        try:
            outcomes[i] = action(i)
        except Exception as error:
            outcomes[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes
