"""Supervisor of worker processes on this machine: starts and restarts them until none has work left."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from runners.errors import EXIT_FAILED
from runners.pools.pool import Pool
from runners.pools.runner import Notify
from runners.workers.processes import Process, end, name_of, process, size_of, start, written_since
from runners.workers.restarts import Again, End, after_exit, import_failure, last_reason, supervision
from sweeps.text.counted import counted

_POLL_S = 0.2


@dataclass(kw_only=True)
class _Slot:
    """One worker: its running process, or when the next one is due, or how it ended."""

    process: Process
    running: subprocess.Popen[bytes] | None = None
    since: float = 0.0
    log_start: int | None = 0
    """Size of its log before it was started, in bytes."""
    due: float = 0.0
    crashes: int = 0
    end: End | None = None
    leaving: bool = False

    @property
    def retired(self) -> bool:
        """Return True where its worker is no longer wanted and has ended."""
        return self.leaving and self.running is None


def supervise_pool(
    processes: Sequence[Process],
    pool: Pool,
    *,
    stopped: Callable[[], bool],
    notify: Notify,
    on_change: Callable[[Mapping[int, int]], None] = lambda pids: None,
    wanted: Callable[[], int | None] = lambda: None,
) -> list[End | None]:
    """Start the processes, and restart them as `restarts` says, until all have ended for good.

    Args:
        pool: the number of restarts, the grace time, and how additional workers are started.
        stopped: polled five times a second; once it is True the workers are ended within `pool.grace_s`.
        notify: called with each event, as one line; it may raise OSError.
        on_change: called after each start or exit with the running process ids by worker number. Where it
            raises OSError, it is called at each poll until it does not.
        wanted: polled as often for the number of workers; None: as many as there are. Of a worker of
            several hosts there is a process for each.

    Returns:
        How each worker ended; None for those that `stopped` ended.
    """

    def say(line: str) -> None:
        with contextlib.suppress(OSError):  # a log on a full disk is no reason to end the workers
            notify(line)

    slots = [_Slot(process=process) for process in processes]
    recorded = True
    try:
        while not stopped() and any(slot.end is None and not slot.retired for slot in slots):
            count = wanted()
            _resize(slots, None if count is None else count * pool.nodes, pool, say)
            changes = [_step(number, slot, pool, say) for number, slot in enumerate(slots, start=1)]
            if any(changes) or not recorded:
                pids = {number: slot.running.pid for number, slot in enumerate(slots, 1) if slot.running}
                try:
                    on_change(pids)
                    recorded = True
                except OSError as error:
                    if recorded:
                        say(f"cannot record which processes run ({error}); they go on, and it is tried again")
                    recorded = False
            time.sleep(_POLL_S)
    finally:
        running = [slot.running for slot in slots if slot.running]
        if running:
            who = counted(len(running), "worker") if pool.nodes == 1 else counted(len(running), "host")
            say(f"stopping the pool: {who} asked to hand the trial back within {pool.grace_s:g} s")
            end(running, pool.grace_s)
    return [slot.end for slot in slots]


def _resize(slots: list[_Slot], wanted: int | None, pool: Pool, notify: Notify) -> None:
    """Add slots, or let the last ones leave; a slot that was left may be filled again."""
    if wanted is None:
        return
    workers = counted(wanted // pool.nodes, "worker")
    for number, slot in enumerate(slots, start=1):
        if slot.leaving == (number <= wanted):
            slot.leaving = number > wanted
            if slot.leaving and slot.running:
                notify(f"stopping worker {name_of(pool, number)}: {workers} wanted")
                slot.running.terminate()
            if not slot.leaving and slot.end is None:
                slot.due = 0.0
    while len(slots) < wanted:
        more = replace(pool, workers=wanted // pool.nodes)
        slots.append(_Slot(process=process(more, len(slots) + 1)))
        notify(f"starting worker {name_of(pool, len(slots))}: {workers} wanted")


def _step(number: int, slot: _Slot, pool: Pool, notify: Notify) -> bool:
    """Start the slot's process where it is due, or handle its exit; return True if one of these happened."""
    now = time.monotonic()
    if slot.end is not None:
        return False
    if slot.running is None:
        if now < slot.due or slot.leaving:
            return False
        slot.log_start = size_of(slot.process.log_file)
        variables = supervision(crashes=slot.crashes, restarts=pool.restarts)
        told = replace(slot.process, env={**slot.process.env, **variables})
        try:
            (slot.running,), slot.since = start([told]), now
        except OSError as error:  # its log cannot be opened, or the machine has no room for a process
            notify(f"worker {name_of(pool, number)} {_handle_failed_start(slot, error, now, pool)}")
            return False
        return True
    if (status := slot.running.poll()) is None:
        return False
    slot.running = None
    if not slot.leaving:
        notify(f"worker {name_of(pool, number)} {_handle_exit(slot, status, now, pool)}")
    return True


def _handle_failed_start(slot: _Slot, error: OSError, now: float, pool: Pool) -> str:
    """Schedule another start as after a crash, or record the slot's end; return that in words."""
    next_ = after_exit(EXIT_FAILED, ran_s=0.0, crashes=slot.crashes, restarts=pool.restarts)
    if isinstance(next_, Again):
        slot.due, slot.crashes = now + next_.after_s, next_.crashes
        return f"cannot be started ({error}); trying again in {next_.after_s:g} s"
    slot.end = next_
    return f"cannot be started ({error}); giving up on it"


def _handle_exit(slot: _Slot, status: int, now: float, pool: Pool) -> str:
    """Schedule the slot's restart or record its end; return that in words."""
    log = slot.process.log_file
    crash = f"({describe(status)}), see {log}"
    if status == EXIT_FAILED and (problem := import_failure(written_since(log, slot.log_start))):
        slot.end = "poison"
        return f"cannot start: {problem}, see {log}; not restarting it"
    next_ = after_exit(status, ran_s=now - slot.since, crashes=slot.crashes, restarts=pool.restarts)
    if isinstance(next_, Again):
        slot.due, slot.crashes = now + next_.after_s, next_.crashes
        if next_.crashes:
            return f"crashed {crash}; restarting in {next_.after_s:g} s"
        return "was preempted; restarting it"
    slot.end = next_
    # A host of a gang ends with 2 where another one is given up, too: its log says what it was.
    output = written_since(log, slot.log_start, tail=True) if pool.nodes > 1 else ""
    if next_ == "poison" and (reason := last_reason(output)):
        return f"ended ({reason}), see {log}; not restarting it"
    return {
        "done": "has no work left",
        "poison": f"rejected its input, see {log}; not restarting it",
        "given up": f"crashed {counted(slot.crashes + 1, 'time')} in a row {crash}; giving up on it",
    }[next_]


def describe(status: int) -> str:
    """Return an exit status in words."""
    return f"signal {-status}" if status < 0 else f"exit status {status}"
