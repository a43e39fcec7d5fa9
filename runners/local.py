"""`local`: workers as processes on this machine, each with its share of the cores, or an accelerator.

`processes` is pure, `start` and `end` are thin. `sweep quickstart` uses them; RUNNER is what `engines` finds.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runners.counted import counted
from runners.errors import EXIT_DONE, EXIT_FAILED, EXIT_INPUT, EXIT_PREEMPTED, PoolError
from runners.pools import pool_file
from runners.pools.pool import Pool
from runners.pools.runner import Artifacts, Health, Place, Tell
from runners.pools.script import environment, worker_script
from runners.pools.tail import tails

GRACE_S = 30.0
DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
TPU = "tpu:"


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process to start. `env` is what differs from the environment of the starter."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    log_file: Path


def processes(pool: Pool) -> tuple[Process, ...]:
    """What `up` starts: one process per worker, with its output in a file of its own in the pool's folder."""
    return tuple(process(pool, number) for number in range(1, pool.workers + 1))


def process(pool: Pool, number: int) -> Process:
    """The process of one place, counted from 1."""
    env = environment(pool)
    if pool.devices:
        env |= device_variables(pool.devices[number - 1])
    return Process(
        argv=("bash", "-c", worker_script(pool)) if pool.setup else pool.command,
        env=env,
        log_file=pool.folder / f"worker-{number}.log",
    )


def device_variables(device: str) -> dict[str, str]:
    """What lets a worker see one accelerator alone: a chip of a TPU for `tpu:N`, else a CUDA device.

    A chip by itself has to be told that it is all of its host, too; libtpu would wait for the others.
    """
    if not device.startswith(TPU):
        return {DEVICES_VARIABLE: device}
    bounds = {"TPU_CHIPS_PER_HOST_BOUNDS": "1,1,1", "TPU_HOST_BOUNDS": "1,1,1"}
    return {"PJRT_DEVICE": "TPU", "TPU_VISIBLE_CHIPS": device.removeprefix(TPU), **bounds}


def shell_line(process: Process) -> str:
    """The process as a line that a shell understands; what is in a name stays one word."""
    words = [f"{name}={value}" for name, value in process.env.items()]
    return f"{shlex.join(['env', *words, *process.argv])} >> {shlex.quote(str(process.log_file))} 2>&1"


def start(processes: Sequence[Process]) -> list[subprocess.Popen[bytes]]:
    """Start them, each in a session of its own: Ctrl-C at the terminal reaches them only through `end`."""
    started = []
    for process in processes:
        process.log_file.parent.mkdir(parents=True, exist_ok=True)
        with process.log_file.open("ab") as log:
            started.append(
                subprocess.Popen(
                    process.argv,
                    env={**os.environ, **process.env},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
    return started


def end(started: Sequence[subprocess.Popen[bytes]], grace_s: float = GRACE_S) -> list[int]:
    """End them: SIGTERM, and SIGKILL after `grace_s` seconds in all. Returns their exit statuses."""
    for process in started:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + grace_s
    for process in started:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    for process in started:
        if process.poll() is None:
            process.kill()
    return [process.wait() for process in started]


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

    def up(self, pool: Pool, tell: Tell) -> int:
        """Keep the pool until no worker is left: 0; 2 where one was refused its input, 1 where one was given
        up, 75 where a signal ended the pool."""
        from runners.workers.signals import Told
        from runners.workers.supervise_pool import keep

        told = Told()
        told.listen()
        pool_file.write(pool.folder, {})
        (pool.folder / pool_file.WANTED).unlink(missing_ok=True)
        devices = (
            f" on {counted(len(pool.devices), 'accelerator')}"
            if pool.devices
            else f", {counted(pool.threads or 1, 'thread')} each"
        )
        tell(f"{counted(pool.workers, 'worker')}{devices}; their output is in {pool.folder}/worker-*.log")
        try:
            ends = keep(
                processes(pool),
                pool,
                stopped=lambda: bool(told.by),
                tell=tell,
                changed=lambda pids: pool_file.write(pool.folder, pids),
                wanted=lambda: pool_file.wanted(pool.folder),
            )
        finally:
            pool_file.remove(pool.folder)
        if told.by:
            tell(f"{told.by}: the pool is down")
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

    def scale(self, pool: Pool, workers: int, tell: Tell) -> None:
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
        tell(f"the pool has {counted(workers, 'worker')} in a moment; `sweep pool status` shows them")

    def logs(self, pool: Pool, worker: str | None, lines: int) -> Iterator[str]:
        """The ends of `worker-N.log`; a worker is its number."""
        yield from tails(pool.folder, f"worker-{worker or '*'}.log", lines)

    def down(self, pool: Pool, tell: Tell) -> int:
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
            tell(f"the pool is down: {counted(len(alive), 'process', 'processes')} ended{killed}")
        return len(alive)

    def health(self) -> Health:
        """Processes can always be started."""
        return Health(state="ready", told=counted(os.cpu_count() or 1, "core"))


RUNNER = Local()
