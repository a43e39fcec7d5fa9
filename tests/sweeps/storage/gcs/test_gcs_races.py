"""Lost races in a bucket that takes one change of an object per second: the loser learns of it at once."""

from __future__ import annotations

import time
import uuid

import pytest
from fake_gcs import FakeGcs, Fault

from sweeps.errors import AlreadyExists, Conflict
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.retries import RetryPolicy

SLOW_WAITS = RetryPolicy(total_s=20.0, attempt_s=2.0, first_wait_s=5.0, longest_wait_s=5.0)


@pytest.fixture
def stores(gcs: FakeGcs) -> tuple[GcsStore, GcsStore]:
    """Two clients of one sweep."""
    gcs.objects.one_write_per_second = True
    url = f"gs://bucket/tests/{uuid.uuid4().hex}"
    first, second = (GcsStore(url, endpoint=gcs.door(name), retries=SLOW_WAITS) for name in ("a", "b"))
    return first, second


def test_loser_of_a_replace_does_not_wait_for_the_second(gcs, stores):
    winner, loser = stores
    version = winner.create("k", b"pending")
    time.sleep(1.05)
    winner.replace("k", b"claimed", version)
    start = time.monotonic()
    with pytest.raises(Conflict):
        loser.replace("k", b"claimed by another", version)
    assert time.monotonic() - start < 1.0
    assert [e.status for e in gcs.journal.entries("insert")] == [200, 200, 429]
    assert winner.read("k")[0] == b"claimed"


def test_loser_of_a_create_does_not_wait_for_the_second(stores):
    winner, loser = stores
    winner.create("ask.lock", b"w1")
    start = time.monotonic()
    with pytest.raises(AlreadyExists):
        loser.create("ask.lock", b"w2")
    assert time.monotonic() - start < 1.0


def test_own_write_is_recognised_after_a_lost_answer(gcs, stores):
    store, _ = stores
    gcs.faults.add(Fault(action="lose_response", operation="insert"))
    gcs.faults.add(Fault(action="status", status=429, operation="insert"))
    version = store.create("k", b"ours")
    assert store.read("k") == (b"ours", version)
