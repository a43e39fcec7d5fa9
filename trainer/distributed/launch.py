"""`python -m trainer.distributed.launch N OVERRIDE… run_dir=DIR`: one run in N processes of this machine.

What torchrun does, in the way that a sweep's worker needs it (`trainer.api.command` writes the command): it
ends with the status that the run ends with, where torchrun ends with 1 whatever happened; a signal reaches
every process once; and on Linux no process outlives this one, however it ends. Loads no torch.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from trainer.errors import EXIT_CONFIG, EXIT_DIVERGED, EXIT_DONE, EXIT_PREEMPTED

TOGETHER = (EXIT_DONE, EXIT_CONFIG, EXIT_DIVERGED, EXIT_PREEMPTED)
"""Statuses that all processes come to by themselves."""
PATIENCE_S = 60.0  # between the first of them to end so and the last
_POLL_S = 0.05
_PASSED_ON = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Starts the processes and returns the status of the first to fail, negative for a signal; else 0."""
    count, *overrides = sys.argv[1:] if arguments is None else arguments
    if not count.isdecimal() or int(count) < 1:
        print(f"trainer: error: {count!r} is no number of processes", file=sys.stderr)
        return EXIT_CONFIG
    waiting: list[int] = []  # signals, to be passed on by the loop that knows all processes
    for number in _PASSED_ON:
        signal.signal(number, lambda number, frame: waiting.append(number))
    processes = _start([sys.executable, "-m", "trainer", *overrides], int(count))
    try:
        return _first_to_fail(processes, waiting)
    finally:
        for process in processes:
            process.kill()


def _start(command: Sequence[str], count: int) -> list[subprocess.Popen[bytes]]:
    common = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    return [
        subprocess.Popen(
            command,
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            process_group=0,  # a signal to a whole group would come twice: from there, and from here
            preexec_fn=_dying_with_parent(),
        )
        for rank in range(count)
    ]


def _first_to_fail(processes: Sequence[subprocess.Popen[bytes]], waiting: list[int]) -> int:
    """Waits for all; after one has failed, for as long as the others may need to come to the same."""
    status, deadline, passed_on = EXIT_DONE, float("inf"), set[int]()

    def ended_with(process: subprocess.Popen[bytes]) -> int:
        # Python has no handler yet in its first moments: what we passed on ends it, by its own request.
        return EXIT_PREEMPTED if -(process.returncode or 0) in passed_on else process.returncode or EXIT_DONE

    while (running := [p for p in processes if p.poll() is None]) and time.monotonic() < deadline:
        while waiting:
            number = waiting.pop(0)
            passed_on.add(number)
            for process in running:
                process.send_signal(number)
        if status == EXIT_DONE:
            failed = [code for p in processes if (code := ended_with(p))]
            if failed:
                status = failed[0]
                # Whoever crashes leaves the others waiting for it in vain.
                deadline = time.monotonic() + (PATIENCE_S if status in TOGETHER else 1.0)
        if running:
            time.sleep(_POLL_S)
    return status or next((code for p in processes if (code := ended_with(p))), EXIT_DONE)


def _dying_with_parent() -> Callable[[], None] | None:
    """What makes the kernel kill a child when this process dies; None where there is no such kernel."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _leave(status: int) -> None:
    """Ends as the process did, by the same signal if it was one."""
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    _leave(main())
