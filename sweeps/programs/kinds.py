"""The program of a sweep, by its kind."""

from __future__ import annotations

from sweeps.programs.base import Program
from sweeps.programs.command import CommandProgram
from sweeps.programs.function import Function, FunctionProgram
from sweeps.programs.trainer import TrainerProgram
from sweeps.space.definition import Space


def program_of(space: Space, function: Function | None = None) -> Program:
    """Return the program of a sweep.

    Args:
        function: to call in place of the sweep's own program.
    """
    if function is not None or space.program.kind == "function":
        return FunctionProgram(space, function)
    return TrainerProgram(space) if space.program.kind == "trainer" else CommandProgram(space)
