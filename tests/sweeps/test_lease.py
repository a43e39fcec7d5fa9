"""The ask lock: one holder at a time, given back, renewed, and free again after its holder's death."""

from __future__ import annotations

import threading
import time

import pytest

from sweeps.errors import StoreUnavailable
from sweeps.lease import ObjectLease
from sweeps.storage.memory import MemoryStore


def lease(store, holder, heartbeat_s=10.0, expire_s=30.0) -> ObjectLease:
    return ObjectLease(store, "ask.lock", holder=holder, heartbeat_s=heartbeat_s, expire_s=expire_s)


def test_only_one_holds_it_and_the_next_may_after_it_is_given_back(clock):
    store = MemoryStore(clock=clock)
    with lease(store, "a").held() as first, lease(store, "b").held() as second:
        assert (first, second) == (True, False)
    with lease(store, "b").held() as second:
        assert second
    assert store.list("ask.lock") == []


def test_it_is_given_back_when_the_block_fails(clock):
    store = MemoryStore(clock=clock)
    with pytest.raises(RuntimeError), lease(store, "a").held():
        raise RuntimeError
    assert store.list("ask.lock") == []


def test_a_dead_holder_is_followed_only_after_the_lease_by_the_stores_clock(clock):
    store = MemoryStore(clock=clock)
    lease(store, "dead")._acquire()
    clock.advance(30)
    with lease(store, "b").held() as mine:
        assert not mine
    clock.advance(0.1)
    with lease(store, "b").held() as mine:
        assert mine


def test_a_holder_that_was_taken_over_does_not_remove_the_new_holders_lease(clock):
    store = MemoryStore(clock=clock)
    stalled = lease(store, "stalled").held()
    assert stalled.__enter__()
    clock.advance(31)
    with lease(store, "b").held() as mine:
        assert mine
        stalled.__exit__(None, None, None)
        assert [entry.key for entry in store.list("ask.lock")] == ["ask.lock"]


def test_a_long_holder_renews(clock):
    store = MemoryStore(clock=clock)
    with lease(store, "a", heartbeat_s=0.01).held():
        before = store.read("ask.lock")[1]
        clock.advance(29)
        deadline = time.monotonic() + 5
        while store.read("ask.lock")[1] == before and time.monotonic() < deadline:
            time.sleep(0.01)
        clock.advance(29)  # 58 s after the start, 29 after the renewal
        with lease(store, "b").held() as mine:
            assert not mine


def test_an_unreadable_lock_is_free_to_take(clock):
    store = MemoryStore(clock=clock)
    store.create("ask.lock", b"{torn")
    with lease(store, "a").held() as mine:
        assert mine


def test_a_store_that_fails_while_the_lease_is_given_back_does_not_hide_the_work(clock, caplog):
    class Failing(MemoryStore):
        def delete(self, key: str, expected: str) -> None:
            raise StoreUnavailable("gone")

    with lease(Failing(clock=clock), "a").held() as mine:
        assert mine
    assert "was not given back" in caplog.text


def test_of_many_threads_one_at_a_time_is_inside():
    store, inside, most = MemoryStore(), 0, 0
    guard = threading.Lock()

    def work(name: str) -> None:
        nonlocal inside, most
        done = 0
        while done < 5:
            with lease(store, name).held() as mine:
                if not mine:
                    continue
                with guard:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0.001)
                with guard:
                    inside -= 1
                done += 1

    threads = [threading.Thread(target=work, args=(f"w{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
