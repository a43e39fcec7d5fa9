"""The errors of `runners`, and the exit statuses of workers and pools.

RunnerError         root
├── PoolError       a pool that makes no sense, or that this engine cannot start
├── EngineMissing   an engine that is not installed here
└── EngineFailed    an engine that is there and refused, or does not answer
"""

from __future__ import annotations

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_INPUT = 2
EXIT_POISON = 42
EXIT_PREEMPTED = 75


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


class EngineMissing(RunnerError):
    """An engine that is not installed here.

    Args:
        engine: the runner's name.
        needs: what is missing.
        remedy: how to get it.
    """

    def __init__(self, engine: str, needs: str, remedy: str) -> None:
        self.engine, self.needs, self.remedy = engine, needs, remedy
        super().__init__(f"the {engine} runner needs {needs}, which is not here; {remedy}")


class EngineFailed(RunnerError):
    """An engine that is installed, and refused or did not answer.

    Args:
        engine: the runner's name.
        problem: what it said, in one line.
    """

    def __init__(self, engine: str, problem: str) -> None:
        self.engine, self.problem = engine, " ".join(problem.split())
        super().__init__(f"{engine}: {self.problem}")
