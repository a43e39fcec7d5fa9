"""Untrusted code in a sandbox, built on bubblewrap: what the hook `cpp` compiles and runs.

`run` starts this file as a script, the supervisor, and reads nothing but descriptors that it opened itself:

    trainer        run(): reads output and report
    └ supervisor   not root; a tmpfs limited in bytes and in files, in a mount namespace of its own; the clock
      └ bwrap      namespaces, a read-only tree without secrets, no capabilities, the filter of system calls
        └ program  under setrlimit

Each ends with the one above it, however that ends, and the tmpfs with the last. On a machine that is itself
the sandbox there is no bubblewrap: the program is the supervisor's child, with the same limits and filter, in
a folder that the supervisor removes.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import selectors
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, Literal, NoReturn

End = Literal["exited", "timeout", "limit"]
NOBODY = 65534

SYSTEM = (
    *("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/etc/alternatives", "/etc/ld.so.cache"),
    *("/nix/store", "/gnu/store"),
)
"""What a compiler of the system needs to see."""
LIBRARIES = (
    *("/lib", "/lib32", "/lib64", "/libx32", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32"),
    *("/usr/local/lib", "/usr/local/lib64", "/etc/ld.so.cache", "/nix/store", "/gnu/store"),
)
"""What a program needs to see that is linked to the system's libraries: no shell, no other program."""

_GRACE_S = 30.0
"""Seconds that the trainer waits longer than the supervisor: fork bombs end slowly on a busy machine."""
_SCRATCH = "/sys"
"""Where the supervisor mounts the tmpfs, in its own namespace: it exists, and bubblewrap can do without."""

_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE = 2, 4, 1 << 14, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = (
    *(1, 4, 22, 36, 38),
)

