"""What every room's tests share: the fake bucket. This file also puts `tests/` on the import path."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest
from fake_gcs import FakeGcs
from hypothesis import settings

# A busy machine makes any example slow; tests have a time limit of their own. `make test` tries fewer examples,
# `make test-slow` the usual hundred of every property.
settings.register_profile("quick", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(scope="session")
def _fake_gcs() -> Iterator[FakeGcs]:
    with FakeGcs() as server:
        yield server


@pytest.fixture
def let_go_of_leases() -> Callable[[], None]:
    """Waits until every lease that was held in this process is given back."""

    def join() -> None:
        for thread in threading.enumerate():
            if thread.name.startswith("lease-"):
                thread.join()

    return join


@pytest.fixture
def gcs(_fake_gcs: FakeGcs, let_go_of_leases: Callable[[], None]) -> Iterator[FakeGcs]:
    """The session's fake service with a bucket `bucket`, without faults; use a prefix of your own in it."""
    _fake_gcs.reset()
    yield _fake_gcs
    let_go_of_leases()  # what is given back in the background shall not meet the next test
    _fake_gcs.reset()
