"""Preflight check: estimated resources of a run, and reasons to refuse it. Called by `__main__`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.config import Config, long_runs
from trainer.data import inputs
from trainer.devices.device import Device
from trainer.devices.dtypes import dtype_name
from trainer.distributed.launched import ALONE, Launched
from trainer.distributed.ranks import Ranks
from trainer.errors import ConfigError, DataError
from trainer.preflight import disk, fitting, host_memory, notice, price
from trainer.preflight.disk import Disk
from trainer.preflight.host_memory import HostMemory
from trainer.preflight.memory import (
    StageMemory,
    evaluation_memory,
    loading_memory,
    memory_upper_bound,
    stage_memory,
    stages,
    student_dimensions,
)
from trainer.preflight.notice import CheckpointTime
from trainer.preflight.trace import Blueprint, blueprint
from trainer.text import byte_size


@dataclass(kw_only=True)
class Preflight:
    """Estimated resources of a run, and reasons to refuse it.

    Args:
        refusals: reasons, with what to change.
        warnings: what goes wrong sometimes, likewise.
        stages: memory of each stage and of evaluations; empty if `upper_bound` was enough, or nothing is
            known.
        upper_bound: bytes that memory stays below.
        free: bytes of memory that this process may take.
        seconds, usd: of the steps of all stages, roughly; None: the device's speed or price is not known.
        unknown: why memory could not be estimated; "".
    """

    refusals: list[ConfigError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    stages: list[StageMemory] = field(default_factory=list)
    upper_bound: int | None = None
    free: int | None = None
    disk: Disk | None = None
    checkpoint: CheckpointTime | None = None
    host: HostMemory | None = None
    seconds: float | None = None
    usd: float | None = None
    unknown: str = ""

    @property
    def peak(self) -> int | None:
        """Return the bytes of the stage that takes the most memory."""
        return max((stage.peak for stage in self.stages), default=None)


def run_preflight(
    config: Config,
    device: Device,
    folder: Path | None,
    *,
    detailed: bool = False,
    processes: int = 1,
    launch: Launched = ALONE,
) -> Preflight:
    """Check the run against this machine, without computing or loading weights.

    Args:
        folder: of the run; None leaves the disk out.
        detailed: estimate memory even if an upper bound shows that it fits, and look at the text, which a run
            does by itself before it computes.
        processes: that share each batch.
        launch: this process among all that share the run; the first measures the disk.
    """
    found = Preflight(refusals=long_runs.refusals(config, device=device.kind, dtype=dtype_name(device.dtype)))
    if detailed:
        try:
            inputs.require_text(config.data)
        except ConfigError as error:
            found.refusals.append(error)
        except DataError as error:
            found.refusals.append(ConfigError(str(error)))
    try:
        plan = blueprint(config, device)
        sharded = config.device.parallel == "fsdp"
        if sharded and device.kind == "xla":
            found.unknown = "the chips have the weights in parts"
        elif sharded and launch is ALONE and device.ranks.alone:
            found.unknown = "the number of processes is not known; write device.mesh.data"
        else:
            device = dataclasses.replace(device, ranks=joined_ranks(config, device, launch))
            _estimate_memory(found, per_process(config, processes), plan, device, launch, detailed=detailed)
        found.seconds = price.seconds(config, plan.dimensions, device)
        if found.seconds is not None:
            found.usd = price.dollars(config, device, found.seconds)
        if folder is not None:
            found.disk = disk.disk(config, student_dimensions(config, plan.dimensions), folder)
            found.refusals += disk.refusals(found.disk, config)
            found.host = host_memory.estimate(
                config, device, plan.dimensions, checkpoint=found.disk.checkpoint, launch=launch
            )
            tensors = (found.peak or found.upper_bound) if device.kind == "cpu" else None
            if tensors is not None:
                tensors *= launch.local_world
            found.warnings += host_memory.warnings(found.host, tensors)
            if launch.first and not found.refusals:
                _time_checkpoint(found, found.disk, config, disk.existing_parent(folder), launch)
    except Exception as error:  # noqa: BLE001 - an estimate that fails must not keep a run from starting
        found.unknown = " ".join(f"{type(error).__name__}: {error}".split())
    return found


def joined_ranks(config: Config, device: Device, launch: Launched) -> Ranks:
    """Return what this process will be once all have joined."""
    if device.kind == "xla" or not device.ranks.alone:
        return device.ranks
    settings = config.device
    return Ranks(
        rank=launch.rank,
        world=launch.world,
        parallel=settings.parallel,
        tensor=settings.mesh.tensor,
        hosts=launch.hosts,
    )


def _estimate_memory(
    found: Preflight, config: Config, plan: Blueprint, device: Device, launch: Launched, *, detailed: bool
) -> None:
    found.free = fitting.memory_limit(config, device, launch)
    bound = memory_upper_bound(config, plan.dimensions)
    # A trace takes about a second, which is long for a small run.
    if not detailed and found.free is not None and 2 * bound <= found.free:
        found.upper_bound = bound
        return
    for name, stage in stages(config):
        found.stages.append(stage_memory(config, name, stage, plan, device))
    found.stages.append(evaluation_memory(config, plan, device))
    if device.ranks.parallel == "fsdp" and device.kind == "cpu":
        found.stages.append(loading_memory(config, plan, device))
    if found.free is not None:
        found.refusals += fitting.refusals(config, found.stages, plan, device, free=found.free)


def _time_checkpoint(found: Preflight, needed: Disk, config: Config, folder: Path, launch: Launched) -> None:
    if not config.checkpoint.notice_seconds:
        return
    shards = launch.world if config.checkpoint.is_sharded(config.device.parallel) else 1
    size, writers = -(-needed.checkpoint // shards), min(shards, launch.local_world)
    found.checkpoint = notice.checkpoint_time(size, folder, writers=writers)
    found.warnings += notice.warnings(found.checkpoint, config.checkpoint, shared=launch.world > 1)


def per_process(config: Config, processes: int) -> Config:
    """Return the configuration with one process's part of each batch, which `launched.check` has checked."""
    smaller: dict[str, Any] = {
        name: dataclasses.replace(stage, batch_size=stage.batch_size // processes)
        for name, stage in stages(config)
    }
    return dataclasses.replace(config, **smaller)


def summary_line(found: Preflight) -> str:
    """Return the estimates in one line for people."""
    free = "" if found.free is None else f" of {byte_size(found.free)} free"
    if found.unknown:
        parts = [f"memory not estimated ({found.unknown})"]
    elif found.peak is not None:
        parts = [f"memory about {byte_size(found.peak)}{free}"]
    else:
        parts = [f"memory below {byte_size(found.upper_bound or 0)}{free}"]
    if found.disk:
        parts.append(f"disk {byte_size(found.disk.needed)} of {byte_size(found.disk.free)} free")
    if found.checkpoint:
        parts.append(f"a checkpoint about {_duration(found.checkpoint.seconds)}")
    if found.seconds is not None:
        parts.append(f"roughly {_duration(found.seconds)} of training")
    if found.usd:
        parts.append(f"{found.usd:.2f} $")
    return f"preflight: {', '.join(parts)}"


def _duration(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}" if seconds >= 10 * size else f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def show(found: Preflight, config: Config) -> None:
    """Print what `python -m trainer … --preflight` does: the memory of each stage, the rest and refusals."""
    from rich import box  # not at the top: a run does not print tables
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    if found.stages:
        # Narrow enough for 80 columns: a wider one is cut off.
        table = Table(title="estimated memory", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
        table.add_column("")
        for name in ("at once", "weights", "gradients", "optimizer", "activations", "peak"):
            table.add_column(name, justify="right")
        for stage in found.stages:
            sizes = (stage.weights, stage.gradients, stage.optimizer, stage.activations, stage.peak)
            table.add_row(stage.name, str(stage.micro_batch or ""), *(byte_size(size) for size in sizes))
        console.print(table)
    console.print(summary_line(found), markup=False)
    if found.host:
        console.print(host_memory.line(found.host), markup=False)
    for warning in found.warnings:
        console.print(f"warning: {warning}", markup=False)
    for refusal in found.refusals:
        word = "forced" if config.force else "refused"
        console.print(f"{word}: {refusal}", markup=False)
