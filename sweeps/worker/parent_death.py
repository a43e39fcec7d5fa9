"""Run a command that dies with the worker that started it: `python guard.py PARENT_PID COMMAND…`.

A small parent between the worker and the command. It leads the process group, passes the command's end on,
and asks the kernel to be told when the worker dies; then it kills the whole group, whatever the command
started in it. Without it, a worker that is killed with SIGKILL would leave its trainer behind, computing for
a trial that somebody else has taken over. Only Linux can do this; elsewhere the command simply runs.
`subprocess_run` starts this file by its path and without site-packages, because every trial pays for it.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PARENT_DIED = signal.SIGUSR2
_NOT_FOUND = 127


def main(argv: list[str]) -> NoReturn:
    """Run `argv[1:]` on behalf of the process whose id is `argv[0]`, and end as it ends."""
    parent, command = int(argv[0]), argv[1:]
    if sys.platform == "linux":
        import ctypes

        signal.signal(_PARENT_DIED, lambda *_: os.killpg(0, signal.SIGKILL))
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(_PARENT_DIED), 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)
    child = os.fork()
    if child == 0:
        _become(command)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # they go to the whole group; the command decides
    _, status = os.waitpid(child, 0)
    _end_like(status)


def _become(command: list[str]) -> NoReturn:
    """Turn into the command, with the signals as a shell would leave them: Python ignores two of them."""
    for signum in (signal.SIGPIPE, signal.SIGXFSZ, _PARENT_DIED):
        signal.signal(signum, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - argv comes as a list, no shell
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(_NOT_FOUND)


def _end_like(status: int) -> NoReturn:
    """End with the wait status of the command, a signal by the same signal, without a second core dump."""
    if not os.WIFSIGNALED(status):
        os._exit(os.waitstatus_to_exitcode(status))
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signum = os.WTERMSIG(status)
    if signum != signal.SIGKILL:
        signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
    os._exit(128 + signum)


if __name__ == "__main__":
    main(sys.argv[1:])
