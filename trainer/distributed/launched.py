"""What the launcher of a process said, and whether it goes with the configuration. Without torch.

torchrun, and `launch` here, set RANK, WORLD_SIZE and LOCAL_RANK. Called by `trainer.__main__`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trainer.config import Config
from trainer.distributed import tpu_host
from trainer.errors import ConfigError
from trainer.text import counted

KEY = "device.parallel"
_START = "torchrun --nproc-per-node N -m trainer …"


@dataclass(frozen=True, kw_only=True)
class Launched:
    """One process of `world`: its place among all, and among those of its machine."""

    rank: int
    world: int
    local_rank: int

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0


ALONE = Launched(rank=0, world=1, local_rank=0)


def launched(environment: Mapping[str, str] = os.environ) -> Launched | None:
    """What the launcher said; None where there was none."""
    try:
        return Launched(
            rank=int(environment["RANK"]),
            world=int(environment["WORLD_SIZE"]),
            local_rank=int(environment.get("LOCAL_RANK", "0")),
        )
    except (KeyError, ValueError):
        return None


def among_processes(config: Config) -> bool:
    """Whether the run is to be shared by several processes; on XLA, the chips of one process share it. Raises
    ConfigError if it means a TPU that is not there."""
    return config.device.parallel != "none" and not tpu_host.uses_xla(config.device.type)


def check(config: Config, found: Launched | None) -> Launched:
    """The process's place, where it goes with the configuration.

    Raises:
        ConfigError: several processes would train the same thing side by side, one alone was told to share,
            or a batch cannot be shared out. Or the device is not there.
    """
    if not among_processes(config):
        if found is not None and found.world > 1:
            instead = (
                f"write {KEY}=ddp or {KEY}=fsdp, or start one"
                if config.device.parallel == "none"
                else "start one: the chips of a TPU share a run in one process"
            )
            raise ConfigError(
                f"{found.world} processes were started, and each would do the whole run; {instead}", key=KEY
            )
        return ALONE
    if found is None:
        raise ConfigError(
            f"{config.device.parallel} shares a run among processes, but this one was started alone; "
            f"start it with `{_START}`, or write {KEY}=none",
            key=KEY,
        )
    _check_batches(config, found.world)
    return found


def _check_batches(config: Config, world: int) -> None:
    for stage, batch, micro in _batches(config):
        least = world * (micro or 1)
        if batch % least:
            by = f" in micro-batches of {micro}" if micro else ""
            raise ConfigError(
                f"{counted(batch, 'sequence')} cannot be shared out evenly among "
                f"{counted(world, 'process', 'processes')}{by}; write a multiple of {least}",
                key=f"{stage}.batch_size",
            )


def _batches(config: Config) -> Iterator[tuple[str, int, int | None]]:
    one, two, three = config.stage1_9, config.stage2, config.stage3
    if one.max_steps:
        yield "stage1_9", one.batch_size, one.micro_batch_size
    if two.max_steps:
        yield "stage2", two.batch_size, two.micro_batch_size
    if three.max_steps:
        yield "stage3", three.batch_size, three.micro_batch_size