# Audit architecture, and which of the two numbers below is its own. 32-bit calls have another architecture.
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
# System calls that neither a compiler nor a computation needs, by their numbers on x86-64 and on arm64: they
# reach out of the sandbox, widen the kernel's surface, or take memory that no limit counts.
DENIED = {
    **{"socket": (41, 198), "socketpair": (53, 199)},
    **{"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271)},
    **{"kcmp": (312, 272), "pidfd_getfd": (438, 438), "process_madvise": (440, 440)},
    **{"mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51)},
    **{"open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431)},
    **{"fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442)},
    **{"swapon": (167, 224), "swapoff": (168, 225), "unshare": (272, 97), "setns": (308, 268)},
    **{"keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218)},
    **{"bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282)},
    **{"io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427)},
    **{"io_setup": (206, 0), "memfd_create": (319, 279), "memfd_secret": (447, 447)},
    **{"shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180)},
    **{"init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106)},
    **{"kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142)},
    **{"sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170)},
    **{"clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171)},
    **{"acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443), "syslog": (103, 116)},
    **{"name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262)},
    **{"lookup_dcookie": (212, 18), "vhangup": (153, 58), "personality": (135, 92)},
    **{"mbind": (237, 235), "move_pages": (279, 239)},
    **{"migrate_pages": (256, 238), "set_mempolicy": (238, 237)},
}
CLONE, CLONE3, IOCTL = (56, 220), (435, 435), (16, 29)
_LAST_KNOWN = 462
"""`mseal`, of Linux 6.10: later calls, and those of x32, do not exist for the program."""
_NAMESPACE_FLAGS = 0x7E020000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # they type into the terminal


class SandboxError(Exception):
    """No verdict about a program could be had; not a fault of the program."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on a program.

    Args:
        seconds: of the clock, and of the processor for each process.
        memory: bytes of address space, of each process.
        disk: bytes of all its files together, in any one file, and of its output.
        files: that it may have, folders and links included.
        processes: at once, threads included.
    """

    seconds: float = 10.0
    memory: int = 2 * 2**30
    disk: int = 64 * 2**20
    files: int = 4096
    processes: int = 64


@dataclass(frozen=True, kw_only=True)
class Ended:
    """End of a program.

    Args:
        end: by itself or by a signal; at the end of its time; or over the limit on its output.
        status: its exit status, 128 plus the number of a signal that ended it.
        output: the first bytes of what it wrote to standard output and error.
    """

    end: End
    status: int
    output: str

    @property
    def succeeded(self) -> bool:
        return self.end == "exited" and self.status == 0


def run(
    argv: Sequence[str],
    limits: Limits,
    *,
    bwrap: str | None,
    tree: Sequence[str] = SYSTEM,
    program: IO[bytes] | None = None,
    given: IO[bytes] | None = None,
    kept: IO[bytes] | None = None,
    shown: int = 4096,
) -> Ended:
    """Run a program in an empty folder, until it and all that it started have ended and the folder is gone.

    Args:
        argv: a program by its absolute path, and its arguments.
        bwrap: bubblewrap; None: the machine itself is the sandbox.
        tree: files and folders that the program sees, read-only, in place of the machine's.
        program: an executable that is run in place of the first of `argv`; it cannot change it.
        given: its standard input.
        kept: a file that gets its standard output, up to `limits.disk`.
        shown: bytes of its output that are returned, less what goes to `kept`.

    Raises:
        SandboxError: it could not be started in the sandbox, or nothing is known of its end.
        OSError: no process can be started here.
    """
    for file in (program, given):
        if file is not None:
            file.seek(0)  # the supervisor's descriptors share the position
    report, reports = os.pipe()
    order = {
        **{"argv": list(argv), "limits": asdict(limits), "bwrap": bwrap, "tree": list(tree)},
        **{"program": program.fileno() if program else None, "report": reports},
        **{"parent": os.getpid(), "temporary": tempfile.gettempdir()},
    }
    try:
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, json.dumps(order)],
                cwd="/",
                env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
                stdin=given or subprocess.DEVNULL,
                stdout=kept or subprocess.PIPE,
                stderr=subprocess.PIPE if kept else subprocess.STDOUT,
                pass_fds=(reports, *((program.fileno(),) if program else ())),
                start_new_session=True,
            )
        finally:
            os.close(reports)
        stream = process.stderr if kept else process.stdout
        assert stream is not None  # noqa: S101 - it is a pipe
        try:
            output, end = _read_output(stream.fileno(), limits, shown)
        finally:
            _end_supervisor(process)
            stream.close()
        text = output.decode("utf-8", errors="replace")
        if end != "exited":
            return Ended(end=end, status=128 + signal.SIGKILL, output=text)
        # One write of the supervisor, which has ended: all of it is here, or nothing ever comes.
        found = os.read(report, 4096).decode("utf-8", errors="replace")
    finally:
        os.close(report)
    word, _, rest = found.partition(" ")
    if word == "exited":
        return Ended(end="exited", status=int(rest), output=text)
    if word == "timeout":
        return Ended(end="timeout", status=128 + signal.SIGKILL, output=text)
    raise SandboxError(" ".join((rest or text or f"the supervisor ended with {process.returncode}").split()))


def _read_output(stream: int, limits: Limits, shown: int) -> tuple[bytes, End]:
    """Return the first bytes of the output, and whether it ended, ran out of time or exceeded the limit.

    The supervisor has the pipe open, too, and ends last: the end of the output is the end of all processes.
    """
    first, size = b"", 0
    deadline = time.monotonic() + limits.seconds + _GRACE_S
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if selector.select(left):
                if not (chunk := os.read(stream, 1 << 16)):
                    return first, "exited"
                first += chunk[: max(0, shown - len(first))]
                size += len(chunk)
                if size > limits.disk:
                    return first, "limit"
    return first, "timeout"


def _end_supervisor(process: subprocess.Popen[bytes]) -> None:
    """End a supervisor, which ends all below it; if it does not, the kernel does when it is killed."""
    if process.poll() is None:
        try:
            # At the end of its pipe it is about to exit; in all other cases it has been asked to.
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


# The supervisor: a process of its own, without the trainer and its packages.


class _Over(BaseException):
    """The time is over (SIGALRM), or the trainer has ended or asks for an end (SIGTERM)."""


def _raise_over(number: int, frame: FrameType | None) -> NoReturn:
    for each in (signal.SIGALRM, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # once: a second one would interrupt the end
    raise _Over(number)


def _supervise(order: dict[str, Any]) -> NoReturn:
    """Run the program, end all that is left of it, and report how it ended."""
    report, limits = order["report"], Limits(**order["limits"])
    os.set_inheritable(report, False)
    signal.signal(signal.SIGALRM, _raise_over)
    signal.signal(signal.SIGTERM, _raise_over)
    libc = ctypes.CDLL(None, use_errno=True)
    folder = None
    try:
        if order["bwrap"] is None:
            folder = Path(tempfile.mkdtemp(prefix="cpp-", dir=order["temporary"]))
        _leave_root(libc, folder)
        if folder is None:
            copied = 0 if order["program"] is None else os.fstat(order["program"]).st_size
            _mount_tmpfs(libc, limits, program_size=copied)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # after the change of user, which would undo it
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans become children of this process, which ends them
        if os.getppid() != order["parent"]:
            raise _Over(signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, limits.seconds)
        line = _run_below(libc, order, limits, folder)
    except _Over as over:
        line = "timeout" if over.args[0] == signal.SIGALRM else "ended"
    except Exception as error:  # noqa: BLE001 - the trainer must get a line
        line = f"failed {error}"
    for each in (signal.SIGALRM, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    _end_children()
    if folder is not None:
        with suppress(OSError):
            folder.chmod(0o700)
            os.spawnvp(os.P_WAIT, "rm", ["rm", "-rf", "--", str(folder)])  # noqa: S606 - at any depth
    os.write(report, line.encode("utf-8", errors="replace")[:4096])
    os._exit(0)


def _leave_root(libc: Any, folder: Path | None) -> None:
    """Become nobody, if this is root. Python's own files may be out of reach from here on: import nothing."""
    if os.getuid() != 0:
        return
    try:
        if folder is not None:
            os.chown(folder, NOBODY, NOBODY)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError as error:
        raise SandboxError(f"root cannot become the user {NOBODY} here: {error.strerror}") from error
    libc.prctl(_PR_SET_DUMPABLE, 1)  # else /proc/self stays root's, and no map of users can be written


def _mount_tmpfs(libc: Any, limits: Limits, *, program_size: int) -> None:
    """Mount what the program may write to: bubblewrap's own tmpfs has no limit on files, or none at all."""
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS) != 0:
        raise SandboxError(f"no user namespace may be made: {os.strerror(ctypes.get_errno())}")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        Path(f"/proc/self/{name}").write_text(text, encoding="utf-8")
    # Pages are counted in full. Four more files: its root, the folder, the program, and one to spare.
    size = limits.disk + program_size + 2**16
    options = f"size={size},nr_inodes={limits.files + 4},mode=0700"
    for source, target, kind, flags, data in (
        ("none", "/", None, _MS_REC | _MS_PRIVATE, None),
        ("tmpfs", _SCRATCH, b"tmpfs", _MS_NOSUID | _MS_NODEV, options.encode()),
    ):
        if libc.mount(source.encode(), target.encode(), kind, flags, data) != 0:
            raise SandboxError(f"a user namespace may mount nothing: {os.strerror(ctypes.get_errno())}")


def _run_below(libc: Any, order: dict[str, Any], limits: Limits, folder: Path | None) -> str:
    """Run the program below this process; return the line that reports its end."""
    scratch = folder or Path(_SCRATCH)
    work, argv = scratch / "work", order["argv"]
    work.mkdir()
    if order["program"] is not None:
        copy = scratch / "program"
        with os.fdopen(order["program"], "rb") as given, copy.open("wb") as file:
            shutil.copyfileobj(given, file)
        copy.chmod(0o555)
        argv = [str(copy) if folder else "/program", *argv]
    filter_ = _filter()
    environment = {"PATH": os.environ["PATH"], "LANG": os.environ["LANG"]}
    place = str(work) if folder else "/tmp"  # noqa: S108 - of the sandbox
    environment |= {"TMPDIR": place, "HOME": place}
    # Since Linux 5.14, what is in namespaces of its own is counted by itself; else with all of its user.
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    alone = folder is None and release is not None and (int(release[1]), int(release[2])) >= (5, 14)
    processes = limits.processes
    for pid, _, threads in () if alone else _processes():
        with suppress(OSError):  # gone meanwhile
            if Path(f"/proc/{pid}").stat().st_uid == os.getuid():
                processes += threads

    def limit() -> None:
        parent = os.getppid()
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        with suppress(OSError):  # if memory runs out, the kernel ends this process first
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
        for which, most in (
            (resource.RLIMIT_CPU, max(1, round(limits.seconds))),
            (resource.RLIMIT_AS, limits.memory),
            (resource.RLIMIT_FSIZE, limits.disk),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_NOFILE, 256),
            (resource.RLIMIT_NPROC, processes),
        ):
            _, hard = resource.getrlimit(which)
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(which, (most, most))
        if folder is not None:
            libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            pointer = ctypes.create_string_buffer(filter_)
            program = struct.pack("HxxxxxxP", len(filter_) // 8, ctypes.addressof(pointer))
            if libc.prctl(_PR_SET_SECCOMP, 2, program) != 0:  # SECCOMP_MODE_FILTER
                raise OSError(ctypes.get_errno(), "no filter of system calls may be set")

    if folder is not None:
        # Not by `with`, which would wait for it though its time is over.
        status = subprocess.Popen(argv, cwd=work, env=environment, preexec_fn=limit).wait()
        return f"exited {status if status >= 0 else 128 - status}"

    filtered, filters = os.pipe()
    os.write(filters, filter_)
    os.close(filters)
    begun, begins = os.pipe()
    os.set_blocking(begun, False)
    tree = []
    for path in map(Path, order["tree"]):
        if path.is_symlink():
            tree += ["--symlink", str(path.readlink()), str(path)]
        elif path.exists():
            tree += ["--ro-bind", str(path), str(path)]
    command = [
        *(order["bwrap"], "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *("--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY), "--unshare-ipc", "--unshare-pid"),
        *("--unshare-net", "--unshare-uts", "--hostname", "sandbox", "--unshare-cgroup-try"),
        *("--seccomp", str(filtered), "--json-status-fd", str(begins)),
        *tree,
        *("--dir", "/dev", "--dev-bind", "/dev/null", "/dev/null"),
        *("--dev-bind", "/dev/urandom", "/dev/urandom"),
        *("--bind", str(work), place),
        *(("--ro-bind", str(scratch / "program"), "/program") if order["program"] is not None else ()),
        *("--remount-ro", "/", "--chdir", place, "--", *argv),
    ]
    status = subprocess.Popen(command, env=environment, preexec_fn=limit, pass_fds=(filtered, begins)).wait()
    # Only of a program that was started.
    if b'"exit-code"' not in os.read(begun, 4096):
        return "failed "
    return f"exited {status}"


def _filter() -> bytes:
    """Return the filter of system calls, as a program for the kernel's seccomp(2).

    Raises:
        SandboxError: the processor is another one.
    """
    if os.uname().machine not in _MACHINES:
        raise SandboxError(f"no filter of system calls for {os.uname().machine}, only {', '.join(_MACHINES)}")
    architecture, own = _MACHINES[os.uname().machine]
    load, equal, above, any_bit, give = 0x20, 0x15, 0x25, 0x45, 0x06  # codes of struct sock_filter
    number_at, architecture_at, first_at, second_at = 0, 4, 16, 24  # in struct seccomp_data
    allow, kill, refuse, unknown = 0x7FFF0000, 0x80000000, 0x50000 | 1, 0x50000 | 38  # EPERM, ENOSYS
    # Each is (code, jump if true, jump if false, constant); a jump is the number of instructions to skip.
    program = [
        *((load, 0, 0, architecture_at), (equal, 1, 0, architecture), (give, 0, 0, kill)),
        *((load, 0, 0, number_at), (above, 0, 1, _LAST_KNOWN), (give, 0, 0, unknown)),
        # Its flags are in memory, where no filter can read; libraries then call `clone`.
        *((equal, 0, 1, CLONE3[own]), (give, 0, 0, unknown)),
    ]
    for numbers in DENIED.values():
        program += [(equal, 0, 1, numbers[own]), (give, 0, 0, refuse)]
    program += [
        *((equal, 0, 4, CLONE[own]), (load, 0, 0, first_at), (any_bit, 0, 1, _NAMESPACE_FLAGS)),
        *((give, 0, 0, refuse), (give, 0, 0, allow)),
        *((equal, 0, 4, IOCTL[own]), (load, 0, 0, second_at), (equal, 1, 0, _TIOCSTI)),
        *((equal, 0, 1, _TIOCLINUX), (give, 0, 0, refuse), (give, 0, 0, allow)),
    ]
    return b"".join(struct.pack("HBBI", *each) for each in program)


def _end_children() -> None:
    """End all processes below this one. Orphans become its children (PR_SET_CHILD_SUBREAPER)."""
    while True:
        # Stopped processes still count against the limit, so that a fork bomb cannot make new ones.
        stopped: set[int] = set()
        while new := _descendants() - stopped:
            _signal(new, signal.SIGSTOP)
            stopped |= new
        _signal(stopped, signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def _descendants() -> set[int]:
    below, processes = {os.getpid()}, _processes()
    while new := {pid for pid, parent, _ in processes if parent in below} - below:
        below |= new
    return below - {os.getpid()}


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _processes() -> list[tuple[int, int, int]]:
    """Return number, parent and threads of the machine's processes."""
    found = []
    for each in os.listdir("/proc"):  # noqa: PTH208 - names alone
        if each.isdecimal():
            with suppress(OSError):  # gone meanwhile
                stat = Path(f"/proc/{each}/stat").read_bytes().rpartition(b")")[2].split()
                found.append((int(each), int(stat[1]), int(stat[17])))
    return found


if __name__ == "__main__":
    _supervise(json.loads(sys.argv[1]))  # noqa: TID251 - `-S` knows no other package
