"""Run folders that killed workers of a sweep in a bucket have left on this machine's disk."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from sweeps.errors import StoreUnavailable, SweepError
from sweeps.experiment import Experiment

log = logging.getLogger(__name__)

_PATIENCE_S = 10.0  # for a worker that looks through the folders meanwhile


def hold(folder: Path) -> FileLock:
    """Show other workers on this disk that a run folder is in use, until the lock is released.

    The end of the process releases it, too, however it ends.
    """
    lock = _lock(folder)
    with suppress(OSError, NotImplementedError):  # a file system without locks
        lock.acquire(timeout=_PATIENCE_S)
    return lock


def remove_leftovers(experiment: Experiment) -> None:
    """Remove the folders of lost attempts whose trials later attempts have taken over.

    Those go on from what is in the bucket, so nobody reads the folders any more. The folder of a trial's
    last attempt stays, as it may have files that could not be uploaded.

    It raises nothing: the worker has a trial by now, whose run folder will meet the same fault of the disk.
    """
    try:
        trials = list(experiment.store.folder("runs").iterdir())
    except (OSError, StoreUnavailable):
        return
    for folder in _attempts(trials):
        trial, attempt = folder.parent.name, folder.name.removeprefix("attempt-")
        if not (trial.isdecimal() and attempt.isdecimal()):
            continue
        lock = _lock(folder)
        # In use, a file system without locks, no record, a bucket that does not answer.
        with suppress(OSError, NotImplementedError, SweepError):
            with lock.acquire(timeout=0):
                pass  # nobody uses it; not held while the bucket answers, as its worker may come to want it
            if experiment.trial(int(trial)).attempt > int(attempt):
                with lock.acquire(timeout=0):
                    remove_run(folder)
                log.info("removed %s, which a killed worker has left", folder)


def _attempts(trials: Iterable[Path]) -> Iterator[Path]:
    for trial in trials:
        with suppress(OSError):  # no folder, or an upload has just ended and removed it
            yield from list(trial.glob("attempt-*"))


def remove_run(folder: Path) -> None:
    """Remove the folder of an attempt as far as that is possible, and its trial's, if that is empty then.

    Before each claim a worker looks through what is there.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()


def keep_run(folder: Path) -> Path:
    """Move an attempt's folder out of the temporary one, which ends with this process; return its place."""
    if os.environ.get("SWEEP_SCRATCH"):
        return folder
    try:
        kept = Path(tempfile.mkdtemp(prefix="sweep-run-"), f"{folder.parent.name}-{folder.name}")
        return folder.rename(kept)
    except OSError:  # the disk is full
        return folder


def _lock(folder: Path) -> FileLock:
    # One thread takes it, and another one releases it. The name is a draft's, so that it is not uploaded.
    return FileLock(folder / ".worker.lock", thread_local=False)
