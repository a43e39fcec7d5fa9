"""Guard process that ends a command when its worker dies: `python parent_death.py PARENT_PID COMMAND…`.

It stands between the worker and the command, leads the process group and exits with the command's status. It
asks the kernel for a signal at the worker's death and then kills the process group. Without it, a worker that
is killed with SIGKILL would leave its trainer running on a trial that another worker has taken over. Whatever
the command starts ends with it, daemons in sessions of their own included, since the guard adopts them; and a
command that kills its guard dies with it. Only Linux supports this; elsewhere the command simply runs.
`process` starts this file by its path and without site-packages, because every trial pays for its start.
`fork_server` guards what it forks in the same way.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PATIENCE_S, _POLL_S = 1.0, 0.01
"""For processes that were killed to end: one that waits for a disk may not."""
_PARENT_DIED = signal.SIGUSR2
_NOT_FOUND = 127


def main(argv: list[str]) -> NoReturn:
    """Run `argv[1:]` on behalf of the process whose id is `argv[0]`, and end as it ends."""
    fork_guarded(int(argv[0]))
    _become(argv[1:])


def fork_guarded(parent: int) -> None:
    """Fork, and return in the child alone: this process guards it from now on, and ends as it ends.

    The calling process leads its process group. Its Python has no other thread.

    Args:
        parent: id of the process at whose death the process group is killed.
    """
    if sys.platform == "linux":
        signal.signal(_PARENT_DIED, _kill_all)
        signal_at_death_of(parent, _PARENT_DIED)
        adopt_orphans()
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        signal.signal(_PARENT_DIED, signal.SIG_DFL)
        if sys.platform == "linux":
            signal_at_death_of(guard, signal.SIGKILL)
        return
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # they go to the process group; the command decides
    ended, status = os.waitpid(-1, 0)
    while ended != child:  # an orphan that this process has adopted
        ended, status = os.waitpid(-1, 0)
    kill_descendants(guard)
    _end_like(status)


def _kill_all(*_: object) -> None:
    kill_descendants(os.getpid())
    os.killpg(0, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, daemons included. Linux."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants(root: int) -> None:
    """Kill all processes below one that adopts orphans, and wait until they are gone."""
    deadline = time.monotonic() + _PATIENCE_S
    while (found := _descendants(root)) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if root == os.getpid():
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
        time.sleep(_POLL_S)


def _descendants(root: int) -> list[int]:
    """Return the processes below one that run; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")  # noqa: PTH208 - pathlib takes longer to import
    except OSError:
        return []
    for name in filter(str.isdecimal, names):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - as above
                state, parent = file.read().rpartition(b")")[2].split()[:2]  # the name may hold anything
        except (OSError, ValueError):  # it has ended
            continue
        if state not in (b"Z", b"X"):
            children.setdefault(int(parent), []).append(int(name))
    found = list(children.get(root, ()))
    for pid in found:  # grows
        found += children.get(pid, ())
    return found


def signal_at_death_of(parent: int, signum: signal.Signals) -> None:
    """Ask the kernel for a signal at the death of the parent process; exit if it is dead already. Linux."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if os.getppid() != parent:  # it died before prctl
        os._exit(1)


def _become(command: list[str]) -> NoReturn:
    """Exec the command with the signal handlers that a shell would give it: Python ignores two signals."""
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - argv comes as a list, no shell
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(_NOT_FOUND)


def _end_like(status: int) -> NoReturn:
    """Exit with the command's status, or die by the same signal, without a second core dump."""
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
