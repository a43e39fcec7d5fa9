"""Checkpoints of an earlier attempt of a trial, fetched for the next one.

The content of `checkpoints/` in the run folder is restored when the trial is taken over, here or on another
machine. The program decides whether it can use it: the trainer verifies each file.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from sweeps.errors import EnvironmentFault, StoreUnavailable
from sweeps.stages.checkpoint import SNAPSHOTS
from sweeps.storage.base import Store
from sweeps.storage.run_files.fetch import fetch_files
from sweeps.storage.run_files.scan import CHECKPOINTS
from sweeps.text import json_reader
from sweeps.text.regular_file import open_regular
from sweeps.trials.record import Trial, run_prefix

log = logging.getLogger(__name__)

_LONGEST_NAME = 1000
_INCOMING = ".incoming"  # a draft's name, so that a partial copy is not uploaded as this attempt's own


def fetch_checkpoints(store: Store, record: Trial, folder: Path) -> int | None:
    """Copy the checkpoints of the newest earlier attempt that has any into the run folder.

    Returns:
        The earlier attempt, or None if the trial starts from scratch.

    Raises:
        EnvironmentFault: the folder cannot be written.
    """
    incoming = folder / _INCOMING
    try:
        for name in (CHECKPOINTS, SNAPSHOTS, _INCOMING):  # left by a lost record whose index was reused
            if (folder / name).exists():
                shutil.rmtree(folder / name)
        for attempt in range(record.attempt - 1, 0, -1):
            try:  # all or none, even if interrupted
                prefix = run_prefix(record.trial, attempt)
                if fetch_files(store, prefix, incoming, below=f"{CHECKPOINTS}/"):
                    (incoming / CHECKPOINTS).rename(folder / CHECKPOINTS)
                    log.info("trial %d resumes from the checkpoints of attempt %d", record.trial, attempt)
                    if not store.is_remote:
                        remove_checkpoints(folder, range(1, attempt))  # nobody would look at those again
                    return attempt
            finally:
                shutil.rmtree(incoming, ignore_errors=True)
    except StoreUnavailable as error:
        log.warning("trial %d starts over: earlier checkpoints cannot be read: %s", record.trial, error)
    except OSError as error:
        raise EnvironmentFault(
            f"{folder}: cannot be written: {(error.strerror or str(error)).lower()}; free some space, or let "
            "SWEEP_SCRATCH name a folder that you may write to"
        ) from error
    return None


def remove_checkpoints(folder: Path, attempts: Iterable[int]) -> None:
    """Remove the checkpoints of other attempts at a trial, as far as that is possible.

    A machine that is preempted every hour would leave those of each attempt in the folder of the sweep.

    Args:
        folder: of this attempt.
    """
    for attempt in attempts:
        shutil.rmtree(folder.with_name(f"attempt-{attempt}") / CHECKPOINTS, ignore_errors=True)


def checkpoint_progress(folder: Path, names: Sequence[str]) -> tuple[int, int]:
    """Return the progress of the newest checkpoint in a run folder; (0, 0) if it is unknown.

    That is the one in `latest`, if it is there: a file of its own may be newer than what has been uploaded.

    Returns:
        The number of completed stages, and of completed steps of the next one.
    """
    checkpoints = folder / CHECKPOINTS
    found: list[Path] = []
    with contextlib.suppress(OSError):
        numbered = (path for path in checkpoints.iterdir() if path.name.isdecimal())
        found = sorted(numbered, key=lambda path: int(path.name), reverse=True)
    with contextlib.suppress(OSError, ValueError), open_regular(checkpoints / "latest") as file:
        found.insert(0, checkpoints / file.read(_LONGEST_NAME).decode().strip())
    for path in found:
        try:
            state = json_reader.read(path / "state.json")
            stage, is_over, step = state["stage"], state["over"] is True, state.get("step")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # not the trainer's
            continue
        if stage not in names:
            return len(names), 0
        steps = step if isinstance(step, int) and not is_over else 0
        return names.index(stage) + is_over, steps
    return 0, 0
