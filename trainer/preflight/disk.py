"""Disk space that a run needs in its folder, and that is free there. Used by `preflight`."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from sweeps.text.counted import counted
from trainer.checkpoint.layout import FOLDER
from trainer.config import Config
from trainer.errors import ConfigError, MachineError
from trainer.preflight.dimensions import Dimensions
from trainer.preflight.memory import average_bytes, optimizer_memory, stages, trained_dimensions
from trainer.text import byte_size

_SMALL = 2**20  # metrics, configuration and other small files


@dataclass(frozen=True, kw_only=True)
class Disk:
    """Space of a run's folder, in bytes.

    Args:
        checkpoints: most checkpoints at once, the one that is being written included.
        model: size of the student that is kept at the end.
        existing: size of an earlier attempt's checkpoints, which later ones replace.
        free: on the folder's disk.
    """

    checkpoint: int
    checkpoints: int
    model: int
    existing: int
    free: int

    @property
    def needed(self) -> int:
        """Return the bytes needed beyond the existing ones."""
        return max(self.checkpoint, self.checkpoint * self.checkpoints - self.existing) + self.model + _SMALL


def disk(config: Config, student: Dimensions, folder: Path) -> Disk:
    """Return the space of the run in its folder, which need not exist. Raises OSError."""
    weights = student.parameters * student.weight_bytes
    average = average_bytes(config, student)
    trained = [(stage, trained_dimensions(stage, student)) for _, stage in stages(config)]
    state = max((optimizer_memory(each, stage.optimizer).state for stage, each in trained), default=0)
    adapters = sum(each.parameters * each.weight_bytes for _, each in trained if each is not student)
    saves = config.checkpoint.every_steps or config.checkpoint.every_seconds
    return Disk(
        checkpoint=weights + adapters + state + average,
        checkpoints=config.checkpoint.keep + 1 if saves else 1,  # the one that SIGTERM writes
        model=weights + adapters if config.save_model else 0,
        existing=sum(path.stat().st_size for path in (folder / FOLDER).rglob("*") if path.is_file()),
        free=shutil.disk_usage(existing_parent(folder)).free,
    )


def existing_parent(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    nearest = folder.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    return nearest


def refusals(found: Disk, config: Config) -> list[ConfigError]:
    """Return a refusal if there is too little space, with what to change."""
    if found.needed <= found.free:
        return []
    shortage = (
        f"{byte_size(found.free)} are free there, and {counted(found.checkpoints, 'checkpoint')} of "
        f"{byte_size(found.checkpoint)}{' and the model' if found.model else ''} would fill "
        f"{byte_size(found.needed)}"
    )
    room = (found.free + found.existing - found.model - _SMALL) // max(found.checkpoint, 1) - 1
    if 1 <= room < config.checkpoint.keep:
        return [MachineError(f"in run_dir {shortage}; write {room}", key="checkpoint.keep")]
    return [MachineError(f"{shortage}; write a folder on a larger disk", key="run_dir")]
