"""Keeps a pool of local workers going until none has work left. Called by `local`."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from runners.counted import counted
from runners.pools.pool import Pool
from runners.workers.processes import Process, end, process, start
from runners.workers.restarts import Again, End, after_exit

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
    leaving: bool = False


def keep(
    processes: Sequence[Process],
    pool: Pool,
    *,
    stopped: Callable[[], bool],
    notify: Callable[[str], None],
    changed: Callable[[Mapping[int, int]], None] = lambda pids: None,
    wanted: Callable[[], int | None] = lambda: None,
) -> list[End | None]:
    """Starts the processes, and again as `restarts` says, until all have ended for good or `stopped` says so.

    Args:
        stopped: asked every fifth of a second; then the workers are told to go, and have `pool.grace_s`.
        tell: told in one line what happened to a worker.
        changed: told the process ids by the workers' numbers after each change.
        wanted: asked as often for how many places there shall be; None: as many as there are.

    Returns:
        How each ended; None for those that `stopped` ended.
    """
    slots = [_Slot(process=process) for process in processes]
    try:
        while not stopped() and any(slot.end is None and not _is_empty(slot) for slot in slots):
            _resize(slots, wanted(), pool, notify)
            moved = [_tend(number, slot, pool, notify) for number, slot in enumerate(slots, start=1)]
            if any(moved):
                changed({number: slot.running.pid for number, slot in enumerate(slots, 1) if slot.running})
            time.sleep(_EVERY_S)
    finally:
        running = [slot.running for slot in slots if slot.running]
        if running:
            who = counted(len(running), "worker")
            notify(f"the pool ends: {who} told to hand the trial back within {pool.grace_s:g} s")
            end(running, pool.grace_s)
    return [slot.end for slot in slots]


def _resize(slots: list[_Slot], wanted: int | None, pool: Pool, notify: Callable[[str], None]) -> None:
    """Adds places, or tells the last ones to go; a place that was told to go may come back."""
    if wanted is None:
        return
    for number, slot in enumerate(slots, start=1):
        if slot.leaving == (number <= wanted):
            slot.leaving = number > wanted
            if slot.leaving and slot.running:
                notify(f"worker {number} is told to go: {counted(wanted, 'worker')} wanted")
                slot.running.terminate()
            if not slot.leaving and slot.end is None:
                slot.due = 0.0
    while len(slots) < wanted:
        slots.append(_Slot(process=process(replace(pool, workers=wanted), len(slots) + 1)))
        notify(f"worker {len(slots)} starts: {counted(wanted, 'worker')} wanted")


def _is_empty(slot: _Slot) -> bool:
    """Whether nobody is in this place, and nobody shall be."""
    return slot.leaving and slot.running is None


def _tend(number: int, slot: _Slot, pool: Pool, notify: Callable[[str], None]) -> bool:
    """Looks after one place; whether its process is another one now."""
    now = time.monotonic()
    if slot.end is not None:
        return False
    if slot.running is None:
        if now < slot.due or slot.leaving:
            return False
        (slot.running,), slot.since = start([slot.process]), now
        return True
    if (status := slot.running.poll()) is None:
        return False
    slot.running = None
    if slot.leaving:
        return True
    next_ = after_exit(status, ran_s=now - slot.since, crashes=slot.crashes, restarts=pool.restarts)
    log = slot.process.log_file
    if isinstance(next_, Again):
        slot.due, slot.crashes = now + next_.after_s, next_.crashes
        if next_.crashes:
            notify(f"worker {number} crashed ({describe(status)}), see {log}; again in {next_.after_s:g} s")
        else:
            notify(f"worker {number} was preempted; it starts again")
    else:
        slot.end = next_
        told = {
            "done": "has no work left",
            "poison": f"was refused its input, see {log}; it is not started again",
            "given up": f"crashed {slot.crashes + 1} times in a row ({describe(status)}), see {log}; "
            "it is given up",
        }
        notify(f"worker {number} {told[next_]}")
    return True


def describe(status: int) -> str:
    """An exit status in words."""
    return f"signal {-status}" if status < 0 else f"exit status {status}"
