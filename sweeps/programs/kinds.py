"""The program of a sweep, by its kind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sweeps.errors import InputError
from sweeps.programs.base import Program
from sweeps.space.definition import Space
from sweeps.space.domain import probes

if TYPE_CHECKING:
    from sweeps.programs.function import Function


def program_of(space: Space, function: Function | None = None) -> Program:
    """Return the program of a sweep.

    Args:
        function: to call in place of the sweep's own program.
    """
    # Each with its own imports: `sweep best` needs but a command line.
    if function is not None or space.program.kind == "function":
        from sweeps.programs.function import FunctionProgram

        return FunctionProgram(space, function)
    if space.program.kind == "trainer":
        from sweeps.programs.trainer import TrainerProgram

        return TrainerProgram(space)
    from sweeps.programs.command import CommandProgram

    return CommandProgram(space)


def with_nodes(space: Space, nodes: int | None) -> Space:
    """Return the space with this number of hosts for each trial; None: that of the space file.

    Raises:
        InputError: so many cannot share a trial.
    """
    if nodes in (None, space.program.nodes):
        return space
    if space.program.kind != "trainer":
        raise InputError(f"--nodes {nodes}: only trials of program.trainer run on several hosts")
    changed = replace(space, program=replace(space.program, nodes=nodes or 1))
    try:
        program_of(changed).check(probes(changed))
    except InputError as error:
        raise InputError(f"--nodes {nodes}: {error}") from None
    return changed
