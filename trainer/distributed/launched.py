"""Environment variables of the launcher, checked against the configuration. Without torch.

torchrun and `launch` set RANK, WORLD_SIZE and LOCAL_RANK. Called by `trainer.__main__`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from sweeps.text.counted import counted
from trainer.config import Config
from trainer.config.run import MeshConfig
from trainer.distributed import tpu_host
from trainer.errors import ConfigError

KEY = "device.parallel"
LOCAL_WORLD = "LOCAL_WORLD_SIZE"
_MESH = "device.mesh"
_START = "torchrun --nproc-per-node N -m trainer …"


@dataclass(frozen=True, kw_only=True)
class Launched:
    """One process of `world`: its rank among all of them, and among the `local_world` of its machine."""

    rank: int
    world: int
    local_rank: int
    local_world: int = 1

    @property
    def hosts(self) -> int:
        """Return the number of machines."""
        return -(-self.world // self.local_world)

    @property
    def first(self) -> bool:
        """Return whether this is the process that writes files and logs."""
        return self.rank == 0

    def shares(self, mesh: MeshConfig) -> int:
        """Return the number of parts that each batch is shared out in, one for each tensor group."""
        return max(1, self.world // mesh.tensor)  # a TPU's chips are in one process


ALONE = Launched(rank=0, world=1, local_rank=0)


def launched(environment: Mapping[str, str] = os.environ) -> Launched | None:
    """Return the ranks that a launcher has set; None without a launcher."""
    try:
        return Launched(
            rank=int(environment["RANK"]),
            world=int(environment["WORLD_SIZE"]),
            local_rank=int(environment.get("LOCAL_RANK", "0")),
            # Some launchers of a single machine do not set it.
            local_world=int(environment.get(LOCAL_WORLD, environment["WORLD_SIZE"])),
        )
    except (KeyError, ValueError):
        return None


def is_distributed(config: Config) -> bool:
    """Return whether several processes share the run; on XLA, the chips of one process do.

    Raises:
        ConfigError: the run needs a TPU that is not there.
    """
    kind = config.device.type
    # Named outright it needs no look at this machine, where a sweep for others may just be made.
    return config.device.parallel != "none" and kind != "xla" and not tpu_host.uses_xla(kind)


def foresee(config: Config, found: Launched | None) -> Launched:
    """Return the ranks of a process of a run that is to be estimated: as it was started, or as the mesh says.

    ALONE may mean that processes are to share the run, and that nothing says how many.

    Raises:
        ConfigError: see `check`.
    """
    mesh = config.device.mesh
    if found is None and mesh.data is not None and is_distributed(config):
        world = mesh.data * mesh.tensor
        found = Launched(rank=0, world=world, local_rank=0, local_world=world)
    return ALONE if found is None else check(config, found)


def check(config: Config, found: Launched | None) -> Launched:
    """Return this process's ranks, if they fit the configuration.

    Raises:
        ConfigError: several processes would repeat the same run, a single one should share it, a batch cannot
            be divided among them, or the device is not there.
    """
    mesh = config.device.mesh
    if not is_distributed(config):
        if found is not None and found.world > 1:
            instead = (
                f"write {KEY}=ddp or {KEY}=fsdp, or start one"
                if config.device.parallel == "none" and config.device.type != "xla"
                else "start one: the chips of a TPU host share a run in one process, those of several do not"
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
    parts, left = divmod(found.world, mesh.tensor)
    if left or mesh.data not in (None, parts):
        needed = f"{mesh.data * mesh.tensor}" if mesh.data else f"a multiple of {mesh.tensor}"
        started = counted(found.world, "process was", "processes were")
        raise ConfigError(f"{started} started, and the mesh needs {needed}; start that many", key=_MESH)
    for stage in ("stage1_9", "stage2", "stage3", "recovery"):
        settings = getattr(config, stage)
        sharing, plural = ("process", "processes") if mesh.tensor == 1 else ("tensor group", "tensor groups")
        micro, least = settings.micro_batch_size, parts * (settings.micro_batch_size or 1)
        if settings.max_steps and settings.batch_size % least:
            by = f" in micro-batches of {micro}" if micro else ""
            raise ConfigError(
                f"{counted(settings.batch_size, 'sequence')} cannot be shared out evenly among "
                f"{counted(parts, sharing, plural)}{by}; write a multiple of {least}",
                key=f"{stage}.batch_size",
            )
    return found
