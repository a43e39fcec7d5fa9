"""Runs on a machine with one worker, and keeps it going as `restarts` says. `tpu-vm` and `skypilot` start it.

    python -m runners.on_vm --log FILE --restarts N --grace S -- WORKER...

Its exit status: 0 no work is left; 2 the worker was refused its input; 1 it crashed too often; 75 it was
told to go.
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
from runners.workers.supervise_pool import keep


def main(argv: Sequence[str]) -> int:
    """Until its worker has ended for good."""
    parser = argparse.ArgumentParser(prog="runners.on_vm")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--restarts", type=int, required=True)
    parser.add_argument("--grace", type=float, required=True)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(argv)
    command = tuple(given.command)
    pool = Pool(
        name="",
        storage="",
        folder=given.log.parent,
        workers=1,
        command=command,
        restarts=given.restarts,
        grace_s=given.grace,
    )
    told = StopSignal()
    told.listen()
    (end,) = keep(
        [Process(argv=command, env={}, log_file=given.log)],
        pool,
        stopped=lambda: bool(told.by),
        notify=lambda line: print(f"sweep: {line}", file=sys.stderr, flush=True),
    )
    if end is None:
        return EXIT_PREEMPTED
    return {"done": EXIT_DONE, "poison": EXIT_INPUT}.get(end, EXIT_FAILED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
