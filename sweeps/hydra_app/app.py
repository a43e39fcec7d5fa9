"""Command line with which a worker starts this Hydra application for one trial.

It is part of the sweep's record: a worker that joins with `sweep worker`, in a folder with the same code,
runs the same.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from sweeps.errors import InputError
from sweeps.hydra_app.callback import RUN_DIR
from sweeps.programs.command import PLACEHOLDERS
from sweeps.space.overrides import quote

CALLBACK = "sweeps.hydra_app.callback.WriteResult"

SWEEP_SETTINGS = (
    "hydra/sweeper",
    "hydra.sweeper",
    "hydra/launcher",
    "hydra.launcher",
    "hydra.mode",
    "hydra.sweep.",
    "hydra.run.",
)
"""Prefixes of settings of the search, not of a trial: with other values it is still the same sweep."""

_OWN = {
    "run_dir": f", or ${{oc.env:{RUN_DIR}}} for the trial's folder",
    "trial": ", or ${oc.env:SWEEP_TRIAL} for the trial's index",
}


def command(
    metrics: Sequence[str], fixed: Sequence[str], hydra_overrides: Sequence[str], argv: Sequence[str]
) -> list[str]:
    """Return the `program.command` of the sweep.

    Args:
        metrics: names of the task function's return values.
        argv: command line of this process, for its options.

    Raises:
        InputError: the application was not started from a file, a module or a command, or an override has
            what workers replace in a command.
    """
    kept = [each for each in hydra_overrides if not each.lstrip("+~").startswith(SWEEP_SETTINGS)]
    for override in (*kept, *fixed):
        for name in PLACEHOLDERS:
            if name in override:  # Hydra itself would put the application's key of that name there
                key = name[2:-1]
                raise InputError(
                    f"{override}: workers replace {name} in a command; write ${{oc.select:{key}}} for the "
                    f"application's {key}{_OWN.get(key, '')}"
                )
    names = ",".join(quote(name) for name in metrics)
    # The application's own options, which choose its configuration, are a trial's too.
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for short, long in (("-cp", "--config-path"), ("-cn", "--config-name"), ("-cd", "--config-dir")):
        parser.add_argument(short, long, dest=long)
    options = vars(parser.parse_known_args(list(argv))[0])
    return [
        *_start_command(sys.modules["__main__"]),
        *(f"{name}={value}" for name, value in options.items() if value is not None),
        "hydra.mode=RUN",
        f"hydra.run.dir=${{oc.env:{RUN_DIR}}}",
        f"+hydra.callbacks.stagesweep={{_target_:{CALLBACK},metrics:[{names}]}}",
        *kept,
        *fixed,
        "${overrides}",
    ]


def _start_command(main: ModuleType) -> list[str]:
    """Return the application as `python -m module`, a script or a command, with `${python}` for Python."""
    if main.__spec__ is not None:
        return ["${python}", "-m", main.__spec__.name.removesuffix(".__main__")]
    if not getattr(main, "__file__", None):
        raise InputError("hydra/sweeper=stagesweep: workers start the application again; put it into a file")
    file = Path(str(main.__file__)).resolve()
    found = shutil.which(file.name)
    if found is not None and Path(found).resolve() == file:
        return [file.name]
    inside = file.is_relative_to(Path.cwd().resolve())
    return ["${python}", os.path.relpath(file) if inside else str(file)]
