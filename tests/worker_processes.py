"""Processes that a worker has started."""

from __future__ import annotations

import contextlib

import psutil


def trainer_of(worker: int) -> psutil.Process | None:
    """Return the trainer that the worker with this process ID runs; None if there is none."""
    for process in psutil.Process(worker).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # one that has just ended
            if process.cmdline()[1:4] == ["-P", "-m", "trainer"]:
                return process
    return None
