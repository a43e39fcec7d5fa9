"""Host memory that this process may use. Used by `preflight` and `device`."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def available() -> int | None:
    """Return the bytes that the kernel calls available, at most the container's limit; None if unknown."""
    return _at_most(_meminfo("MemAvailable"))


def total() -> int | None:
    """Return the bytes of the machine, at most the container's limit; None if unknown."""
    return _at_most(_meminfo("MemTotal"))


def _at_most(size: int | None) -> int | None:
    known = [limit for limit in (size, *map(_number, _LIMITS)) if limit is not None]
    return min(known, default=None)


def _meminfo(name: str) -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(found[0]) * 1024 if found else None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such file; or "max"
        return None
