"""`local`: workers as processes on this machine, supervised by the process that launched them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from runners.counted import counted
from runners.errors import EXIT_DONE, EXIT_FAILED, EXIT_INPUT, EXIT_PREEMPTED, PoolError
from runners.pools import pool_file
from runners.pools.pool import Pool
from runners.pools.runner import Artifacts, Health, Place, Tell
from runners.pools.tail import tails
from runners.workers.processes import processes, shell_line


class Local:
    """The runner. The process that called `up` keeps the pool, and `pool.json` says which one that is."""

    name = "local"
    takes = frozenset({"threads", "devices", "environment", "secrets", "setup", "grace_s", "restarts"})
    keeps = True
    sees_folders = True
    python = ""

    def render(self, pool: Pool) -> Artifacts:
        """A file of shell lines, one for each worker."""
        return {"workers.sh": "".join(f"{shell_line(process)}\n" for process in processes(pool))}

    def up(self, pool: Pool, notify: Tell) -> int:
        """Keep the pool until no worker is left: 0; 2 where one was refused its input, 1 where one was given
        up, 75 where a signal ended the pool."""
        from runners.workers.signals import StopSignal
        from runners.workers.supervise_pool import keep

        told = StopSignal()
        told.listen()
        pool_file.write(pool.folder, {})
        (pool.folder / pool_file.WANTED).unlink(missing_ok=True)
        devices = (
            f" on {counted(len(pool.devices), 'accelerator')}"
            if pool.devices
            else f", {counted(pool.threads or 1, 'thread')} each"
        )
        notify(f"{counted(pool.workers, 'worker')}{devices}; their output is in {pool.folder}/worker-*.log")
        try:
            ends = keep(
                processes(pool),
                pool,
                stopped=lambda: bool(told.by),
                notify=notify,
                changed=lambda pids: pool_file.write(pool.folder, pids),
                wanted=lambda: pool_file.wanted(pool.folder),
            )
        finally:
            pool_file.remove(pool.folder)
        if told.by:
            notify(f"{told.by}: the pool is down")
            return EXIT_PREEMPTED
        if "poison" in ends:
            return EXIT_INPUT
        return EXIT_FAILED if "given up" in ends else EXIT_DONE

    def status(self, pool: Pool) -> tuple[Place, ...]:
        """The workers that run now."""
        found = pool_file.read(pool.folder)
        alive = [known for known in found.workers if known.process()] if found else []
        return tuple(
            Place(worker=str(known.number), state="running", where=f"process {known.pid}") for known in alive
        )

    def scale(self, pool: Pool, workers: int, notify: Tell) -> None:
        """Told to the process that keeps the pool, through a file that it reads."""
        found = pool_file.read(pool.folder)
        if found is None or found.keeper.process() is None:
            raise PoolError(
                "workers", "no pool of this sweep runs on this machine; start one: sweep launch local"
            )
        if pool.devices and workers > len(pool.devices):
            raise PoolError(
                "workers", f"the pool has {counted(len(pool.devices), 'accelerator')}, one for each worker"
            )
        pool_file.want(pool.folder, workers)
        notify(f"the pool has {counted(workers, 'worker')} in a moment; `sweep pool status` shows them")

    def logs(self, pool: Pool, worker: str | None, lines: int) -> Iterator[str]:
        """The ends of `worker-N.log`; a worker is its number."""
        yield from tails(pool.folder, f"worker-{worker or '*'}.log", lines)

    def down(self, pool: Pool, notify: Tell) -> int:
        """Ends the keeper, which ends its workers; where it is gone, they are told one by one."""
        import psutil

        found = pool_file.read(pool.folder)
        alive = found.alive() if found else []
        # The keeper ends its workers itself; where it is gone, they have to be told.
        told = alive[:1] if found and alive and alive[0].pid == found.keeper.pid else alive
        for process in told:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        _, deaf = psutil.wait_procs(alive, timeout=pool.grace_s)
        for process in deaf:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(deaf, timeout=pool.grace_s)
        pool_file.remove(pool.folder)
        if alive:
            killed = f", {len(deaf)} of them killed" if deaf else ""
            notify(f"the pool is down: {counted(len(alive), 'process', 'processes')} ended{killed}")
        return len(alive)

    def health(self) -> Health:
        """Processes can always be started."""
        return Health(state="ready", told=counted(os.cpu_count() or 1, "core"))


RUNNER = Local()
