"""The ask lock: one holder at a time, released, renewed, and expired after its holder's death."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from memory_store import MemoryStore

from sweeps.errors import StoreUnavailable
from sweeps.trials.lease import ObjectLease


def lease(store, heartbeat_s=10.0, expire_s=30.0) -> ObjectLease:
    return ObjectLease(store, "ask.lock", heartbeat_s=heartbeat_s, expire_s=expire_s)


def test_one_holder_at_a_time(clock):
    store = MemoryStore(clock=clock)
    with lease(store).held("a") as first, lease(store).held("b") as second:
        assert (first, second) == (True, False)
    with lease(store).held("b") as second:
        assert second
    assert store.list("ask.lock") == []


def test_it_is_given_back_when_the_block_fails(clock):
    store = MemoryStore(clock=clock)
    with pytest.raises(RuntimeError), lease(store).held("a"):
        raise RuntimeError
    assert store.list("ask.lock") == []


def test_dead_holder_is_followed_after_lease(clock):
    store = MemoryStore(clock=clock)
    lease(store)._acquire("dead")
    clock.advance(30)
    with lease(store).held("b") as mine:
        assert not mine
    clock.advance(0.1)
    with lease(store).held("b") as mine:
        assert mine


def test_old_holder_keeps_new_holders_lease(clock):
    store = MemoryStore(clock=clock)
    stalled = lease(store).held("stalled")
    assert stalled.__enter__()
    clock.advance(31)
    with lease(store).held("b") as mine:
        assert mine
        stalled.__exit__(None, None, None)
        assert [entry.key for entry in store.list("ask.lock")] == ["ask.lock"]


def test_a_long_holder_renews(clock):
    store = MemoryStore(clock=clock)
    with lease(store, heartbeat_s=0.01).held("a"):
        for _ in range(3):
            clock.advance(29)
            before, deadline = store.read("ask.lock")[1], time.monotonic() + 5
            while store.read("ask.lock")[1] == before and time.monotonic() < deadline:
                time.sleep(0.01)
        clock.advance(29)  # since the last renewal
        with lease(store).held("b") as mine:
            assert not mine
    assert store.list("ask.lock") == []


def test_an_unreadable_lock_is_free_to_take(clock):
    store = MemoryStore(clock=clock)
    store.create("ask.lock", b"{torn")
    with lease(store).held("a") as mine:
        assert mine


def test_failed_release_of_lease_does_not_hide_work(clock, caplog):
    class Failing(MemoryStore):
        def delete(self, key: str, expected: str) -> None:
            raise StoreUnavailable("gone")

    with lease(Failing(clock=clock)).held("a") as mine:
        assert mine
    assert "not be released" in caplog.text


def test_of_many_threads_one_at_a_time_is_inside():
    store, inside, most = MemoryStore(), 0, 0
    guard = threading.Lock()

    def work(name: str) -> None:
        nonlocal inside, most
        done = 0
        while done < 5:
            with lease(store).held(name) as mine:
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


class Slow(MemoryStore):
    """Takes one change of a name in a tenth of a second, and refuses the others as a bucket would."""

    changed = float("-inf")

    @property
    def write_interval_s(self) -> float:
        return 0.1

    def _take_time(self) -> None:
        if time.monotonic() - self.changed < 0.1:
            raise StoreUnavailable("429")
        self.changed = time.monotonic()

    def create(self, key: str, data: bytes) -> str:
        self._take_time()
        return super().create(key, data)

    def delete(self, key: str, expected: str) -> None:
        self._take_time()
        super().delete(key, expected)


def test_slow_release_keeps_nobody_waiting(caplog):
    store = Slow()
    held = lease(store)
    with held.held("a") as mine:
        assert mine
    assert [entry.key for entry in store.list("ask.lock")] == ["ask.lock"]  # the block has ended before
    held.settle()
    assert store.list("ask.lock") == []
    assert "not be released" not in caplog.text


def test_next_use_of_lease_waits_for_release():
    store = Slow()
    held = lease(store)
    with held.held("a"):
        pass
    with pytest.raises(StoreUnavailable, match="429"), held.held("a"):
        pytest.fail("the name was changed a moment ago")
    assert store.list("ask.lock") == []


def test_a_process_that_ends_gives_the_lease_back_first():
    """The renewing thread must outlive the main one: a lock that is not released blocks all workers."""
    code = (
        "import sys, test_lease\n"
        "class Told(test_lease.Slow):\n"
        "    def delete(self, key, expected):\n"
        "        super().delete(key, expected)\n"
        "        print('given back', flush=True)\n"
        "with test_lease.lease(Told()).held('a'):\n"
        "    sys.exit(7)\n"
    )
    here = Path(__file__)
    path = os.pathsep.join(map(str, [here.parent, *here.parents[2:4]]))
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout) == (7, "given back\n"), ended.stderr


def test_whoever_does_not_get_it_learns_who_has_it(clock):
    store = MemoryStore(clock=clock)
    late = lease(store)
    with lease(store).held("a"), late.held("b") as mine:
        assert (mine, late.rival) == (False, "a")
    with late.held("b") as mine:
        assert (mine, late.rival) == (True, "")
