"""Writing beside the training: one checkpoint at a time, on a thread of its own. Used by `checkpoints`."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

from trainer.checkpoint.writer import Snapshot, retain, write
from trainer.text import counted

_FULL = (errno.ENOSPC, errno.EDQUOT)


class Writer:
    """Writes snapshots to `root`. What goes wrong is told to `warn`, but for what `full` tells.

    Args:
        keep: checkpoints that stay.
        last: the steps of the newest checkpoint that stands already, or None.
    """

    def __init__(self, root: Path, *, keep: int, last: int | None, warn: Callable[[str], None]) -> None:
        self._root, self._keep, self._warn = root, keep, warn
        self._thread: threading.Thread | None = None
        self._complaint = ""
        self.last = last
        """Steps of the newest checkpoint that stands."""
        self.full = ""
        """What the system said when the disk was full and no checkpoint stood; the run must not go on so."""

    @property
    def busy(self) -> bool:
        """Whether one is being written."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, snapshot: Snapshot) -> None:
        """Writes it in the background, after the one that is under way."""
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(snapshot,), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, snapshot: Snapshot) -> None:
        try:
            write(self._root, snapshot)
        except Exception as error:  # noqa: BLE001 - a full disk comes as OSError or, out of Rust, as something else
            why = " ".join(str(getattr(error, "strerror", None) or error).split())
            if self.last is None and any(os.strerror(number) in why for number in _FULL):
                self.full = why
            else:
                self._complain(snapshot.document.steps, why)
        else:
            self.last, self._complaint = snapshot.document.steps, ""
            retain(self._root, self._keep)

    def _complain(self, steps: int, why: str) -> None:
        stands = (
            "without any other, so that an end now would lose everything"
            if self.last is None
            else f"and could go on from the one after {counted(self.last, 'step')}"
        )
        complaint = f"could not be written ({why}); the run goes on, {stands}"
        if complaint != self._complaint:  # once, not at every interval
            self._warn(f"the checkpoint after {counted(steps, 'step')} {complaint}")
        self._complaint = complaint
