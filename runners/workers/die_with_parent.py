"""Run a command that is told to go when its parent dies: `python tied.py PARENT_PID COMMAND...`.

A Ray worker that is killed would leave its `sweep worker` behind. The kernel sends that SIGTERM, so the trial
in hand goes back. Only Linux can do this; elsewhere the command simply runs. `tend` starts this file by its
path; `exec` keeps what was asked of the kernel.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> NoReturn:
    """Become `argv[1:]` on behalf of the process whose id is `argv[0]`."""
    parent, command = int(argv[0]), argv[1:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
        signal.signal(number, signal.SIG_DFL)
    os.execvp(command[0], command)  # noqa: S606 - argv comes as a list, no shell


if __name__ == "__main__":
    main(sys.argv[1:])
