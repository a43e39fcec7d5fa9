"""Supervisor of one worker inside a Slurm task or a Ray task: restarts it after a crash.

A worker that was preempted (75) is not restarted here: its machine is going away, and the engine has others.
From a shell: `python -P -m runners.tend --restarts N --grace S -- COMMAND...`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runners.errors import EXIT_DONE, EXIT_FAILED, EXIT_INPUT, EXIT_PREEMPTED
from runners.workers import die_with_parent
from runners.workers.processes import size_of, written_since
from runners.workers.restarts import POISON, Again, after_exit, import_failure, supervision
from runners.workers.supervise_pool import describe
from sweeps.text.counted import counted

_POLL_S = 0.2
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_STDERR = Path("/dev/stderr")
"""The worker's too: engines make it a file, which can be read again."""


@dataclass(kw_only=True)
class _Stop:
    """First stop signal that this process got, and when; passed on to the worker once."""

    by: str = ""
    at: float = 0.0
    worker: subprocess.Popen[bytes] | None = None

    def received(self) -> bool:
        """Return True after a signal; a call, as a handler may change it at any time."""
        return bool(self.by)

    def handle(self, number: int, frame: object) -> None:
        if not self.by:
            self.by, self.at = signal.Signals(number).name, time.monotonic()
            if self.worker is not None:
                self.worker.terminate()


def supervise_worker(
    argv: Sequence[str],
    *,
    restarts: int,
    grace_s: float,
    env: Mapping[str, str] | None = None,
    notify: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> int:
    """Run the worker until it has ended for good, passing SIGTERM and SIGINT on. In the main thread.

    If this process is killed, the kernel sends the worker SIGTERM.

    Args:
        restarts: consecutive crashes that are answered by a restart.
        grace_s: seconds between the signal and the worker's SIGKILL.
        env: the worker's environment, instead of this process's.
        notify: called with each crash, as one line.

    Returns:
        The worker's 0, 2, 42 or 75; 1 where it only crashed; 2 where its imports failed.
    """
    crashes = 0
    with _listening() as stop:
        while not stop.received():
            began, log_start = time.monotonic(), size_of(_STDERR)
            variables = supervision(crashes=crashes, restarts=restarts)
            status = _run(argv, stop, grace_s, {**(os.environ if env is None else env), **variables})
            if stop.received() or status in (EXIT_DONE, EXIT_PREEMPTED, *POISON):
                return status if status in (EXIT_DONE, *POISON) else EXIT_PREEMPTED
            if status == EXIT_FAILED and (problem := import_failure(written_since(_STDERR, log_start))):
                notify(f"the worker cannot start: {problem}; not restarting it")
                return EXIT_INPUT
            next_ = after_exit(status, ran_s=time.monotonic() - began, crashes=crashes, restarts=restarts)
            if not isinstance(next_, Again):
                notify(f"the worker crashed {counted(crashes + 1, 'time')} in a row; giving up on it")
                return EXIT_FAILED
            crashes = next_.crashes
            notify(f"the worker crashed ({describe(status)}); restarting in {next_.after_s:g} s")
            _wait(next_.after_s, stop)
    return EXIT_PREEMPTED


@contextlib.contextmanager
def _listening() -> Iterator[_Stop]:
    stop = _Stop()
    before = {number: signal.signal(number, stop.handle) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(argv: Sequence[str], stop: _Stop, grace_s: float, env: Mapping[str, str]) -> int:
    """Run the worker once and return its exit status; an exception here ends the worker first."""
    bound = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid()), *argv]
    stop.worker = worker = subprocess.Popen(bound, stdin=subprocess.DEVNULL, env=env)
    try:
        if stop.received():  # since the caller checked, and before there was a worker to pass it on to
            worker.terminate()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return worker.wait(_POLL_S)
            if stop.received() and time.monotonic() - stop.at > grace_s:
                worker.kill()
    finally:
        stop.worker = None
        if worker.poll() is None:
            worker.kill()
            worker.wait()


def _wait(seconds: float, stop: _Stop) -> None:
    deadline = time.monotonic() + seconds
    while not stop.received() and time.monotonic() < deadline:
        time.sleep(min(_POLL_S, seconds))


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m runners.tend", description=__doc__)
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--grace", type=float, default=30.0)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    return supervise_worker(args.command, restarts=args.restarts, grace_s=args.grace, env=dict(os.environ))


if __name__ == "__main__":
    sys.exit(main())
