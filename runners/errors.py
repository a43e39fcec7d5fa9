"""Errors of `runners`, and the exit statuses of workers and pools."""

from __future__ import annotations

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_INPUT = 2
EXIT_PREEMPTED = 75


class RunnerError(Exception):
    """Root of the package's errors."""


class PoolError(RunnerError):
    """Pool that cannot be started as described."""

    def __init__(self, field: str, problem: str) -> None:
        self.field, self.problem = field, problem
        super().__init__(f"{field}: {problem}")


class EngineMissing(RunnerError):
    """Engine that is not installed here."""

    def __init__(self, engine: str, needs: str, remedy: str) -> None:
        self.engine, self.needs, self.remedy = engine, needs, remedy
        super().__init__(f"the {engine} runner needs {needs}, which is not here; {remedy}")


class EngineFailed(RunnerError):
    """Engine that is installed, and refused or did not answer.

    Args:
        problem: its error message; line ends become spaces.
    """

    def __init__(self, engine: str, problem: str) -> None:
        self.engine, self.problem = engine, " ".join(problem.split())
        super().__init__(f"{engine}: {self.problem}")
