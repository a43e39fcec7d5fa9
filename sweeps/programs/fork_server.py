"""Process that forks a program's processes with its imports done: `python -m sweeps.programs.fork_server …`.

`warm_start` starts it beside a worker and is its only client. The server imports what the program imports,
then forks one process at a time, each guarded by `parent_death` like one that is started by its command: it
leads a session, its output goes to the log, it dies with the worker, and its exit status is passed on. The
server runs no thread and opens no device, since neither survives a fork. Linux only.

Messages are packets of words with NUL between them. To the server: `run COUNT NAME=VALUE… ARGUMENT…` with the
log's file descriptor, and `signal NUMBER`. From the server: `ready MIB` or `refused WHY`; `started`,
`stale FILE` or `failed WHY`; `ended STATUS`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeps.programs import parent_death
from sweeps.text.counted import counted

MAX_PACKET = 1024 * 1024
_TO_ALL = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that some engines send to every process of a job: the program and the worker decide."""
_TASKS, _STATM, _STAT = Path("/proc/self/task"), Path("/proc/self/statm"), Path("/proc/self/stat")
_ARG_START = 48 - 3  # proc_pid_stat(5), counted from the field after the name

ROOM = " " * 8192
"""Argument that makes room for the title of a forked process, which may be longer than the server's."""


@dataclass(frozen=True)
class Request:
    """Process to fork: its arguments, and variables to add to the environment."""

    environment: Mapping[str, str]
    arguments: Sequence[str]


def encode(*words: str | int) -> bytes:
    """Return the packet of some words, none of which may have a NUL."""
    return b"\0".join(os.fsencode(str(word)) for word in words)


def decode(packet: bytes) -> list[str]:
    """Return the words of a packet."""
    return [os.fsdecode(word) for word in packet.split(b"\0")]


