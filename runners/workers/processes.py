"""Workers as processes on this machine, each with its share of the cores, or an accelerator."""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
import subprocess
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runners.pools.pool import Pool
from runners.pools.script import environment, worker_script

GRACE_S = 30.0
DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
TPU = "tpu:"
_LONGEST_START = 100_000
_FIRST_PORT, _PORTS = 20_000, 12_000  # below those that the kernel gives to connections


@dataclass(frozen=True, kw_only=True)
class Process:
    """Process to start; `env` is added to the environment of the starter."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    log_file: Path


def processes(pool: Pool) -> tuple[Process, ...]:
    """Return a process for each host of each worker, with its own log file in the pool's folder."""
    return tuple(process(pool, number) for number in range(1, pool.workers * pool.nodes + 1))


def name_of(pool: Pool, number: int) -> str:
    """Return what people call a process, counted from 1: its worker, and the host that it stands for."""
    worker, rank = divmod(number - 1, pool.nodes)
    return f"{worker + 1}-host-{rank}" if pool.nodes > 1 else str(worker + 1)


def process(pool: Pool, number: int) -> Process:
    """Return one of the processes, counted from 1: those of a worker follow one another."""
    env = environment(pool)
    if pool.nodes > 1:
        worker, rank = divmod(number - 1, pool.nodes)
        env |= host_variables(pool.label, worker, rank, "127.0.0.1")
    if pool.devices:
        env |= device_variables(pool.devices[number - 1])
    return Process(
        argv=("bash", "-c", worker_script(pool)) if pool.setup else pool.command,
        env=env,
        log_file=pool.folder / f"worker-{name_of(pool, number)}.log",
    )


def host_variables(label: str, worker: int, rank: int, leader: str) -> dict[str, str]:
    """Return variables that say which host of its worker a process is, and where the first one listens.

    Args:
        label: of the pool.
        worker: number of the worker: the leaders of several may listen on one machine.
        leader: address of the host of rank 0.
    """
    port = _FIRST_PORT + zlib.crc32(f"{label} {worker}".encode()) % _PORTS
    return {"NODE_RANK": str(rank), "MASTER_ADDR": leader, "MASTER_PORT": str(port)}


def device_variables(device: str) -> dict[str, str]:
    """Return variables that show a worker its accelerators alone: a TPU chip for `tpu:N`, else CUDA devices.

    The bounds declare the chip to be the full host; otherwise libtpu would wait for the other chips.
    """
    if not device.startswith(TPU):
        return {DEVICES_VARIABLE: device}
    bounds = {"TPU_CHIPS_PER_HOST_BOUNDS": "1,1,1", "TPU_HOST_BOUNDS": "1,1,1"}
    return {"PJRT_DEVICE": "TPU", "TPU_VISIBLE_CHIPS": device.removeprefix(TPU), **bounds}


def shell_line(process: Process) -> str:
    """Return the process as one quoted line of shell."""
    words = [f"{name}={value}" for name, value in process.env.items()]
    return f"{shlex.join(['env', *words, *process.argv])} >> {shlex.quote(str(process.log_file))} 2>&1"


def start(processes: Sequence[Process]) -> list[subprocess.Popen[bytes]]:
    """Start the processes in sessions of their own, so that Ctrl-C reaches them only through `end`."""
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


def size_of(log_file: Path) -> int | None:
    """Return the size of a log in bytes, 0 before there is one; None for a terminal or a pipe."""
    try:
        status = log_file.stat()
    except FileNotFoundError:
        return 0
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def written_since(log_file: Path, start: int | None, *, tail: bool = False) -> str:
    """Return what was appended to a log after the byte `start`, as `size_of` gave it.

    "" where that cannot be read, and where it is more than a start that failed writes; with `tail`, then its
    last 100,000 bytes.
    """
    try:
        if start is None or not size_of(log_file):
            return ""
        with log_file.open("rb") as file:
            file.seek(max(start, file.seek(0, os.SEEK_END) - _LONGEST_START) if tail else start)
            data = file.read(_LONGEST_START + 1)
    except OSError:
        return ""
    return data.decode("utf-8", "replace") if tail or len(data) <= _LONGEST_START else ""


def end(started: Sequence[subprocess.Popen[bytes]], grace_s: float = GRACE_S) -> list[int]:
    """Send SIGTERM, then SIGKILL after `grace_s` seconds in all, and return the exit statuses."""
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
