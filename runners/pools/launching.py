"""The start of a pool: remembered from before it begins, forgotten where nothing came of it. `sweep launch`
calls this."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runners.errors import EngineMissing, PoolError, RunnerError
from runners.pools import launched
from runners.pools.pool import Pool
from runners.pools.private_file import write_private
from runners.pools.runner import Runner


@contextmanager
def launching(runner: Runner, pool: Pool) -> Iterator[None]:
    """Around `runner.up`. Whoever is killed in the middle has left word of what may have been started.

    Where it fails and the engine has no worker of the pool, the pool's folder is as it was before, but for
    logs. An engine that does not say whether it has any leaves the pool remembered: `sweep down` may have to
    end it.
    """
    missing = [folder for folder in (pool.folder, *pool.folder.parents) if not folder.exists()]
    there = set() if missing else set(pool.folder.iterdir())
    word = pool.folder / launched.FILE
    earlier = word.read_text(encoding="utf-8") if word in there else None
    launched.write(launched.Launched(runner=runner.name, pool=pool))
    try:
        yield
    except BaseException as error:
        # The first two are raised before anything is started.
        if isinstance(error, PoolError | EngineMissing) or not _may_run(runner, pool):
            _forget(pool.folder, there, missing)
            if earlier is not None:
                write_private(word, earlier)
        raise


def _may_run(runner: Runner, pool: Pool) -> bool:
    try:
        return any(place.state in ("waiting", "running") for place in runner.status(pool))
    except RunnerError:
        return True


def _forget(folder: Path, there: set[Path], missing: list[Path]) -> None:
    """Removes what is new in the folder, and the folders that were made for it, the innermost first."""
    launched.remove(folder)
    with suppress(OSError):  # a log is left, or the engine is still busy with it
        for path in set(folder.iterdir()) - there:
            if path.suffix != ".log" and not path.is_dir():
                path.unlink(missing_ok=True)
        for empty in missing:
            empty.rmdir()
