"""Free memory and disk space of this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

from trainer.devices.device import Device


def free_memory(device: Device) -> int | None:
    """Return the bytes that a run may take on the device; None if unknown."""
    return device.free_memory_bytes()


def free_disk(folder: Path) -> int:
    """Return the bytes free where the folder is, or will be. Raises OSError."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


def size_of(folder: Path) -> int:
    """Return the bytes of the files below a folder; 0 if there is no such folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
