"""Options of `tpu-vm`, validated before anything is requested."""

from __future__ import annotations

import re

from pydantic import ConfigDict, field_validator
from pydantic.dataclasses import dataclass

from runners.errors import PoolError
from runners.pools.options import parse, require_package
from runners.pools.pool import Pool
from runners.tpu_versions import largest_on_one_vm, runtime_version

_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class TpuOptions:
    """Options of a pool of TPU VMs.

    Args:
        project: id of the Google Cloud project.
        zones: zones to try in this order; a list, or a comma-separated string.
        runtime_version: the VM's image; "" for the one that goes with the accelerator.
        queued: request a queued resource, which waits for capacity; else a TPU VM at once.
        wait_minutes: minutes that a queued resource waits in one zone before the next one is tried. The
            service itself enforces it, also where no process watches any more.
        package: what pip installs on the VM: the URL of a wheel, also gs://..., or a requirement. Only a pool
            that is to start needs it.
        network: "" for the project's default network.
        subnetwork: "" for the network's default.
        external_ips: give the VM a public address, without which pip needs a proxy or a NAT.
        service_account: account of the VM; "" for the project's default. It reads and writes the bucket,
            reads the secrets, and deletes its own VM where nobody else does.
    """

    project: str
    zones: tuple[str, ...]
    runtime_version: str = ""
    queued: bool = True
    wait_minutes: float = 60.0
    package: str = ""
    network: str = ""
    subnetwork: str = ""
    external_ips: bool = True
    service_account: str = ""

    @field_validator("zones", mode="before")
    @classmethod
    def _split(cls, zones: object) -> object:
        return [zone.strip() for zone in zones.split(",")] if isinstance(zones, str) else zones

    @field_validator("zones")
    @classmethod
    def _zones(cls, zones: tuple[str, ...]) -> tuple[str, ...]:
        if not zones or len(set(zones)) < len(zones) or not all(_NAME.fullmatch(zone) for zone in zones):
            raise ValueError("name zones, each once, such as us-east5-b,asia-northeast1-b")
        return zones

    @field_validator("project")
    @classmethod
    def _project(cls, project: str) -> str:
        if not re.fullmatch(r"([a-z0-9.-]+:)?[a-z0-9-]+", project):
            raise ValueError("write the project's id, such as my-project-123")
        return project

    @field_validator("wait_minutes")
    @classmethod
    def _wait(cls, minutes: float) -> float:
        if not 1 <= minutes <= 60 * 24 * 7:
            raise ValueError("from 1 minute to a week (10080)")
        return minutes


def options_of(pool: Pool) -> TpuOptions:
    """Return the pool's options. Raises `PoolError`."""
    return parse(TpuOptions, pool)


def check_vms(pool: Pool, options: TpuOptions) -> None:
    """Raise `PoolError` for an accelerator that is not a TPU, or spans several VMs, or without a package."""
    if not pool.accelerator:
        raise PoolError("accelerator", "name a TPU, such as v6e-4 or v5litepod-8")
    if largest := largest_on_one_vm(pool.accelerator):
        raise PoolError(
            "accelerator",
            f"{pool.accelerator} spans several VMs, and a worker runs on one; at most {largest}",
        )
    if not (options.runtime_version or runtime_version(pool.accelerator)):
        raise PoolError(
            "accelerator",
            f"{pool.accelerator} is of an unknown family; set the option runtime_version to its image",
        )
    require_package(
        options.package, "gs://…/stagesweep-….whl, another URL of it, or another requirement of pip"
    )
