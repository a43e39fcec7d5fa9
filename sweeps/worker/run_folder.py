"""Check for a writable run folder after a failed program: a full or read-only disk is no fault of a trial."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from sweeps.errors import EnvironmentFault

_PROBE = ".writable"
_BYTES = 4096  # a block: less may still fit on a full disk


def require_writable(folder: Path) -> None:
    """Write a block to the folder and remove it again.

    Raises:
        EnvironmentFault: nothing can be written there.
    """
    probe = folder / _PROBE
    try:
        with probe.open("wb") as file:
            file.write(bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        problem = (error.strerror or type(error).__name__).lower()
        raise EnvironmentFault(
            f"{folder}: cannot write: {problem}; no trial fails for that: free the disk, lift the limit "
            "(ulimit -f) or mount it for writing, and start this worker again"
        ) from error
    finally:
        with suppress(OSError):
            probe.unlink()
