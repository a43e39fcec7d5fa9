"""Which pool of local workers runs for a sweep: a small file beside its logs. For `sweep launch` and `down`.

A process id alone may belong to somebody else by now; with the time that the process began it does not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from pydantic_core import from_json

FILE = "pool.json"
WANTED = "workers.wanted"
"""How many workers `sweep pool scale` asked for, until the pool is down."""
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Known:
    """A process, when it began, and which worker it is.

    Args:
        began: in seconds since 1970. Linux reckons it from the clock, so it moves when the clock is set.
        number: of the worker; 0: none.
        birth: the boot of the machine, and the tick of it in which the process began: what no clock moves. ""
            where the system does not tell, and in files of earlier versions.
    """

    pid: int
    began: float
    number: int = 0
    birth: str = ""

    def process(self) -> psutil.Process | None:
        """The process, if it is still there."""
        try:
            found = psutil.Process(self.pid)
            same = _birth(self.pid) == self.birth if self.birth else found.create_time() == self.began
            alive = same and found.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return None
        return found if alive else None


@dataclass(frozen=True, kw_only=True)
class PoolFile:
    """The process that keeps the pool, and its workers."""

    keeper: Known
    workers: tuple[Known, ...] = ()

    def alive(self) -> list[psutil.Process]:
        """Those that are still there, the keeper first."""
        return [process for known in (self.keeper, *self.workers) if (process := known.process())]


def known(pid: int, number: int = 0) -> Known:
    """A process that is there now. Raises psutil.NoSuchProcess."""
    return Known(pid=pid, began=psutil.Process(pid).create_time(), number=number, birth=_birth(pid))


def _birth(pid: int) -> str:
    """Which boot and which tick of it the process began in; "" where the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        about = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    # The program's name, in brackets, may hold anything; the tick is the 22nd field, the 20th behind it.
    return f"{boot}:{about.rpartition(')')[2].split()[19]}"


def write(folder: Path, pids: Mapping[int, int]) -> None:
    """This process keeps a pool of these workers, process ids by their numbers. Never half-written."""
    workers = []
    for number, pid in pids.items():
        try:
            workers.append(known(pid, number))
        except psutil.NoSuchProcess:
            continue  # ended since
    document = {"schema": SCHEMA, **asdict(PoolFile(keeper=known(os.getpid()), workers=tuple(workers)))}
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f"{FILE}.new"
    fresh.write_text(json.dumps(document, indent=1))
    fresh.replace(folder / FILE)


def read(folder: Path) -> PoolFile | None:
    """The pool that was last started; None where there is none, or nothing legible."""
    try:
        document = from_json((folder / FILE).read_text())
        return PoolFile(
            keeper=Known(**document["keeper"]), workers=tuple(Known(**each) for each in document["workers"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remove(folder: Path) -> None:
    """No pool runs any more."""
    for name in (FILE, WANTED):
        (folder / name).unlink(missing_ok=True)


def want(folder: Path, workers: int) -> None:
    """Ask whoever keeps the pool for so many workers."""
    fresh = folder / f"{WANTED}.new"
    fresh.write_text(str(workers))
    fresh.replace(folder / WANTED)


def wanted(folder: Path) -> int | None:
    """How many workers were asked for since the pool was started; None: nobody did."""
    try:
        return int((folder / WANTED).read_text())
    except (OSError, ValueError):
        return None
