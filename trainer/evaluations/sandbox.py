"""A program that nobody has read, run with limits on time, memory, files, processes, and without a network.

The parent starts this file as a script of its own, which takes the rights away and then becomes the program.
Limits of the kernel (setrlimit) hold everywhere. Where namespaces are permitted, there is no network, all
files but those of its folder are read-only, and all of its processes end with it (namespaces(7)).
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Literal

End = Literal["exited", "timeout", "limit"]
NOBODY = 65534
_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = (
    0x20000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = (
    1,
    2,
    4,
    8,
    32,
    4096,
    16384,
    1 << 18,
)
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_POLL_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on a program.

    Args:
        seconds: of the clock, and of the processor for each process.
        memory: bytes of address space, of each process.
        disk: bytes in its folder, and in any one file.
        processes: at once; for a user who is not root, beside those that the user has already.
    """

    seconds: float = 10.0
    memory: int = 2 * 2**30
    disk: int = 64 * 2**20
    processes: int = 64


@dataclass(frozen=True, kw_only=True)
class Ended:
    """End of a program.

    Args:
        end: by itself or by a signal; at the end of its time; or over the limit on its folder.
        status: its exit status, 128 plus the number of a signal that ended it.
        output: the first bytes of what it wrote to standard output and error.
    """

    end: End
    status: int
    output: str

    @property
    def succeeded(self) -> bool:
        """Return whether it ended by itself, with status 0."""
        return self.end == "exited" and self.status == 0


def run(argv: list[str], folder: Path, limits: Limits, *, shown: int = 4096) -> Ended:
    """Run a program in a folder, and wait until it and all that it started have ended.

    Args:
        argv: the program, by its absolute path, and its arguments.
        folder: its working directory, the only one that it may write to, if namespaces are permitted.
        limits: that it has.
        shown: bytes of its output that are returned.
    """
    if os.getuid() == 0:
        folder.chmod(0o777)  # the program is nobody
    order = json.dumps({"argv": argv, "folder": str(folder), "limits": asdict(limits)})
    output = folder / ".output"
    with output.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, order],
            cwd=folder,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
        try:
            end = _watched(process, folder, limits)
        finally:
            _end(process, folder)
    status = process.returncode if process.returncode >= 0 else 128 - process.returncode
    with output.open("rb") as stream:
        text = stream.read(shown).decode("utf-8", errors="replace")
    output.unlink()
    return Ended(end=end, status=status, output=text)


@cache
def isolated() -> bool:
    """Return whether namespaces are permitted here: a program then has no network."""
    here = str(Path(__file__).parent)
    code = f"import sys; sys.path[:0] = [{here!r}]; import sandbox; sandbox.separate('/tmp')"
    command = [sys.executable, "-I", "-S", "-c", code]
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def _watched(process: subprocess.Popen[bytes], folder: Path, limits: Limits) -> End:
    deadline = time.monotonic() + limits.seconds
    while process.poll() is None:
        if time.monotonic() > deadline:
            return "timeout"
        if _size(folder) > limits.disk:
            return "limit"
        time.sleep(_POLL_S)
    return "exited"


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # gone meanwhile
                total += Path(parent, name).lstat().st_size
    return total


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Kill the session, with it the namespace of processes, and without one what left the session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    while left := [pid for pid in _processes() if _has_folder(pid, folder)]:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def _processes() -> list[int]:
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal()]


def _has_folder(pid: int, folder: Path) -> bool:
    """Return whether a process, other than this and a dead one, was started with the folder for its files."""
    try:
        return f"TMPDIR={folder}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def separate(folder: str) -> None:
    """Leave the namespaces of the parent: no network, other processes unseen, read-only files elsewhere.

    Raises:
        OSError: it is not permitted here.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    spaces = _CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWPID | _CLONE_NEWNET
    user, group = os.getuid(), os.getgid()
    if libc.unshare(spaces | (0 if user == 0 else _CLONE_NEWUSER)) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    if user != 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path(f"/proc/self/{name}").write_text(text, encoding="ascii")

    def mount(source: str | None, target: str, flags: int) -> bool:
        named = None if source is None else source.encode()
        return bool(libc.mount(named, target.encode(), None, flags, None) == 0)

    if not (mount(None, "/", _MS_REC | _MS_PRIVATE) and mount(folder, folder, _MS_BIND)):
        raise OSError(ctypes.get_errno(), "mount")
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        point, options = line.split(" ")[4:6]
        if point != folder:
            kept = {"nosuid": _MS_NOSUID, "nodev": _MS_NODEV, "noexec": _MS_NOEXEC}
            flags = sum(flag for name, flag in kept.items() if name in options.split(","))
            mount(None, point, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | flags)  # some cannot be
    os.chdir(folder)  # the mount, not what it hides


def _become(argv: list[str], folder: str, limits: Limits) -> None:
    """Give up rights and become the program; with namespaces, below the first process of its own."""
    was_root = os.getuid() == 0
    libc = ctypes.CDLL(None)
    with suppress(OSError):
        separate(folder)
        _leave_to_child()
        # The first process of the namespace: with it all others end, and it ends with the one that waits.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _leave_to_child()  # as signals have no effect on the first one unless it handles them
    _limit(resource.RLIMIT_CPU, max(1, round(limits.seconds)))
    _limit(resource.RLIMIT_AS, limits.memory)
    _limit(resource.RLIMIT_FSIZE, limits.disk)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NPROC, limits.processes if was_root else limits.processes + _processes_of_user())
    if was_root:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.execv(argv[0], argv)  # noqa: S606 - to start it is what this is for


def _leave_to_child() -> None:
    """Go on in a child; the parent waits for it and ends with its status."""
    if child := os.fork():
        ended = 0
        while ended != child:  # others may be left to the first process of a namespace
            ended, status = os.wait()
        os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def _limit(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (most, most))


def _processes_of_user() -> int:
    return sum(_owner(pid) == os.getuid() for pid in _processes())


def _owner(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


if __name__ == "__main__":
    _order = json.loads(sys.argv[1])  # noqa: TID251 - `-S` knows no other package
    _become(_order["argv"], _order["folder"], Limits(**_order["limits"]))
