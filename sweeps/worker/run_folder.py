"""Whether a trial's run folder still takes writes. `worker` asks where a program failed: a full disk or a
read-only mount is the machine's fault, and the next program would fail there, too.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from sweeps.errors import EnvironmentFault

_PROBE = ".writable"
_BYTES = 4096  # a block: less may fit into what a full disk keeps for small files


def require_writable(folder: Path) -> None:
    """Write a block into the folder and remove it again.

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
        what = (error.strerror or type(error).__name__).lower()
        raise EnvironmentFault(
            f"{folder}: cannot write: {what}; no trial fails for that: free the disk, lift the limit "
            "(ulimit -f) or mount it for writing, and start this worker again"
        ) from error
    finally:
        with suppress(OSError):
            probe.unlink()
