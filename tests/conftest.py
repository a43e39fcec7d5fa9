"""What the tests of every subpackage share: the command `sweep`, the fake bucket, and the server of processes. This file also puts `tests/` on
the import path."""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.util
import os
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext

import pytest
from command_line import sweep
from fake_gcs import FakeGcs
from forked import PRELOAD
from hypothesis import settings

__all__ = ["sweep"]

# A busy machine makes any example slow; tests have a time limit of their own. Each run tries other examples, so
# a few of them each time find in the end what the usual hundred find at once, which take minutes of CI's forty.
settings.register_profile("quick", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=250)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="skip each test where it starts a process or trains")


@pytest.fixture(scope="session", autouse=True)
def _fast(request: pytest.FixtureRequest) -> None:
    """Hold `make test-fast` to its word: a test is skipped at the moment that it starts a process or trains."""
    if not request.config.getoption("--fast"):
        return

    def refuse_processes(event: str, arguments: object) -> None:
        if event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec", "os.system"):
            pytest.skip("starts a process")

    def refuse_training(*given: object, **named: object) -> None:
        pytest.skip("trains")

    sys.addaudithook(refuse_processes)
    multiprocessing.util.spawnv_passfds = lambda *given: pytest.skip("starts a process")  # raises no event
    if (train_step := sys.modules.get("trainer.training.train_step")) is not None:
        train_step.TrainStep.__call__ = refuse_training


def pytest_sessionstart() -> None:
    """What is imported while tests are collected stays: to look for garbage among it takes seconds."""
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a time limit of their own, the longest first: one that began last would leave a core idle."""

    def limit(item: pytest.Item) -> float:
        mark = item.get_closest_marker("timeout")
        return mark.args[0] if mark else 0

    items.sort(key=limit, reverse=True)  # the others stay in pytest-randomly's order


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def _fake_gcs() -> Iterator[FakeGcs]:
    with FakeGcs() as server:
        yield server


@pytest.fixture(scope="session")
def forkserver() -> ForkServerContext:
    """Forks processes that have torch, transformers and Ax loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


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
