"""Whether a preempted run's checkpoint is on the disk when its notice is over. Used by `preflight`."""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from sweeps.text.atomic_file import sync
from trainer.cache import file_digest
from trainer.config import CheckpointConfig
from trainer.text import byte_size

WORTH_MEASURING = 2**28
"""Bytes that any disk writes within a notice; without a measurement, which takes up to a second."""
_BLOCK, _MOST = 2**22, 2**26
_LONG_ENOUGH_S = 0.5


@dataclass(frozen=True, kw_only=True)
class CheckpointTime:
    """How long a checkpoint takes to be written.

    Args:
        size: bytes that one process writes.
        writers: processes of this machine that write at once, and share its disk.
        bytes_per_second: of writing, syncing and digesting.
    """

    size: int
    writers: int
    bytes_per_second: float

    @property
    def seconds(self) -> float:
        """Return the seconds until all of this machine's processes have written theirs."""
        return self.size * self.writers / self.bytes_per_second


def checkpoint_time(size: int, folder: Path, *, writers: int = 1) -> CheckpointTime | None:
    """Measure the disk of a run's folder; None for a checkpoint too small to matter.

    Args:
        size: bytes that one process writes.
        folder: that exists.
        writers: processes of this machine that write at once.

    Raises:
        OSError: the folder cannot be written to.
    """
    if size * writers < WORTH_MEASURING:
        return None
    return CheckpointTime(size=size, writers=writers, bytes_per_second=write_speed(folder))


def write_speed(folder: Path) -> float:
    """Return the bytes a second at which the folder's disk takes a checkpoint: written, synced and digested.

    The file is random, as a disk may compress, and at most 64 MiB; it is removed. Raises OSError.
    """
    path, block = folder / f".{uuid.uuid4().hex}.tmp", os.urandom(_BLOCK)
    try:
        began, size = time.perf_counter(), 0
        with path.open("wb") as file:
            while size < _MOST and time.perf_counter() - began < _LONG_ENOUGH_S:
                size += file.write(block)
        sync(path)
        file_digest(path)
        return size / (time.perf_counter() - began)
    finally:
        path.unlink(missing_ok=True)


def warnings(found: CheckpointTime | None, config: CheckpointConfig, *, shared: bool) -> list[str]:
    """Return a warning if a notice is too short for a checkpoint, with what to do.

    Args:
        shared: whether the run has several processes.
    """
    if found is None or not config.notice_seconds or found.seconds <= config.notice_seconds:
        return []
    who = f"each of {found.writers} processes" if found.writers > 1 else "one process"
    speed = f"{byte_size(int(found.bytes_per_second))}/s measured"
    instead = "run_dir on a faster disk"
    if shared and config.format == "whole":
        instead = f"checkpoint.format=sharded, or {instead}"
    lost = (
        f"up to checkpoint.every_seconds={config.every_seconds:g} of computing"
        if config.every_seconds
        else "all since the last checkpoint"
    )
    return [
        f"a checkpoint takes about {found.seconds:.0f} s here ({byte_size(found.size)} by {who}, {speed}), "
        f"longer than a notice of {config.notice_seconds:g} s: a preempted run loses {lost}; write a smaller "
        f"checkpoint.every_seconds, or {instead}"
    ]
