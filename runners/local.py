"""Workers as processes on this machine, each with its share of the cores, or an accelerator of its own.

`render` is pure, `up` and `down` are thin. `sweep quickstart` uses them, and `keep`, which restarts.
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

from runners.command import Pool, worker_argv

GRACE_S = 30.0
DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process to start. `env` is what differs from the environment of the starter."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    log_file: Path


def render(pool: Pool, logs: Path) -> tuple[Process, ...]:
    """What `up` would start: one process per worker, with its output in a file of its own under `logs`."""
    env = dict.fromkeys(_THREAD_VARIABLES, str(pool.threads))
    return tuple(
        Process(
            argv=worker_argv(pool),
            env={**env, DEVICES_VARIABLE: pool.devices[number - 1]} if pool.devices else env,
            log_file=logs / f"worker-{number}.log",
        )
        for number in range(1, pool.workers + 1)
    )


def shell_line(process: Process) -> str:
    """The process as a line that a shell understands; what is in a name stays one word."""
    words = [f"{name}={value}" for name, value in process.env.items()]
    return f"{shlex.join(['env', *words, *process.argv])} >> {shlex.quote(str(process.log_file))} 2>&1"


def up(processes: Sequence[Process]) -> list[subprocess.Popen[bytes]]:
    """Start them, each in a session of its own: Ctrl-C at the terminal reaches them only through `down`."""
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


def down(started: Sequence[subprocess.Popen[bytes]], grace_s: float = GRACE_S) -> list[int]:
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
