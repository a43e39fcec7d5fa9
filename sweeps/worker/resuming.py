"""Where an earlier attempt of a trial got to, for the next one: its checkpoints. Called by `worker`.

Whatever a program keeps in `checkpoints/` of its run folder is there again when the trial is taken over, here
or on another machine. It is for the program to tell whether it can use it: the trainer verifies each file.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from sweeps.errors import EnvironmentFault, StoreUnavailable
from sweeps.storage.base import Store
from sweeps.storage.run_files.fetch import fetch_files
from sweeps.trials.record import Trial, run_prefix

log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
_INCOMING = ".incoming"  # hidden: half of it must not be uploaded as this attempt's own


def bring_checkpoints(store: Store, record: Trial, folder: Path) -> int | None:
    """Fill `checkpoints/` of the run folder with those of the newest earlier attempt that has left any.

    Returns:
        That attempt, or None where the trial begins anew.

    Raises:
        EnvironmentFault: the folder cannot be written.
    """
    try:
        # Of a record that was lost, its index reused: of other parameters.
        for left_over in (folder / CHECKPOINTS, folder / _INCOMING):
            if left_over.exists():
                shutil.rmtree(left_over)
        for attempt in range(record.attempt - 1, 0, -1):
            if _bring(store, run_prefix(record.trial, attempt), folder):
                log.info("trial %d: attempt %d has left checkpoints", record.trial, attempt)
                return attempt
    except StoreUnavailable as error:
        log.warning("trial %d begins anew, its earlier attempts are out of reach: %s", record.trial, error)
    except OSError as error:
        raise EnvironmentFault(
            f"{folder}: cannot be written: {(error.strerror or str(error)).lower()}; free some space, or let "
            "SWEEP_SCRATCH name a folder that you may write to"
        ) from error
    return None


def _bring(store: Store, prefix: str, folder: Path) -> bool:
    """All or nothing of an attempt's checkpoints, also where the worker is told to go in the middle of it."""
    incoming = folder / _INCOMING
    try:
        found = fetch_files(store, prefix, incoming, below=f"{CHECKPOINTS}/")
        if found:
            (incoming / CHECKPOINTS).rename(folder / CHECKPOINTS)
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    return bool(found)
