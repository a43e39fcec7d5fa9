"""Warm starts: the trainer's processes are forked from one that has done its imports, see `fork_server`.

A new server is started when environment, folder, limits or cores change, since forked processes inherit them
from the server. Where forking does not work, each program is started by its command.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from sweeps.errors import CannotStart
from sweeps.programs.fork_server import MAX_PACKET, ROOM, decode, encode
from sweeps.programs.process import Child, describe_exit, end_of

log = logging.getLogger(__name__)

VARIABLE = "STAGESWEEP_WARM_START"
"""Environment variable: 0 starts each trial's program by its command, 1 (the default) forks the trainer's."""

PRELOAD_S = 300.0
"""Limit for the imports of a server; a trial's program starts by its command then."""
ANSWER_S = 30.0
"""Limit for the answer to a request: some milliseconds on a machine that is not busy."""
MAX_DEATHS = 3
"""After so many servers have died, the worker starts all programs by their command."""
_POLL_S = 0.1
_NOT_OURS = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")
"""Variables that threadpoolctl sets in this process when Ax imports it, in the middle of a worker's life."""
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


def enabled(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this machine and its environment have warm starts. Raises CannotStart."""
    chosen = environment.get(VARIABLE, "")
    if chosen not in ("", "0", "1"):
        raise CannotStart(
            f"{VARIABLE} is {chosen!r} in the environment; write 0 (each trial starts a new Python) or 1 "
            "(trials are forked from a process that has the trainer loaded)"
        )
    return chosen != "0" and sys.platform == "linux"


class WarmStarts:
    """Quick start of one program's processes: they are forked from a server, which is replaced as needed.

    To be used by the thread that makes it: at the thread's end the kernel ends the server.

    Args:
        program: module that the processes run, as `python -P -m` does.
        preload: module with the functions that `fork_server` calls: preload, data_files, must_start_cold.
        common: arguments that most processes have in common.
    """

    def __init__(self, program: str, *, preload: str, common: Sequence[str] = ()) -> None:
        self._command = [sys.executable, "-P", "-m", program]
        self._argv = [program, preload, ROOM, *common]
        self._server: _Server | None = None
        self._deaths = 0
        self._is_given_up = False

    def __enter__(self) -> WarmStarts:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server and any process that it has forked."""
        if self._server is not None:
            self._server.kill()
            self._server = None

    def begin(self) -> None:
        """Start the server in the background, unless a suitable one runs or servers do not work here."""
        server = self._server
        if server is not None and (server.has_died() or server.inherited != _inheritance()):
            if server.has_died():
                self._count_death(server)
            self.close()
        if self._server is None and not self._is_given_up:
            try:
                self._server = _Server(self._argv)
            except OSError as error:
                self._give_up(str(error))

    def start(
        self,
        argv: Sequence[str],
        log_file: IO[bytes],
        env: Mapping[str, str],
        should_stop: Callable[[], bool],
    ) -> Child | None:
        """Fork a process, and return None where it has to be started by its command.

        Args:
            env: variables to add to this process's environment.
            should_stop: polled while the server imports.
        """
        if argv[: len(self._command)] != self._command:
            return None
        words = [*(f"{name}={value}" for name, value in env.items()), *argv[len(self._command) :]]
        for _ in range(2):  # the second for a server that was stale, or has died unnoticed
            self.begin()
            server = self._server
            if server is None or not self._is_ready(server, should_stop):
                return None
            try:
                verb, *detail = server.request(len(env), words, log_file)
            except ValueError as error:
                log.info("this trial starts a new Python: %s", error)
                return None
            except OSError as error:
                log.info("the process that trials are forked from does not answer: %s", error)
                self._count_death(server)
                self.close()
                continue
            if verb == "started":
                return server
            log.info("trials are forked from a new process: %s", " ".join((verb, *detail)))
            self.close()
        return None

    def _is_ready(self, server: _Server, should_stop: Callable[[], bool]) -> bool:
        """Wait for the server's imports; return False if they fail or the worker has to stop."""
        waited = 0.0
        while not server.is_ready:
            if should_stop():
                return False
            if waited > PRELOAD_S:
                self._give_up(f"its imports take longer than {PRELOAD_S:.0f} s")
                return False
            if (answer := server.receive(_POLL_S)) is None:
                waited += _POLL_S
                continue
            match answer:
                case ["ready", mib]:
                    server.is_ready = True
                    log.info("trials are forked from process %d, which takes %s MiB", server.pid, mib)
                case ["refused", why]:
                    self._give_up(why)
                    return False
                case _ if server.was_killed():
                    self._count_death(server)
                    self.close()
                    return False
                case _:
                    self._give_up(f"its imports failed: {server.last_line()}")
                    return False
        return True

    def _count_death(self, server: _Server) -> None:
        self._deaths += 1
        if self._deaths >= MAX_DEATHS:
            self._give_up(f"{self._deaths} processes that trials were forked from have died")

    def _give_up(self, why: str) -> None:
        log.info("each trial starts a new Python: %s", why)
        self._is_given_up = True
        self.close()


class _Server:
    """Running `fork_server`, and as a `process.Child` what it has forked last. Raises OSError."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.inherited = _inheritance()
        self.is_ready = False
        self._status: int | None = None
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `kill`
        numbers = [str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "sweeps.programs.fork_server", *numbers, *argv],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Return the server's process id."""
        return self._process.pid

    def has_died(self) -> bool:
        """Return whether the server has ended, though nobody has asked it to."""
        return self._process.poll() is not None

    def was_killed(self) -> bool:
        """Return whether the server was ended by SIGKILL, once its channel is closed."""
        return self._process.wait() == -signal.SIGKILL

    def kill(self) -> None:
        """End the server; a process that it has forked is killed by its guard then."""
        self._process.kill()
        self._process.wait()
        self._channel.close()
        self._output.close()

    def last_line(self) -> str:
        """Return the last line that the server has written, or how it ended."""
        status = self._process.wait()
        self._output.seek(0)
        return end_of(self._output.read(), 1) or describe_exit(status)

    def receive(self, timeout: float | None) -> list[str] | None:
        """Return the next message of the server; none of its words if it has died, None after `timeout` s."""
        self._channel.settimeout(timeout)
        try:
            packet = self._channel.recv(MAX_PACKET)
        except TimeoutError:
            return None
        except ConnectionError:
            return []
        return decode(packet) if packet else []

    def request(self, count: int, words: Sequence[str], log_file: IO[bytes]) -> list[str]:
        """Ask for a process, and return the answer.

        Args:
            count: how many of the words are variables of its environment; the others are its arguments.

        Raises:
            OSError: the server is gone, or does not answer.
            ValueError: the words cannot be sent.
        """
        self._status = None
        if any("\0" in word for word in words):
            raise ValueError("an argument or a variable has a NUL")
        packet = encode("run", count, *words)
        try:
            if len(packet) > MAX_PACKET:
                raise OSError(errno.EMSGSIZE, "beyond the limit")
            socket.send_fds(self._channel, [packet], [log_file.fileno()])
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
            raise ValueError(f"its arguments and variables take {len(packet)} bytes") from None
        while (answer := self.receive(ANSWER_S)) is not None:
            if not answer:
                raise ConnectionResetError("it has died")
            if answer[0] != "ended":  # of the process before
                return answer
        raise TimeoutError(f"no answer for {ANSWER_S:.0f} s")

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status of the forked process, SIGKILL's if the server was killed.

        Raises:
            TimeoutExpired: it still runs after `timeout` seconds.
        """
        while self._status is None:
            answer = self.receive(timeout)
            if answer is None:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0)
            self._status = int(answer[1]) if answer else -signal.SIGKILL
        return self._status

    def signal_group(self, signum: signal.Signals) -> None:
        """Send a signal to the forked process and all of its group, unless they have ended."""
        if self._status is None:
            with contextlib.suppress(OSError):
                self._channel.send(encode("signal", int(signum)))


def _inheritance() -> tuple[object, ...]:
    """Return what a forked process would inherit from its server, and a started one from this process."""
    limits = [resource.getrlimit(number) for number in _LIMITS]
    try:
        folder = os.getcwd()  # noqa: PTH109 - as a started process has it
    except OSError:
        folder = ""
    variables = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
    return variables, folder, limits, os.sched_getaffinity(0)
