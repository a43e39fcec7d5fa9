"""Program in a child process: start, wait, stop, and the end of its log.

The child leads a process group, so that stopping it also stops whatever it started; its output goes to a log
file in the trial's run folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from sweeps.errors import EnvironmentFault
from sweeps.programs import parent_death
from sweeps.text.regular_file import open_regular

LAST_LINES = 50
GRACE_S = 25.0
_POLL_S = 0.1
_CUT_WORD = re.compile(r"\A\S*\s+")
_COLOURS_AND_MOVES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Unstartable(Exception):
    """Command or environment that no process can have, on any machine; the message is one clause."""


class Child(Protocol):
    """Process that leads a process group of its own."""

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status, negative for a signal; raise TimeoutExpired after `timeout` seconds."""

    def signal_group(self, signum: signal.Signals) -> None:
        """Send a signal to its process group, if any of that is left; SIGKILL goes to all that it started."""


class Starter(Protocol):
    """Quicker way to start a process than by its command."""

    def start(
        self,
        argv: Sequence[str],
        log_file: IO[bytes],
        env: Mapping[str, str],
        should_stop: Callable[[], bool],
    ) -> Child | None:
        """Start the process, or return None if that is not possible; see `run` for the arguments."""


def run(
    argv: Sequence[str],
    *,
    log_file: Path,
    env: Mapping[str, str],
    should_stop: Callable[[], bool],
    grace_s: float = GRACE_S,
    warm: Starter | None = None,
) -> int:
    """Run `argv` to its end and return its exit status, negative for a signal (as `subprocess` does).

    When `should_stop()` turns true, or the caller is interrupted, the child gets SIGTERM and, `grace_s`
    seconds later, SIGKILL. Whatever it leaves running is killed, on Linux daemons included.

    Args:
        log_file: to which stdout and stderr are appended.
        env: variables to add to this process's environment.
        should_stop: polled every 0.1 s.
        grace_s: seconds between SIGTERM and SIGKILL.
        warm: tried first, before a process is started by its command.

    Raises:
        EnvironmentFault: this machine cannot start a process (no memory, no disk).
        Unstartable: no machine can, because of what the arguments or the variables are.
    """
    guarded = [sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid()), *argv]
    try:
        with open(log_file, "ab", opener=_open_at_once) as log:
            child = None if warm is None else warm.start(argv, log, env, should_stop)
            if child is None:
                process = subprocess.Popen(
                    guarded,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **env},
                    start_new_session=True,
                )
                child = _StartedChild(process, env)
    except ValueError as error:  # a NUL, or half of a surrogate pair
        raise Unstartable(f"cannot start {argv[0]!r:.80}: {error}") from None
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise Unstartable(
                f"cannot start {argv[0]!r:.80}: its arguments and variables are too long"
            ) from None
        raise EnvironmentFault(f"cannot start {argv[0]}: {error}") from error
    try:
        while not should_stop():
            try:
                return child.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                continue
        return _stop(child, grace_s)
    except BaseException:
        _stop(child, grace_s)
        raise
    finally:
        child.signal_group(signal.SIGKILL)


def last_lines(log_file: Path, count: int = LAST_LINES, max_bytes: int = 8192) -> str:
    """Return the end of the log, at most `count` lines and `max_bytes` bytes; "" if there is none.

    It starts at a word boundary, so that no secret is cut in two and then goes unrecognised.
    """
    try:
        with open_regular(log_file) as file:
            file.seek(0, os.SEEK_END)
            start = max(0, file.tell() - max_bytes)
            file.seek(start)
            return end_of(file.read(max_bytes), count, is_cut=start > 0)
    except OSError:
        return ""


def end_of(data: bytes, count: int, *, is_cut: bool = False) -> str:
    """Return the last `count` lines of a log as a terminal shows them: progress bars in their latest state.

    Args:
        is_cut: leave out the first word, which may be cut in two.
    """
    text = data.decode("utf-8", errors="replace")
    if is_cut and (rest := _CUT_WORD.sub("", text, count=1)):
        text = rest
    lines = [
        line.rstrip("\r").rpartition("\r")[2] for line in _COLOURS_AND_MOVES.sub("", text).strip().split("\n")
    ]
    shown = [line for line in lines if not line.isspace()]  # a bar that was wiped out
    return "\n".join("\n".join(shown).splitlines()[-count:])


def describe_exit(status: int) -> str:
    """Return an exit status in words."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    if -status == signal.SIGKILL:
        return f"killed by {name}, most likely for want of memory"
    return f"killed by {name}"


class _StartedChild:
    """Process that was started by its command."""

    def __init__(self, process: subprocess.Popen[bytes], env: Mapping[str, str]) -> None:
        self._process, self._env = process, env
        self.wait = process.wait

    def signal_group(self, signum: signal.Signals) -> None:
        if signum == signal.SIGKILL:
            if self._process.returncode is None:
                parent_death.kill_descendants(self._process.pid)
            elif (
                self._process.returncode == -signal.SIGKILL
            ):  # perhaps by its program, whose daemons are free
                _kill_with(self._env)
        with contextlib.suppress(ProcessLookupError):  # it ended in the meantime
            os.killpg(self._process.pid, signum)


def _kill_with(env: Mapping[str, str]) -> None:
    """Kill the processes that were started with these variables, which name one attempt of one trial."""
    words = {os.fsencode(f"{name}={value}") for name, value in env.items()}
    for folder in Path("/proc").glob("[0-9]*") if words else ():
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if int(folder.name) != os.getpid() and words <= set(
                (folder / "environ").read_bytes().split(b"\0")
            ):
                os.kill(int(folder.name), signal.SIGKILL)


def _open_at_once(name: str, flags: int) -> int:
    """Open without waiting for a reader if the file is a pipe; writes block as usual."""
    fd = os.open(name, flags | os.O_NONBLOCK, 0o666)
    os.set_blocking(fd, True)
    return fd


def _stop(child: Child, grace_s: float) -> int:
    child.signal_group(signal.SIGTERM)
    try:
        return child.wait(grace_s)
    except subprocess.TimeoutExpired:
        child.signal_group(signal.SIGKILL)
        return child.wait()
