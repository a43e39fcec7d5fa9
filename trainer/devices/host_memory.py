"""Memory that this process may have of its machine, as the kernel counts. Used by `preflight`, `device`."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def available() -> int | None:
    """Bytes that the kernel calls available, or the container's limit, if less; None: nobody tells."""
    return _at_most(_meminfo("MemAvailable"))


def total() -> int | None:
    """Bytes of the machine, or of the container if it may have fewer; None where nobody tells."""
    return _at_most(_meminfo("MemTotal"))


def _at_most(bytes_told: int | None) -> int | None:
    known = [limit for limit in (bytes_told, *map(_number, _LIMITS)) if limit is not None]
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
