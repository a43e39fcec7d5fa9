"""`local`: workers as processes on this machine, supervised by the process that launched them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from runners.errors import EXIT_DONE, EXIT_FAILED, EXIT_INPUT, EXIT_PREEMPTED, PoolError
from runners.pools import pool_file
from runners.pools.pool import Pool
from runners.pools.program import tails
from runners.pools.runner import Artifacts, Health, Notify, WorkerStatus
from runners.workers.processes import name_of, processes, shell_line
from sweeps.text.counted import counted


class Local:
    """Runner for processes on this machine; `pool.json` names the process that supervises the pool."""

    name = "local"
    takes = frozenset({"threads", "devices", "nodes"})
    keeps = True
    python = ""

    def sees(self, folder: Path, pool: Pool) -> bool:
        """Return True: workers run on this machine."""
        return True

    def render(self, pool: Pool) -> Artifacts:
        """Return a file of shell lines, one for each worker."""
        return {"workers.sh": "".join(f"{shell_line(process)}\n" for process in processes(pool))}

    def up(self, pool: Pool, notify: Notify) -> int:
        """Supervise the pool until no worker is left.

        Returns:
            0; 2 where a worker rejected its input, 1 where one was given up, 75 after a signal.
        """
        from runners.workers.signals import StopSignal
        from runners.workers.supervise_pool import supervise_pool

        stop = StopSignal()
        stop.listen()
        with pool_file.supervising(pool.folder):
            share = f", {counted(pool.threads or 1, 'thread')} each"
            if pool.devices:
                share = f" on {pool.accelerators}"
            hosts = f" of {pool.nodes} processes in place of hosts" if pool.nodes > 1 else ""
            workers = counted(pool.workers, "worker")
            notify(f"{workers}{hosts}{share}; their output is in {pool.folder}/worker-*.log")
            ends = supervise_pool(
                processes(pool),
                pool,
                stopped=lambda: bool(stop.by),
                notify=notify,
                on_change=lambda pids: pool_file.write(pool.folder, pids),
                wanted=lambda: pool_file.requested_workers(pool.folder),
            )
        if stop.by:
            notify(f"{stop.by}: the pool is down")
            return EXIT_PREEMPTED
        if "poison" in ends:
            return EXIT_INPUT
        return EXIT_FAILED if "given up" in ends else EXIT_DONE

    def status(self, pool: Pool) -> tuple[WorkerStatus, ...]:
        """Return the running workers."""
        found = pool_file.read(pool.folder)
        alive = [worker for worker in found.workers if worker.process()] if found else []
        return tuple(
            WorkerStatus(worker=name_of(pool, worker.number), state="running", where=f"process {worker.pid}")
            for worker in alive
        )

    def scale(self, pool: Pool, workers: int, notify: Notify) -> None:
        """Request a number of workers through a file that the supervising process polls."""
        if pool.devices and workers * pool.nodes > len(pool.devices):
            each = "worker" if pool.nodes == 1 else f"of the {pool.nodes} hosts of a worker"
            raise PoolError("workers", f"the pool has {pool.accelerators}, one for each {each}")
        pool_file.request_workers(pool.folder, workers, self.name)
        notify(f"the pool will have {counted(workers, 'worker')} in a moment; `sweep pool status` shows them")

    def logs(self, pool: Pool, worker: str | None, lines: int) -> Iterator[str]:
        """Yield the last lines of `worker-N.log`; a worker's id is its number."""
        yield from tails(pool.folder, f"worker-{worker or '*'}.log", lines)

    def down(self, pool: Pool, notify: Notify) -> int:
        """Terminate the supervisor, which ends its workers; where it is gone, terminate them one by one."""
        import psutil

        found = pool_file.read(pool.folder)
        alive = found.alive() if found else []
        asked = alive[:1] if found and alive and alive[0].pid == found.keeper.pid else alive
        for process in asked:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        _, remaining = psutil.wait_procs(alive, timeout=pool.grace_s)
        for process in remaining:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(remaining, timeout=pool.grace_s)
        pool_file.remove(pool.folder)
        if alive:
            killed = f", {len(remaining)} of them killed" if remaining else ""
            notify(f"the pool is down: {counted(len(alive), 'process', 'processes')} ended{killed}")
        return len(alive)

    def health(self) -> Health:
        """Return ready: processes can always be started."""
        return Health(state="ready", detail=counted(os.cpu_count() or 1, "core"))


RUNNER = Local()
