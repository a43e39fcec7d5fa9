"""Launcher for a command that gets SIGTERM when its parent dies: `die_with_parent.py PARENT_PID COMMAND...`.

A Ray worker that is killed would orphan its `sweep worker`; with this the kernel sends that SIGTERM, and it
hands its trial back. Linux only; elsewhere the command simply runs. `runners.tend` starts this file by its
path; the setting survives `exec`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> NoReturn:
    """Replace this process by `argv[1:]`, bound to the parent process whose id is `argv[0]`."""
    parent, command = int(argv[0]), argv[1:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it died before the call above
            os._exit(1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
        signal.signal(number, signal.SIG_DFL)
    os.execvp(command[0], command)  # noqa: S606 - argv comes as a list, no shell


if __name__ == "__main__":
    main(sys.argv[1:])
