"""Record of the pool that a process of this machine supervises: `pool.json`, for `sweep launch` and `down`.

A process id alone may have been reused; together with the time at which the process began it is unique.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from pydantic import TypeAdapter

from runners.errors import PoolError
from sweeps.text.atomic_file import BY_UMASK, write_atomic
from sweeps.text.regular_file import read_regular

FILE = "pool.json"
WANTED = "workers.wanted"
"""Number of workers that `sweep pool scale` requested, until the pool is down."""
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class RecordedProcess:
    """Identity of a process that survives the reuse of its id.

    Args:
        began: start in seconds since 1970. Linux derives it from the clock, so it shifts when that is set.
        number: its worker's number; 0: it is not a worker.
        birth: boot id of the machine and clock tick of the start, which do not shift; "" where the system has
            none.
    """

    pid: int
    began: float
    number: int = 0
    birth: str = ""

    def process(self) -> psutil.Process | None:
        """Return the process, or None where it has ended."""
        try:
            found = psutil.Process(self.pid)
            same = _birth(self.pid) == self.birth if self.birth else found.create_time() == self.began
            alive = same and found.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return None
        return found if alive else None


@dataclass(frozen=True, kw_only=True)
class PoolFile:
    """Processes of a pool: its supervisor (`keeper` in the file) and its workers."""

    keeper: RecordedProcess
    workers: tuple[RecordedProcess, ...] = ()

    def alive(self) -> list[psutil.Process]:
        """Return the processes that still run, the supervisor first."""
        return [process for each in (self.keeper, *self.workers) if (process := each.process())]


def record_process(pid: int, number: int = 0) -> RecordedProcess:
    """Return the identity of a running process. Raises psutil.NoSuchProcess."""
    began = psutil.Process(pid).create_time()
    return RecordedProcess(pid=pid, began=began, number=number, birth=_birth(pid))


def _birth(pid: int) -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    # The program's name, in brackets, may hold anything; the tick is the 22nd field, the 20th behind it.
    return f"{boot}:{stat.rpartition(')')[2].split()[19]}"


@contextlib.contextmanager
def supervising(folder: Path) -> Iterator[None]:
    """Record this process as the supervisor of the folder's pool while the context is open."""
    write(folder, {})
    (folder / WANTED).unlink(missing_ok=True)
    try:
        yield
    finally:
        remove(folder)


def write(folder: Path, pids: Mapping[int, int]) -> None:
    """Record this process as the supervisor of these workers: process ids by worker number."""
    workers = []
    for number, pid in pids.items():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since
            workers.append(record_process(pid, number))
    pool = PoolFile(keeper=record_process(os.getpid()), workers=tuple(workers))
    write_atomic(folder / FILE, json.dumps({"schema": SCHEMA, **asdict(pool)}, indent=1), mode=BY_UMASK)


def read(folder: Path) -> PoolFile | None:
    """Return the pool that was last started; None where there is none, or the file is not legible."""
    try:
        return TypeAdapter(PoolFile).validate_json(read_regular(folder / FILE), strict=True)
    except (OSError, ValueError):
        return None


def remove(folder: Path) -> None:
    """Remove the record: the pool is down."""
    for name in (FILE, WANTED):
        (folder / name).unlink(missing_ok=True)


def request_workers(folder: Path, workers: int, engine: str) -> None:
    """Ask the pool's supervisor for so many workers. Raises `PoolError` where none runs here."""
    found = read(folder)
    if found is None or found.keeper.process() is None:
        raise PoolError(
            "workers", f"no pool of this sweep runs on this machine; start one: sweep launch {engine}"
        )
    write_atomic(folder / WANTED, str(workers), mode=BY_UMASK)


def requested_workers(folder: Path) -> int | None:
    """Return the number of workers requested since the pool was started; None: no request."""
    try:
        return int(read_regular(folder / WANTED))
    except (OSError, ValueError):
        return None
