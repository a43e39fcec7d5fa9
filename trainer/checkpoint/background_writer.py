"""Background writing of checkpoints and of finished stages, one at a time. Used by `checkpoints`."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sweeps.text.counted import counted
from trainer.checkpoint.writer import Snapshot, retain, write, write_stage

_FULL = (errno.ENOSPC, errno.EDQUOT)


class Writer:
    """Writer of snapshots on a thread of its own.

    Args:
        root: folder of the checkpoints.
        keep: number of newest checkpoints to retain.
        last: steps of the newest existing checkpoint, or None.
        warn: called with one line for a failure that does not set `full`.
    """

    def __init__(self, root: Path, *, keep: int, last: int | None, warn: Callable[[str], None]) -> None:
        self._root, self._keep, self._warn = root, keep, warn
        self._thread: threading.Thread | None = None
        self._warning = ""
        self.last = last
        """Steps of the newest complete checkpoint."""
        self.full = ""
        """The system's message when the disk was full and there was no checkpoint; the run must end."""

    @property
    def busy(self) -> bool:
        """Return whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, snapshot: Snapshot) -> None:
        """Start to write the snapshot as a checkpoint, once the one before is written."""
        self._start(partial(self._write, snapshot))

    def begin_stage(self, folder: Path, document: bytes, snapshot: Snapshot) -> None:
        """Start to write a finished stage, as `writer.write_stage` does; a failure is only a warning."""
        self._start(partial(self._write_stage, folder, document, snapshot))

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _start(self, target: Callable[[], None]) -> None:
        self.wait()
        self._thread = threading.Thread(target=target, name="checkpoint")
        self._thread.start()

    def _write_stage(self, folder: Path, document: bytes, snapshot: Snapshot) -> None:
        try:
            write_stage(folder, snapshot, document)
        except Exception as error:  # noqa: BLE001 - as below
            stage = snapshot.manifest.stage
            self._warn(f"the snapshot of {stage} could not be written ({_reason(error)}); the run goes on")

    def _write(self, snapshot: Snapshot) -> None:
        try:
            write(self._root, snapshot)
        except Exception as error:  # noqa: BLE001 - safetensors reports a full disk as an error of its own
            reason = _reason(error)
            if self.last is None and any(os.strerror(number) in reason for number in _FULL):
                self.full = reason
            else:
                self._warn_once(snapshot.manifest.steps, reason)
        else:
            self.last, self._warning = snapshot.manifest.steps, ""
            retain(self._root, self._keep)

    def _warn_once(self, steps: int, reason: str) -> None:
        fallback = (
            "without any other, so that an end now would lose everything"
            if self.last is None
            else f"and could go on from the one after {counted(self.last, 'step')}"
        )
        warning = f"could not be written ({reason}); the run goes on, {fallback}"
        if warning != self._warning:  # once, not at every interval
            self._warn(f"the checkpoint after {counted(steps, 'step')} {warning}")
        self._warning = warning


def _reason(error: Exception) -> str:
    return " ".join(str(getattr(error, "strerror", None) or error).split())
