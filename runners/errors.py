"""The errors of `runners`.

RunnerError         root
└── PoolError       a pool that makes no sense (workers, threads)
"""

from __future__ import annotations


class RunnerError(Exception):
    """Root of the package's errors."""


class PoolError(RunnerError):
    """A pool that cannot be started as described.

    Args:
        field: which field of the pool.
        problem: what is wrong with it.
    """

    def __init__(self, field: str, problem: str) -> None:
        self.field, self.problem = field, problem
        super().__init__(f"{field}: {problem}")
