"""Run a command that dies with the worker that started it: `python guard.py PARENT_PID COMMAND…`.

Asks the kernel for SIGKILL at the parent's death, then becomes the command. Without it a worker that is
killed with SIGKILL would leave its trainer behind, computing for a trial that somebody else has taken over.
Only Linux can do this; elsewhere the command simply runs. `subprocess_run` starts this file by its path and
without site-packages, because every trial pays for it.
"""

from __future__ import annotations

import os
import sys

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9


def main(argv: list[str]) -> None:
    """Become `argv[1:]`, on behalf of the process whose id is `argv[0]`. Does not return."""
    parent, command = int(argv[0]), argv[1:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)
    try:
        os.execvp(command[0], command)  # noqa: S606 - argv comes as a list, no shell
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        os._exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
