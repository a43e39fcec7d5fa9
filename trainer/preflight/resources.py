"""Memory and disk that are free now. Used by `preflight.look`."""

from __future__ import annotations

import shutil
from pathlib import Path

from trainer.devices.device import Device


def free_memory(device: Device) -> int | None:
    """Bytes that a run may take on the device; None where nobody tells."""
    return device.free_memory_bytes()


def free_disk(folder: Path) -> int:
    """Bytes free where the folder is, or will be. Raises OSError."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free


def size_of(folder: Path) -> int:
    """Bytes of the files below a folder; of none, if there is no such folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
