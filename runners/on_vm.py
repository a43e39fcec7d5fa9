"""Supervisor of one worker on a cloud machine, which it restarts as `restarts` says.

`tpu-vm` and `skypilot` start it:

    python -P -m runners.on_vm --log FILE --restarts N --grace S -- WORKER...

Exit statuses: 0 no work is left; 2 the worker rejected its input; 1 it crashed too often; 75 a signal.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from runners.errors import EXIT_DONE, EXIT_FAILED, EXIT_INPUT, EXIT_PREEMPTED
from runners.pools.pool import Pool
from runners.workers.processes import Process
from runners.workers.signals import StopSignal
from runners.workers.supervise_pool import supervise_pool


def main(argv: Sequence[str]) -> int:
    """Supervise the worker until it has ended for good, and return the exit status."""
    parser = argparse.ArgumentParser(prog="runners.on_vm")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--restarts", type=int, required=True)
    parser.add_argument("--grace", type=float, required=True)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args(argv)
    command = tuple(args.command)
    pool = Pool(
        name="",
        storage="",
        folder=args.log.parent,
        workers=1,
        command=command,
        restarts=args.restarts,
        grace_s=args.grace,
    )
    stop = StopSignal()
    stop.listen()
    (end,) = supervise_pool(
        [Process(argv=command, env={}, log_file=args.log)],
        pool,
        stopped=lambda: bool(stop.by),
        notify=lambda line: print(f"sweep: {line}", file=sys.stderr, flush=True),
    )
    if end is None:
        return EXIT_PREEMPTED
    return {"done": EXIT_DONE, "poison": EXIT_INPUT}.get(end, EXIT_FAILED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
