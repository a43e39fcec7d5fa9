"""Workers as processes on this machine, each with its share of the cores, or an accelerator.

`processes` is pure, `start` and `end` are thin. Called by `runners.local`, `supervise_pool`, `on_vm` and
`sweep quickstart`.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runners.pools.pool import Pool
from runners.pools.script import environment, worker_script

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
