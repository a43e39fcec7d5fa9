"""`python -m trainer.distributed.launch N OVERRIDE… run_dir=DIR`: one run in N processes of this machine.

With `--host K/M@ADDRESS:PORT` before the overrides, N processes on each of M machines share the run: this is
the K-th, from 0, and the first process of machine 0 listens at that address.

A torchrun for a sweep's worker (`trainer.api.command` writes the command): it ends with the run's own exit
status, where torchrun always ends with 1; a signal reaches every process once; and on Linux no process
outlives this one. Loads no torch.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from trainer.errors import EXIT_CONFIG, EXIT_DIVERGED, EXIT_DONE, EXIT_PREEMPTED

COLLECTIVE = (EXIT_DONE, EXIT_CONFIG, EXIT_DIVERGED, EXIT_PREEMPTED)
"""Statuses that all processes reach by themselves."""
GRACE_S = 60.0  # between the first process that ends so and the last
_POLL_S = 0.05
_FORWARDED = (signal.SIGTERM, signal.SIGINT)
_HOST_OPTION = "--host"
_HOST = re.compile(r"(\d+)/(\d+)@(.+):(\d+)")
_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the processes; return the status of the first to fail, negative for a signal, else 0."""
    count, *overrides = sys.argv[1:] if arguments is None else arguments
    if not count.isdecimal() or int(count) < 1:
        print(f"trainer: error: {count!r} is no number of processes", file=sys.stderr)
        return EXIT_CONFIG
    rank, hosts, address, port = 0, 1, "127.0.0.1", 0
    if overrides[:1] == [_HOST_OPTION]:
        given = overrides[1] if len(overrides) > 1 else ""
        found = _HOST.fullmatch(given)
        if found is None or int(found[1]) >= int(found[2]):
            print(f"trainer: error: {_HOST_OPTION} {given!r} is not RANK/HOSTS@ADDRESS:PORT", file=sys.stderr)
            return EXIT_CONFIG
        rank, hosts, address, port = int(found[1]), int(found[2]), found[3], int(found[4])
        del overrides[:2]
    pending: list[int] = []  # signals that the loop forwards, which knows all processes
    for number in _FORWARDED:
        signal.signal(number, lambda number, frame: pending.append(number))
    safe = ["-P"] if sys.flags.safe_path else []  # as a worker starts this: no working folder on the path
    command = [sys.executable, *safe, "-m", "trainer", *overrides]
    processes = _start(command, int(count), rank=rank, hosts=hosts, master=(address, port or _free_port()))
    try:
        return _first_failure(processes, pending)
    finally:
        for process in processes:
            process.kill()


def _free_port() -> int:
    """Return a port of this machine that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _start(
    command: Sequence[str], count: int, *, rank: int, hosts: int, master: tuple[str, int]
) -> list[subprocess.Popen[bytes]]:
    """Start this machine's processes, with the variables that torchrun sets.

    Args:
        rank: of this machine among `hosts`.
        master: address and port at which the first process of all listens.
    """
    common = {"WORLD_SIZE": str(count * hosts), "LOCAL_WORLD_SIZE": str(count)}
    common |= {"MASTER_ADDR": master[0], "MASTER_PORT": str(master[1])}
    return [
        subprocess.Popen(
            command,
            env={**os.environ, **common, "RANK": str(rank * count + local), "LOCAL_RANK": str(local)},
            process_group=0,  # a signal to our group would otherwise reach the child twice
            preexec_fn=_die_with_parent(),
        )
        for local in range(count)
    ]


def _first_failure(processes: Sequence[subprocess.Popen[bytes]], pending: list[int]) -> int:
    """Wait for all processes; once one has failed, only for a grace period."""
    status, deadline, forwarded = EXIT_DONE, float("inf"), set[int]()

    def status_of(process: subprocess.Popen[bytes]) -> int:
        # Until Python has installed its handlers, a signal that we forward kills the process.
        return EXIT_PREEMPTED if -(process.returncode or 0) in forwarded else process.returncode or EXIT_DONE

    while (running := [p for p in processes if p.poll() is None]) and time.monotonic() < deadline:
        while pending:
            number = pending.pop(0)
            forwarded.add(number)
            for process in running:
                process.send_signal(number)
        if status == EXIT_DONE:
            failed = [code for p in processes if (code := status_of(p))]
            if failed:
                status = failed[0]
                # After a crash the others wait in a collective, in vain.
                deadline = time.monotonic() + (GRACE_S if status in COLLECTIVE else 1.0)
        if running:
            time.sleep(_POLL_S)
    return status or next((code for p in processes if (code := status_of(p))), EXIT_DONE)


def _die_with_parent() -> Callable[[], None] | None:
    """Return a hook that has the kernel kill a child when this process dies; None except on Linux."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def leave(status: int) -> None:
    """End this process with a child's status: by the same signal if it is negative."""
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    leave(main())
