"""Options of `skypilot`."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from runners.errors import PoolError
from runners.pools.options import Quantity, parse
from runners.pools.pool import Pool
from runners.tpu_versions import largest_on_one_vm, runtime_version

TPU_PREFIX = "tpu-"


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid", strict=True))
class SkyOptions:
    """Options of a pool of managed jobs.

    Args:
        infra: SkyPilot's infra, such as gcp or aws/us-east-1; "": wherever it is cheapest.
        package: what pip installs there: the URL of a wheel, its path in `file_mounts`, or a requirement.
        cpus: of each machine, such as "8+"; "" for SkyPilot's default.
        memory: of each machine in GB, such as "64+"; "" for SkyPilot's default.
        disk_size: of each machine, in GB.
        file_mounts: SkyPilot's file_mounts, such as {/data: gs://bucket/data}.
        resources: more of SkyPilot's resources, such as {any_of: [{infra: gcp}, {infra: lambda}]}; they
            override the others.
    """

    infra: str = ""
    package: str = ""
    cpus: Quantity = ""
    memory: Quantity = ""
    disk_size: int | None = Field(default=None, ge=1)
    file_mounts: dict[str, Any] = Field(default_factory=dict)
    resources: dict[str, Any] = Field(default_factory=dict)


def options_of(pool: Pool) -> SkyOptions:
    """Return the pool's options. Raises `PoolError`."""
    return parse(SkyOptions, pool)


def tpu_of(pool: Pool) -> str | None:
    """Return the TPU of each worker without SkyPilot's prefix; None for others. Raises `PoolError`."""
    family, _, size = pool.accelerator.removeprefix(TPU_PREFIX).partition("-")
    if runtime_version(family) is None or not size.isdecimal():
        return None
    if not pool.accelerator.startswith(TPU_PREFIX):
        raise PoolError("accelerator", f"SkyPilot calls it {TPU_PREFIX}{pool.accelerator}")
    if largest := largest_on_one_vm(f"{family}-{size}"):
        raise PoolError(
            "accelerator",
            f"{pool.accelerator} spans several VMs, and a worker runs on one; at most tpu-{largest}",
        )
    if pool.accelerator_count != 1:
        raise PoolError(
            "accelerator_count", f"{pool.accelerator} is one accelerator; its size is in its name"
        )
    return f"{family}-{size}"
