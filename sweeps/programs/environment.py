"""Environment variables of a trial's program: its run folder, the trial's index, the sweep's name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sweeps.space.definition import Space
from sweeps.trials.record import Trial


def variables(space: Space, record: Trial, folder: Path) -> dict[str, str]:
    """Return the variables of a trial's program."""
    return {"SWEEP_RUN_DIR": str(folder), "SWEEP_TRIAL": str(record.trial), "SWEEP_NAME": space.name}


@contextmanager
def in_environment(added: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process, and put back afterwards what was there."""
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
