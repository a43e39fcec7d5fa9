"""Command line that runs a trial's parameters again, for `sweep best`, `quickstart` and the report."""

from __future__ import annotations

import shlex

from sweeps.space.definition import Space, to_plain
from sweeps.space.overrides import to_overrides, with_parameters
from sweeps.trials.record import Trial

RUN_DIR = "runs/best"
"""Run folder of a command that is run by hand."""


def command_line(space: Space, record: Trial) -> str:
    """Return one line for a shell, with the sweep's overrides and the trial's parameters."""
    program, overrides = space.program, to_overrides(record.parameters)
    if program.kind == "trainer":
        count = program.processes
        start = ["python"] if count == 1 else ["torchrun", "--nproc-per-node", str(count)]
        return shlex.join([*start, "-m", "trainer", *program.overrides, *overrides])
    if program.kind == "function" and not program.function:
        return shlex.join(overrides)  # a program that only its user knows
    if program.kind == "function":
        module, _, name = program.function.partition(":")
        parameters = {key: to_plain(value) for key, value in record.parameters.items()}
        call = f"from {module} import {name}; print({name}({parameters!r}))"
        quoted = shlex.quote(call) if set(call) & set('"$`\\!') else f'"{call}"'  # a person reads it
        return f"python -c {quoted}"
    values = {"${python}": "python", "${run_dir}": RUN_DIR, "${trial}": str(record.trial)}

    def filled(word: str) -> str:
        for placeholder, value in values.items():
            word = word.replace(placeholder, value)
        return word

    words = with_parameters(program.command, record.parameters, filled)
    # Absolute, because a program may change its working directory before it writes its result.
    return f'mkdir -p {RUN_DIR} && SWEEP_RUN_DIR="$PWD/{RUN_DIR}" {shlex.join(words)}'
