"""Memory and disk that are free now. Used by `preflight.look`."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from trainer.device import Device

_MEMINFO = Path("/proc/meminfo")
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def free_memory(device: Device) -> int | None:
    """Bytes that a run may take on the device; None where nobody tells.

    On a CPU what the kernel calls available, and no more than the container's limit.
    """
    if device.kind == "cuda":
        return int(torch.cuda.mem_get_info(device.torch_device)[0])
    known = [limit for limit in (_available(), *map(_number, _LIMITS)) if limit is not None]
    return min(known, default=None)


def free_disk(folder: Path) -> int:
    """Bytes free where the folder is, or will be. Raises OSError."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free


def size_of(folder: Path) -> int:
    """Bytes of the files below a folder; of none, if there is no such folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _available() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such file; or "max"
        return None
