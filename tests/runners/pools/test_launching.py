"""A launch that failed leaves word of what runs, and of nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from runners_pools import PLAIN

from runners.errors import EngineFailed, EngineMissing, PoolError
from runners.pools import launched
from runners.pools.launched import launching
from runners.pools.pool import Pool
from runners.pools.runner import WorkerStatus


@dataclass
class Engine:
    """Engine that has these workers; None: it does not answer."""

    workers: tuple[WorkerStatus, ...] | None
    name: str = "ray"
    asked: list[Pool] = field(default_factory=list)

    def status(self, pool: Pool) -> tuple[WorkerStatus, ...]:
        self.asked.append(pool)
        if self.workers is None:
            raise EngineFailed("ray", "no answer")
        return self.workers


RUNS, WAITS, OVER = (
    WorkerStatus(worker="a", state="running"),
    WorkerStatus(worker="b", state="waiting"),
    WorkerStatus(worker="c", state="failed"),
)
REFUSED = EngineFailed("ray", "refused")


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    return replace(PLAIN, folder=tmp_path / "logs" / "ray-pool")


def start(engine: Engine, pool: Pool, error: BaseException, makes: str = "worker.sh") -> None:
    def up() -> None:
        with launching(engine, pool):  # type: ignore[arg-type]  # as much of a runner as is asked
            assert launched.read(pool.folder) is not None
            (pool.folder / makes).touch()
            raise error

    with pytest.raises(type(error)):
        up()


@pytest.mark.parametrize("workers", [(), (OVER,)], ids=["no worker", "a worker of earlier"])
@pytest.mark.parametrize("error", [REFUSED, KeyboardInterrupt(), OSError()], ids=repr)
def test_where_nothing_runs_nothing_is_left(
    pool: Pool, workers: tuple[WorkerStatus, ...], error: BaseException
) -> None:
    start(Engine(workers), pool, error)
    assert not pool.folder.parent.exists()


@pytest.mark.parametrize(
    "workers", [(RUNS,), (OVER, WAITS), None], ids=["runs", "waits", "the engine is silent"]
)
def test_what_may_run_is_remembered(pool: Pool, workers: tuple[WorkerStatus, ...] | None) -> None:
    start(Engine(workers), pool, REFUSED)
    assert launched.read(pool.folder) == launched.Launched(runner="ray", pool=pool)
    assert (pool.folder / "worker.sh").exists()


@pytest.mark.parametrize(
    "error", [PoolError("workers", "refused"), EngineMissing("ray", "the command ray", "")], ids=repr
)
def test_what_refused_to_start_need_not_be_asked(pool: Pool, error: BaseException) -> None:
    engine = Engine((RUNS,))  # of a pool that somebody launched elsewhere
    start(engine, pool, error)
    assert not engine.asked
    assert not pool.folder.parent.exists()


def test_an_earlier_pool_is_known_as_before_and_logs_stay(pool: Pool) -> None:
    earlier = launched.Launched(runner="ray", pool=replace(pool, workers=1), notes={"jobs": [12]})
    launched.write(earlier)
    (pool.folder / "12_0_log.out").touch()
    start(Engine(()), pool, REFUSED, makes="worker-1.log")
    assert launched.read(pool.folder) == earlier
    assert {path.name for path in pool.folder.iterdir()} == {launched.FILE, "12_0_log.out", "worker-1.log"}


def test_what_was_started_is_remembered(pool: Pool) -> None:
    engine = Engine(())
    with launching(engine, pool):  # type: ignore[arg-type]  # as much of a runner as is asked
        pass
    assert launched.read(pool.folder) is not None
    assert not engine.asked
