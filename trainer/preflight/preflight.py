"""The look at a run before it starts: what it will take, and what speaks against it. Called by `__main__`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.config import Config, long_runs
from trainer.devices.device import Device
from trainer.devices.dtypes import dtype_name
from trainer.errors import ConfigError
from trainer.preflight import disk, fitting, price
from trainer.preflight.disk import Disk
from trainer.preflight.memory import StageMemory, evaluation_memory, stage_memory, stages, student_dimensions
from trainer.preflight.meta_model import Blueprint, blueprint
from trainer.preflight.resources import free_memory
from trainer.preflight.upper_bound import at_most
from trainer.text import byte_size


@dataclass(kw_only=True)
class Look:
    """What was found.

    Args:
        refusals: what speaks against the run, with what to change.
        stages: memory of each stage and of evaluations; empty where `at_most` was enough to know, or nothing
            is known.
        at_most: bytes that memory stays below.
        free: bytes of memory that the run may take.
        seconds, usd: of the steps of all stages, roughly; None: nobody knows the device.
        unknown: why memory could not be estimated; "".
    """

    refusals: list[ConfigError] = field(default_factory=list)
    stages: list[StageMemory] = field(default_factory=list)
    at_most: int | None = None
    free: int | None = None
    disk: Disk | None = None
    seconds: float | None = None
    usd: float | None = None
    unknown: str = ""

    @property
    def peak(self) -> int | None:
        """Bytes of the stage that takes the most memory."""
        return max((stage.peak for stage in self.stages), default=None)


def look(
    config: Config, device: Device, folder: Path | None, *, closely: bool = False, processes: int = 1
) -> Look:
    """At the run and at this machine; computes nothing, loads no weights.

    Args:
        folder: of the run; None leaves the disk out.
        closely: estimate memory also where a bound tells that it is enough.
        processes: that share each batch.
    """
    found = Look(refusals=long_runs.refusals(config, device=device.kind, dtype=dtype_name(device.dtype)))
    try:
        plan = blueprint(config, device)
        if config.device.parallel == "fsdp":
            found.unknown = "the weights are in parts"
        else:
            _look_at_memory(found, share(config, processes), plan, device, closely=closely)
        found.seconds = price.seconds(config, plan.dimensions, device)
        if found.seconds is not None:
            found.usd = price.dollars(config, device, found.seconds)
        if folder is not None:
            found.disk = disk.disk(config, student_dimensions(config, plan.dimensions), folder)
            found.refusals += disk.refusals(found.disk, config)
    except Exception as error:  # noqa: BLE001 - an estimate that fails must not keep a run from starting
        found.unknown = " ".join(f"{type(error).__name__}: {error}".split())
    return found


def _look_at_memory(found: Look, config: Config, plan: Blueprint, device: Device, *, closely: bool) -> None:
    found.free = fitting.limit(config, free_memory(device))
    bound = at_most(config, plan.dimensions)
    if not closely and found.free is not None and 2 * bound <= found.free:
        found.at_most = bound
        return
    for name, stage in stages(config):
        found.stages.append(stage_memory(config, name, stage, plan, device))
    found.stages.append(evaluation_memory(config, plan, device))
    if found.free is not None:
        found.refusals += fitting.refusals(config, found.stages, plan, device, free=found.free)


def share(config: Config, processes: int) -> Config:
    """What one of the processes computes; `distributed.launched` has seen that batches can be shared out."""
    smaller: dict[str, Any] = {
        name: dataclasses.replace(stage, batch_size=stage.batch_size // processes)
        for name, stage in stages(config)
    }
    return dataclasses.replace(config, **smaller)


def line(found: Look) -> str:
    """What was found, in one line for people."""
    told = [_memory(found)]
    if found.disk:
        told.append(f"disk {byte_size(found.disk.needed)} of {byte_size(found.disk.free)} free")
    if found.seconds is not None:
        told.append(f"roughly {_time(found.seconds)} of training")
    if found.usd:
        told.append(f"{found.usd:.2f} $")
    return f"preflight: {', '.join(told)}"


def _time(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}" if seconds >= 10 * size else f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _memory(found: Look) -> str:
    if found.unknown:
        return f"memory not estimated ({found.unknown})"
    free = "" if found.free is None else f" of {byte_size(found.free)} free"
    if found.peak is not None:
        return f"memory about {byte_size(found.peak)}{free}"
    return f"memory below {byte_size(found.at_most or 0)}{free}"
