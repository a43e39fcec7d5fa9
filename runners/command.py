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
        devices: accelerators, as CUDA_VISIBLE_DEVICES names them; one for each worker, in turn. None: the
            workers see what the starter sees.
        max_trials: after how many trials a worker leaves; None: when no trial is left.
        restarts: crashes in a row after which a worker is given up.
        grace_s: seconds that workers have to hand their trials back, before they are killed.
    """

    storage: str
    workers: int
    threads: int = 1
    devices: tuple[str, ...] = ()
    max_trials: int | None = None
    restarts: int = 5
    grace_s: float = 30.0

    def __post_init__(self) -> None:
        for field in ("workers", "threads", "max_trials"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise PoolError(field, f"{value} is less than 1")
        for field in ("restarts", "grace_s"):
            if getattr(self, field) < 0:
                raise PoolError(field, f"{getattr(self, field)} is less than 0")
        if self.devices and self.workers > len(self.devices):
            raise PoolError(
                "workers",
                f"{self.workers} workers would share {len(self.devices)} accelerators, and a trainer takes a "
                f"whole one; at most {len(self.devices)} workers, or --devices none for CPUs",
            )


def worker_argv(pool: Pool) -> tuple[str, ...]:
    """The argv of one worker, run by the interpreter that runs us."""
    argv = (sys.executable, "-m", "sweeps", "worker", "--storage", pool.storage)
    return argv if pool.max_trials is None else (*argv, "--max-trials", str(pool.max_trials))
