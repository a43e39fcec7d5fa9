"""One worker, started again where it is after a crash: what runs inside a Slurm task or a Ray task.

A worker that was preempted (75) is not started again here: its machine is going, and the engine has others.
`python -m runners.tend --restarts N --grace S -- COMMAND...` is the same for shells.
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
from dataclasses import dataclass, field

from runners.errors import EXIT_DONE, EXIT_FAILED, EXIT_PREEMPTED
from runners.workers import die_with_parent
from runners.workers.restarts import POISON, Again, after_exit

_EVERY_S = 0.2
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(kw_only=True)
class _Notice:
    """Whether this process was told to go, and when; its worker is told once."""

    by: str = ""
    at: float = 0.0
    worker: subprocess.Popen[bytes] | None = field(default=None)

    def heard(self) -> bool:
        return bool(self.by)

    def hear(self, number: int, frame: object) -> None:
        if not self.by:
            self.by, self.at = signal.Signals(number).name, time.monotonic()
            if self.worker is not None:
                self.worker.terminate()


def tend(
    argv: Sequence[str],
    *,
    restarts: int,
    grace_s: float,
    env: Mapping[str, str] | None = None,
    notify: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> int:
    """Run the worker until it has ended for good; SIGTERM and SIGINT are passed on to it. In the main thread.

    Where this process is killed, the worker is told by the kernel.

    Args:
        restarts: crashes in a row that are answered by a restart.
        grace_s: seconds between the signal and the worker's death.
        env: instead of this process's environment.

    Returns:
        0, 2, 42 or 75 as the worker said; 1 where it only crashed.
    """
    crashes = 0
    with _listening() as notice:
        while not notice.heard():
            began = time.monotonic()
            status = _run(argv, notice, grace_s, env)
            if notice.heard() or status in (EXIT_DONE, EXIT_PREEMPTED, *POISON):
                return status if status in (EXIT_DONE, *POISON) else EXIT_PREEMPTED
            next_ = after_exit(status, ran_s=time.monotonic() - began, crashes=crashes, restarts=restarts)
            if not isinstance(next_, Again):
                notify(f"the worker crashed {crashes + 1} times in a row; it is given up")
                return EXIT_FAILED
            crashes = next_.crashes
            told = f"signal {-status}" if status < 0 else f"exit status {status}"
            notify(f"the worker crashed ({told}); again in {next_.after_s:g} s")
            _wait(next_.after_s, notice)
    return EXIT_PREEMPTED


@contextlib.contextmanager
def _listening() -> Iterator[_Notice]:
    notice = _Notice()
    before = {number: signal.signal(number, notice.hear) for number in _SIGNALS}
    try:
        yield notice
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(argv: Sequence[str], notice: _Notice, grace_s: float, env: Mapping[str, str] | None) -> int:
    """The exit status of one life. Whatever ends this process in order ends the worker first."""
    bound = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid()), *argv]
    notice.worker = worker = subprocess.Popen(bound, stdin=subprocess.DEVNULL, env=env)
    try:
        if notice.heard():  # between the question and the start
            worker.terminate()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return worker.wait(_EVERY_S)
            if notice.heard() and time.monotonic() - notice.at > grace_s:
                worker.kill()
    finally:
        notice.worker = None
        if worker.poll() is None:
            worker.kill()
            worker.wait()


def _wait(seconds: float, notice: _Notice) -> None:
    deadline = time.monotonic() + seconds
    while not notice.heard() and time.monotonic() < deadline:
        time.sleep(min(_EVERY_S, seconds))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m runners.tend", description=__doc__)
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--grace", type=float, default=30.0)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    return tend(given.command, restarts=given.restarts, grace_s=given.grace, env=dict(os.environ))


if __name__ == "__main__":
    sys.exit(main())
