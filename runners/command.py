"""The pool that a runner starts, and the command line of one of its workers."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from runners.errors import PoolError


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Workers to start.

    Args:
        storage: the sweep's whole URL.
        workers: how many processes.
        threads: CPU threads for each.
        max_trials: after how many trials a worker leaves; None: when no trial is left.
    """

    storage: str
    workers: int
    threads: int = 1
    max_trials: int | None = None

    def __post_init__(self) -> None:
        for field in ("workers", "threads", "max_trials"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise PoolError(field, f"{value} is less than 1")


def worker_argv(pool: Pool) -> tuple[str, ...]:
    """The argv of one worker, run by the interpreter that runs us."""
    argv = (sys.executable, "-m", "sweeps", "worker", "--storage", pool.storage)
    return argv if pool.max_trials is None else (*argv, "--max-trials", str(pool.max_trials))