def main(argv: Sequence[str]) -> None:
    """Serve until the worker closes the channel; in a forked process, run the program.

    Args:
        argv: file descriptor of the channel, the worker's process id, the program's module, the module that
            preloads it, `ROOM`, and arguments that the program's processes have in common.
    """
    descriptor, worker, program, preloading, _, *common = argv
    parent_death.signal_at_death_of(int(worker), signal.SIGKILL)
    parent_death.adopt_orphans()  # of a guard that its program kills
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in _TO_ALL}
    channel = socket.socket(fileno=int(descriptor))
    preload = importlib.import_module(preloading)
    problem: str = preload.preload(common) or _running_threads()
    if problem:
        channel.send(encode("refused", problem))
        return
    gc.collect()
    gc.freeze()  # a collection would write to pages that the forked processes share
    server = _Server(channel, _versions(preload.data_files()), handlers)
    resident = int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    channel.send(encode("ready", resident // 2**20))
    request = server.serve()
    if request is None:
        os._exit(0)  # a normal exit would spend a second on unloading torch
    os.environ.update(request.environment)
    command = [sys.executable, "-P", "-m", program, *request.arguments]
    if preload.must_start_cold(request.arguments):
        os.execv(command[0], command)  # noqa: S606 - argv comes as a list, no shell
    set_title(command)
    sys.argv = [program, *request.arguments]
    runpy.run_module(program, run_name="__main__", alter_sys=True)


@dataclass
class _Server:
    """Loop of the server.

    Args:
        versions: of the files that this process has read.
        handlers: of the signals that this process ignores, for what it forks.
    """

    channel: socket.socket
    versions: Mapping[str, tuple[int, int]]
    handlers: Mapping[signal.Signals, Any]
    guard: int = field(default=0, init=False)
    """Process id of the forked process's guard; 0 if there is none."""
    alive: int = field(default=-1, init=False)
    """Read end of a pipe whose other end the guard alone holds open."""

    def serve(self) -> Request | None:
        """Answer the worker; return None when it is gone, and the request in a forked process."""
        while True:
            # Not select(): the channel has the number that it has in the worker, which may be above 1023.
            events = select.poll()
            for descriptor in (self.channel.fileno(), *([self.alive] if self.guard else ())):
                events.register(descriptor, select.POLLIN)
            ready = [descriptor for descriptor, _ in events.poll()]
            if self.alive in ready:
                self._end()
            elif (packet := socket.recv_fds(self.channel, MAX_PACKET, 1))[0]:
                verb, *words = decode(packet[0])
                if verb == "signal":
                    self._signal(signal.Signals(int(words[0])))
                elif (request := self._run(words, packet[1][0])) is not None:
                    return request
            else:
                self._signal(signal.SIGKILL)
                return None

    def _run(self, words: Sequence[str], log: int) -> Request | None:
        """Fork a guard, which forks the process; return the request in that process, None here."""
        count, variables, arguments = int(words[0]), words[1:], words[1 + int(words[0]) :]
        if changed := [name for name, version in self.versions.items() if _version(name) != version]:
            os.close(log)
            self.channel.send(encode("stale", changed[0]))
            return None
        server, pipe = os.getpid(), os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            for descriptor in (*pipe, log):
                os.close(descriptor)
            self.channel.send(encode("failed", str(error)))
            return None
        if pid == 0:
            self._become_guarded(server, log, pipe)
            return Request(dict(word.split("=", 1) for word in variables[:count]), arguments)
        self.guard, self.alive = pid, pipe[0]
        os.close(pipe[1])
        os.close(log)
        os.read(self.alive, 1)  # from here on it has a process group, which a signal can be sent to
        self.channel.send(encode("started"))
        return None

    def _become_guarded(self, server: int, log: int, pipe: tuple[int, int]) -> None:
        """Set this fork up like a started command: the guard stays in this call, its child returns."""
        os.setsid()
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        self.channel.close()  # at its end the worker sees the server's death
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in enumerate((nothing, log, log)):
            os.dup2(source, target)
        reader, writer = pipe
        for descriptor in (nothing, log, reader):
            os.close(descriptor)
        os.write(writer, b"\n")
        parent_death.fork_guarded(server)
        os.close(writer)

    def _end(self) -> None:
        """Kill what the forked process has left in its group, and report its status."""
        os.waitid(os.P_PID, self.guard, os.WEXITED | os.WNOWAIT)  # not reaped yet: its id cannot be reused
        self._signal(signal.SIGKILL)
        _, status = os.waitpid(self.guard, 0)
        parent_death.kill_descendants(os.getpid())
        os.close(self.alive)
        self.guard, self.alive = 0, -1
        self.channel.send(encode("ended", os.waitstatus_to_exitcode(status)))

    def _signal(self, signum: signal.Signals) -> None:
        if self.guard:
            if signum == signal.SIGKILL:
                parent_death.kill_descendants(self.guard)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.guard, signum)


def set_title(words: Sequence[str]) -> None:
    """Show these words as the arguments of this process (`ps`, `nvidia-smi`), as many as there is room for.

    A forked process shows those of the server. The kernel reads them from where it put the arguments at the
    start, which Python does not use any more.
    """
    try:
        start, end = map(int, _STAT.read_text().rpartition(")")[2].split()[_ARG_START : _ARG_START + 2])
    except (OSError, ValueError):
        return
    if (size := end - start) <= 0:
        return
    text = b"\0".join(map(os.fsencode, words))[: size - 1]
    ctypes.memmove(start, text.ljust(size, b"\0"), size)  # the last byte is 0: else the kernel reads on


def _running_threads() -> str:
    """Return why this process must not fork, "" if it may: threads that no library ends before a fork.

    A first fork shows them: OpenBLAS starts threads when it is loaded, ends them before a fork, and starts
    them again when it computes.
    """
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    count = len(os.listdir(_TASKS)) - 1  # noqa: PTH208 - nothing but their number
    return f"its imports leave {counted(count, 'thread')} running" if count else ""


def _versions(more: Iterable[Path]) -> dict[str, tuple[int, int]]:
    """Return time of change and size of each file that has been imported, and of others, by their names."""
    imported = (vars(module).get("__file__") for module in list(sys.modules.values()))
    names = {os.fspath(name) for name in (*imported, *more) if name}
    return {name: version for name in names if (version := _version(name)) is not None}


def _version(name: str) -> tuple[int, int] | None:
    try:
        status = os.stat(name)  # noqa: PTH116 - of thousands of files
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


if __name__ == "__main__":
    main(sys.argv[1:])
