"""Keeps a pool of local workers going until none has work left. Called by `sweep launch local`."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runners.command import Pool
from runners.local import Process, down, up
from runners.restarts import Again, End, after_exit

_EVERY_S = 0.2


@dataclass(kw_only=True)
class _Slot:
    """One worker's place: the process in it now, or when the next one is due, or how it ended."""

    process: Process
    running: subprocess.Popen[bytes] | None = None
    since: float = 0.0
    due: float = 0.0
    crashes: int = 0
    end: End | None = None


def keep(
    processes: Sequence[Process],
    pool: Pool,
    *,
    stopped: Callable[[], bool],
    tell: Callable[[str], None],
    changed: Callable[[Sequence[int]], None] = lambda pids: None,
) -> list[End | None]:
    """Starts the processes, and again as `restarts` says, until all have ended for good or `stopped` says so.

    Args:
        stopped: asked every fifth of a second; then the workers are told to go, and have `pool.grace_s`.
        tell: told in one line what happened to a worker.
        changed: told the process ids after each change.

    Returns:
        How each ended; None for those that `stopped` ended.
    """
    slots = [_Slot(process=process) for process in processes]
    try:
        while not stopped() and any(slot.end is None for slot in slots):
            moved = [_tend(number, slot, pool, tell) for number, slot in enumerate(slots, start=1)]
            if any(moved):
                changed([slot.running.pid for slot in slots if slot.running])
            time.sleep(_EVERY_S)
    finally:
        running = [slot.running for slot in slots if slot.running]
        if running:
            tell(f"{len(running)} workers are told to go, with {pool.grace_s:g} s to hand their trials back")
            down(running, pool.grace_s)
    return [slot.end for slot in slots]


def _tend(number: int, slot: _Slot, pool: Pool, tell: Callable[[str], None]) -> bool:
    """Looks after one place; whether its process is another one now."""
    now = time.monotonic()
    if slot.end is not None:
        return False
    if slot.running is None:
        if now < slot.due:
            return False
        (slot.running,), slot.since = up([slot.process]), now
        return True
    if (status := slot.running.poll()) is None:
        return False
    slot.running = None
    next_ = after_exit(status, ran_s=now - slot.since, crashes=slot.crashes, restarts=pool.restarts)
    log = slot.process.log_file
    if isinstance(next_, Again):
        slot.due, slot.crashes = now + next_.after_s, next_.crashes
        if next_.crashes:
            tell(f"worker {number} crashed ({describe(status)}), see {log}; again in {next_.after_s:g} s")
        else:
            tell(f"worker {number} was preempted; it starts again")
    else:
        slot.end = next_
        told = {
            "done": "has no work left",
            "poison": f"was refused its input, see {log}; it is not started again",
            "given up": f"crashed {slot.crashes + 1} times in a row ({describe(status)}), see {log}; "
            "it is given up",
        }
        tell(f"worker {number} {told[next_]}")
    return True


def describe(status: int) -> str:
    """An exit status in words."""
    return f"signal {-status}" if status < 0 else f"exit status {status}"
