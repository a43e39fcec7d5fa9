"""Start of a pool: recorded before it begins, rolled back where nothing was started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runners.errors import EngineMissing, PoolError, RunnerError
from runners.pools import launched
from runners.pools.pool import Pool
from runners.pools.runner import Runner
from sweeps.text.atomic_file import write_atomic
from sweeps.text.regular_file import read_regular


@contextmanager
def launching(runner: Runner, pool: Pool) -> Iterator[None]:
    """Wrap `runner.up`, so that a process killed during it leaves a record of what may have been started.

    Where `up` fails and the engine has no worker of the pool, the pool's folder is restored except for logs.
    Where the engine does not answer, the record stays, for `sweep down`.
    """
    missing = [folder for folder in (pool.folder, *pool.folder.parents) if not folder.exists()]
    before = set() if missing else set(pool.folder.iterdir())
    record = pool.folder / launched.FILE
    earlier = read_regular(record).decode() if record in before else None
    launched.write(launched.Launched(runner=runner.name, pool=pool))
    try:
        yield
    except BaseException as error:
        # PoolError and EngineMissing are raised before anything is started.
        if isinstance(error, PoolError | EngineMissing) or not _may_run(runner, pool):
            _roll_back(pool.folder, before, missing)
            if earlier is not None:
                write_atomic(record, earlier)
        raise


def _may_run(runner: Runner, pool: Pool) -> bool:
    try:
        return any(worker.state in ("waiting", "running") for worker in runner.status(pool))
    except RunnerError:
        return True


def _roll_back(folder: Path, before: set[Path], missing: list[Path]) -> None:
    """Remove the new files in the folder, and the folders created for it, innermost first."""
    launched.remove(folder)
    with suppress(OSError):  # a log remains, or the engine still uses the folder
        for path in set(folder.iterdir()) - before:
            if path.suffix != ".log" and not path.is_dir():
                path.unlink(missing_ok=True)
        for empty in missing:
            empty.rmdir()
